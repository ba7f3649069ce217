"""One record a panel: layout, keys, deck and help follow from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tui.panels import clients, hardware, log, models, plots, programs, requests, sessions, stats, timeline
from tui.styled_text import Line
from tui.table_layout import Grid
from tui.view_state import ViewState

Painter = Callable[[ViewState, int, int], list[Line]]
Facts = Callable[[ViewState], Line]
Side = Literal["requests", "picture", "facts", "machine", "below", ""]


@dataclass(frozen=True, slots=True)
class PanelRecord:
    """What a panel is: a painter or the grid of a table, and its place.

    `side`: a "picture" is at the top, "requests" are the left column. The others are the right one, which a
    large screen divides: "facts" beside "machine", and "below" across both. "" is shown by presets only.
    """

    name: str
    key: str
    side: Side = ""
    painter: Painter | None = None
    grid: Grid[Any] | None = None
    facts: Facts = lambda view: Line()  # beside its name
    rows: Callable[[ViewState], int] | None = None  # that it has to show
    usual: int = 0  # the same before the first state, or always
    more: int = 0  # rows that it takes besides on a large screen
    least: int = 0  # lines, with its name, that it has however little room there is
    depends: Callable[[ViewState], object] | None = None  # on what, if time alone does not change it
    of_daemon: bool = True  # it is empty before the first state, and grey while the daemon is lost
    none: str = ""  # what to say if it is asked for while it has no rows: it is not shown then


RECORDS = (
    PanelRecord(
        "running",
        "1",
        "requests",
        grid=requests.RUNNING,
        facts=requests.running_facts,
        rows=lambda view: sum(server.slots for server in view.state.backends),
        usual=2,
    ),
    PanelRecord(
        "queue",
        "2",
        "requests",
        grid=requests.QUEUE,
        facts=requests.queue_facts,
        rows=requests.queue_rows,
        usual=99,
    ),
    PanelRecord("timeline", "3", "picture", timeline.timeline, facts=timeline.facts),
    PanelRecord(
        "gpu",
        "4",
        "machine",
        hardware.body,
        facts=hardware.facts,
        rows=hardware.rows,
        usual=5,
        of_daemon=False,
    ),
    PanelRecord(
        "models", "5", "machine", models.body, facts=models.facts, rows=models.rows, usual=4, least=3
    ),
    PanelRecord("stats", "6", "facts", stats.body, facts=stats.facts, rows=stats.rows, usual=5, least=6),
    PanelRecord("recent", "7", "requests", grid=requests.RECENT),
    PanelRecord("plots", "8", "picture", plots.plots, depends=plots.of),
    PanelRecord(
        "programs",
        "c",
        "below",
        programs.body,
        facts=programs.facts,
        rows=programs.rows,
        more=11,
        none="no program has had a slot yet",
    ),
    PanelRecord("log", "9", "below", log.log, usual=99, least=3),
    PanelRecord("graph", "0", "picture", plots.graph, facts=plots.graph_facts, depends=plots.of),
    PanelRecord(
        "sessions",
        "a",
        "requests",
        grid=sessions.SESSIONS,
        facts=sessions.facts,
        rows=lambda view: len(view.state.sessions.listed),
        none="no session of an agent yet",
    ),
    PanelRecord("clients", "c", "", clients.body, rows=lambda view: len(view.state.clients), usual=1),
)
BY_NAME = {each.name: each for each in RECORDS}
PANELS = tuple(each.name for each in RECORDS if each.side)
PICTURES = tuple(each.name for each in RECORDS if each.side == "picture")
"""One of them is at the top, unless the terminal is small."""
