"""Draws the sessions of agents: whose turn it is, and how much of their prompts came from the cache."""

from clairvoyant_cli.state.snapshot import SessionsState, SessionState
from tui.formatting import count, duration, share
from tui.styled_text import Line, Tone
from tui.table_layout import Column, Grid, number, words
from tui.view_state import ViewState

_STATES: dict[str, Tone] = {  # in the order in which they are sorted
    "running": "accent",
    "waiting": "ink",
    "held": "good",
    "parked": "warn",
    "resting": "faint",
}
_LOW_SHARE = 0.5  # a session that has less of its later prompts from the cache is read again and again


def rows(view: ViewState) -> int:
    return len(view.state.sessions.listed)


def facts(view: ViewState) -> Line:
    """How the sessions take turns, or how much of all prompts came from the cache; and what that saved."""
    sessions = view.state.sessions
    hit = hit_share(sessions)
    about = "~" if sessions.expected else ""
    text = sessions.summary or (f"{about}{share(hit)} from cache" if hit is not None else "")
    if sessions.saved_s:
        text = f"{text.partition(':')[0]}, {duration(sessions.saved_s)} of reading saved"
    return Line(f" {text} " if text else "", "soft")


def hit_share(of: SessionState | SessionsState) -> float | None:
    """Return the share of prompt tokens that came from the cache; None without any."""
    prompts = of.read_tokens + of.cached_tokens
    return of.cached_tokens / prompts if prompts else None


def _state(row: SessionState, view: ViewState, width: int) -> Line:
    away = row.calls_tool and row.state in ("held", "resting")
    line = Line("tool" if away else row.state, _STATES.get(row.state, "ink"))
    if row.hold_left_s is not None:
        return line.add(f" {duration(row.hold_left_s - view.drift_s)} left", "soft")
    return line.add(f" {duration(row.since_s + view.drift_s)}", "soft")


def _hit(row: SessionState, view: ViewState, width: int) -> Line:
    hit = hit_share(row)
    about = "~" if row.expected and hit is not None else ""
    return Line(
        about + share(hit), "warn" if row.turns > 1 and hit is not None and hit < _LOW_SHARE else "ink"
    )


SESSIONS: Grid[SessionState] = Grid(
    columns=(
        Column("id", 6, 9, lambda r, s, w: Line(" " * bool(r.parent)).add(r.id), lambda r: f"{r.id:>9}"),
        Column("agent", 11, 6, lambda r, s, w: Line(r.program), lambda r: r.program),
        Column("state", 15, 9, _state, lambda r: [*_STATES, r.state].index(r.state)),
        number("age", 6, 1, "age_s", tone="soft", grows=True),
        number("turns", 6, 2, "turns", count),
        number("context", 7, 5, "context_tokens", count),
        number("read", 6, 5, "read_tokens", count),
        number("cached", 6, 5, "cached_tokens", count),
        number("saved", 6, 4, "saved_s", tone="soft"),
        Column("hit", 4, 8, _hit, lambda r: hit_share(r) or 0.0, right=True),
        words("client", 8, 5, "client", lambda view: view.state.sessions.listed),
    ),
    rows=lambda view: view.state.sessions.listed,
    text=lambda row: f"{row.id} {row.program} {row.client} {row.state}",
    empty=lambda view: "No session of an agent.",
)
