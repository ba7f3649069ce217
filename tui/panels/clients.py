"""Draws the clients: queued and running requests, limits, tokens."""

from clairvoyant_cli.state.snapshot import ClientState
from tui.formatting import brief, count, duration, spark
from tui.history import CLIENT_POINTS
from tui.styled_text import Line, Tone
from tui.table_layout import Column, Fitted, Grid, Order, words
from tui.view_state import ViewState

_NEARLY = 0.75


def body(view: ViewState, width: int) -> list[Line]:
    clients = CLIENTS.rows(view)
    if not clients:
        return [Line(CLIENTS.empty(view), "soft")]
    fitted = Fitted.of(CLIENTS, width, view)
    return [fitted.heading(Order()), *(fitted.draw(client, view) for client in clients)]


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


def _own_tau(client: ClientState, view: ViewState, width: int) -> Line:
    """The client's own starvation timeout; a dash if it has none."""
    text = "none" if client.tau_s == 0 else duration(client.tau_s)
    return Line(text, "track" if client.tau_s is None else "ink")


def _times(number: int) -> Line:
    return Line(count(number), "warn") if number else Line("·", "track")


def _past(client: ClientState, view: ViewState, width: int) -> Line:
    """Its queued and running requests, on one scale for all clients."""
    top = max(map(max, view.history.clients.values()), default=0)
    return Line(spark(view.history.clients.get(client.name, ()), width, top or 1.0), "accent")


def _priority(client: ClientState, view: ViewState, width: int) -> Line:
    return Line("{}..{}".format(*client.priority), "soft")


def _promised(view: ViewState) -> bool:
    return view.state.service_level is not None


CLIENTS: Grid[ClientState] = Grid(
    columns=(
        words(
            "name", "client", 8, 9, lambda r: r.name, lambda view: view.state.clients, tone=lambda name: "ink"
        ),
        Column("waiting", "waiting", 9, 8, lambda r, s, w: _of_limit(r.waiting, r.max_waiting), right=True),
        Column("running", "running", 7, 8, lambda r, s, w: _of_limit(r.running, r.max_running), right=True),
        Column(
            "weight",
            "weight",
            6,
            5,
            lambda r, s, w: Line(f"{r.weight:g}", "soft" if r.weight == 1.0 else "ink"),
            right=True,
        ),
        Column("tokens", "tokens", 9, 5, lambda r, s, w: Line(count(r.tokens)), right=True),
        Column("tau", "own τ", 5, 5, _own_tau, right=True),
        Column("priority", "priority", 9, 5, _priority, right=True),
        # First tokens that came too late.
        Column("late", "late", 5, 5, lambda r, s, w: _times(r.late), right=True, when=_promised),
        Column(
            "past", "last 10 min", CLIENT_POINTS, 1, _past, right=True, when=lambda s: bool(s.history.clients)
        ),
    ),
    rows=lambda view: view.state.clients,
    id=lambda row: row.name,
    text=lambda row: row.name,
    empty=lambda view: "No requests yet.",
)
