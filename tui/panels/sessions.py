"""Draws the sessions of agents: whose turn it is, and how much of their prompts came from the cache."""

from clairvoyant_cli.state.snapshot import SessionState
from tui.formatting import count, duration, share
from tui.styled_text import Line, Tone
from tui.table_layout import Column, Grid, number, words
from tui.view_state import ViewState

_STATES: dict[str, tuple[int, Tone]] = {
    "running": (0, "accent"),
    "waiting": (1, "ink"),
    "held": (2, "good"),
    "parked": (3, "warn"),
    "resting": (4, "faint"),
}
_LOW_SHARE = 0.5
"""A session that has less than this of its later prompts from the cache is read again and again."""


def facts(view: ViewState) -> Line:
    """How the sessions take turns, or how much of all prompts came from the cache; and what that saved."""
    sessions = view.state.sessions
    hit = hit_share(sessions.read_tokens, sessions.cached_tokens)
    text = sessions.summary or (f"{share(hit)} from cache" if hit is not None else "")
    if sessions.saved_s:
        text = f"{text.partition(':')[0]}, {duration(sessions.saved_s)} of reading saved"
    return Line(f" {text} " if text else "", "soft")


def hit_share(read_tokens: float, cached_tokens: float) -> float | None:
    """Return the share of prompt tokens that came from the cache; None without any."""
    prompts = read_tokens + cached_tokens
    return cached_tokens / prompts if prompts else None


def _hit(row: SessionState) -> float | None:
    return hit_share(row.read_tokens, row.cached_tokens)


def _id(row: SessionState, view: ViewState, width: int) -> Line:
    return Line(f" {row.id}" if row.parent else row.id)


def _state(row: SessionState, view: ViewState, width: int) -> Line:
    away = row.calls_tool and row.state in ("held", "resting")
    line = Line("tool" if away else row.state, _STATES.get(row.state, (0, "ink"))[1])
    if row.hold_left_s is not None:
        return line.add(f" {duration(row.hold_left_s - view.drift_s)} left", "soft")
    return line.add(f" {duration(row.since_s + view.drift_s)}", "soft")


def _hit_share(row: SessionState, view: ViewState, width: int) -> Line:
    hit = _hit(row)
    return Line(share(hit), "warn" if row.turns > 1 and hit is not None and hit < _LOW_SHARE else "ink")


def _saved(row: SessionState, view: ViewState, width: int) -> Line:
    return Line(duration(row.saved_s), "good" if row.saved_s else "faint")


SESSIONS: Grid[SessionState] = Grid(
    columns=(
        Column("id", "id", 6, 9, _id, lambda r: f"{r.id:>9}"),
        Column("agent", "agent", 11, 6, lambda r, s, w: Line(r.program), lambda r: r.program),
        Column("state", "state", 15, 9, _state, lambda r: _STATES.get(r.state, (9, "ink"))[0]),
        number("age", "age", 6, 1, lambda r: r.age_s, tone="soft", grows=True),
        number("turns", "turns", 6, 2, lambda r: r.turns, count),
        number("context", "context", 7, 5, lambda r: r.context_tokens, count),
        number("read", "read", 6, 5, lambda r: r.read_tokens, count),
        number("cached", "cached", 6, 5, lambda r: r.cached_tokens, count),
        Column("saved", "saved", 6, 4, _saved, lambda r: r.saved_s or 0.0, right=True),
        Column("hit", "hit", 4, 8, _hit_share, lambda r: _hit(r) or 0.0, right=True),
        words("client", "client", 8, 5, lambda r: r.client, lambda view: view.state.sessions.listed),
    ),
    rows=lambda view: view.state.sessions.listed,
    id=lambda row: row.id,
    text=lambda row: f"{row.id} {row.program} {row.client} {row.state}",
    empty=lambda view: "No session of an agent.",
)
