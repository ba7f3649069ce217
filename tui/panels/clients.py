"""Draws the clients: queued and running requests, limits, tokens."""

from clairvoyant_cli.state.snapshot import ClientState
from tui.formatting import brief, count, duration
from tui.panels import programs
from tui.styled_text import Line, Tone
from tui.table_layout import Column, Grid, number, words
from tui.view_state import ViewState

_NEARLY = 0.75
_DAY_ROWS = 12


def body(view: ViewState, width: int, height: int) -> list[Line]:
    return CLIENTS.lines(view, width) if view.state.clients else [Line("No requests yet.", "soft")]


def page(view: ViewState, width: int, height: int) -> list[Line]:
    """Who has the slots, the clients with their limits, and the last 24 hours."""
    listed = [*programs.body(view, width, 0), Line(), *body(view, width, height), Line()]
    return [*listed, *programs.last_day(view, width, _DAY_ROWS)]


def _tone(has: int, may: int | None, otherwise: Tone = "ink") -> Tone:
    """The tone of a number at its limit, or near it."""
    if may is None or has < _NEARLY * may:
        return otherwise
    return "warn" if has < may else "alert"


def _of_limit(has: int, may: int | None) -> Line:
    if not has and may is None:
        return Line("·", "track")
    line = Line(count(has), _tone(has, may, "strong" if has else "soft"))
    return line if may is None else line.add("/", "faint").add(brief(may), "soft")


def _longest_s(client: ClientState, view: ViewState) -> float | None:
    return max((row.age_s for row in view.state.queue if row.client == client.name), default=None)


CLIENTS: Grid[ClientState] = Grid(
    columns=(
        words("name", 8, 9, "name", lambda view: view.state.clients, tone=lambda name: "ink", title="client"),
        Column("waiting", 9, 8, lambda r, s, w: _of_limit(r.waiting, r.max_waiting), right=True),
        Column("running", 7, 8, lambda r, s, w: _of_limit(r.running, r.max_running), right=True),
        Column("longest", 7, 7, lambda r, view, w: Line(duration(_longest_s(r, view))), right=True),
        number("weight", 6, 5, "weight", "{:g}".format, "soft"),
        number("tokens", 9, 5, "tokens", count),
        number("tau", 5, 5, "tau_s", lambda s: "none" if s == 0 else duration(s), title="own τ"),
        Column("priority", 9, 5, lambda r, s, w: Line("{}..{}".format(*r.priority), "soft"), right=True),
        # First tokens that came too late.
        number("late", 5, 5, "late", count, when=lambda view: bool(view.state.service_level)),
    ),
    rows=lambda view: view.state.clients,
)
