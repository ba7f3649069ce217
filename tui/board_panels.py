"""One record a panel: layout, keys, deck and help follow from it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tui.panels import clients, hardware, log, models, programs, requests, sessions, stats, timeline
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
    large screen divides: "facts" beside "machine", and "below" across both. "" has a page of its
    own.
    """

    name: str
    key: str
    side: Side
    body: Painter | Grid[Any]
    facts: Facts = lambda view: Line()  # beside its name
    rows: Callable[[ViewState], int] | None = None  # that it has to show
    usual: int = 0  # the same before the first state, or always
    more: int = 0  # rows that it takes besides on a large screen
    least: int = 0  # lines, with its name, that it has however little room there is
    depends: Callable[[ViewState], object] | None = None  # on what, if time alone does not change it
    of_daemon: bool = True  # it is empty before the first state, and grey while the daemon is lost
    none: str = ""  # what to say if it is asked for while it has no rows: it is not shown then


_NO_SESSION, _NO_PROGRAM = "no session of an agent yet", "no program has had a slot yet"
RECORDS = (
    PanelRecord("running", "1", "requests", requests.RUNNING, requests.running_facts, requests.slots, 2),
    PanelRecord("queue", "2", "requests", requests.QUEUE, requests.queue_facts, requests.queue_rows, 99),
    PanelRecord("timeline", "3", "picture", timeline.timeline, timeline.facts),
    PanelRecord("gpu", "4", "machine", hardware.body, hardware.facts, hardware.rows, 5, of_daemon=False),
    PanelRecord("models", "5", "machine", models.body, models.facts, models.rows, 4, least=3),
    PanelRecord("stats", "6", "facts", stats.body, stats.facts, stats.rows, 5, least=6),
    PanelRecord("recent", "7", "requests", requests.RECENT),
    PanelRecord(
        "programs", "8", "below", programs.body, programs.facts, programs.rows, more=11, none=_NO_PROGRAM
    ),
    PanelRecord("log", "9", "below", log.log, usual=99, least=3),
    PanelRecord(
        "sessions", "a", "requests", sessions.SESSIONS, sessions.facts, sessions.rows, none=_NO_SESSION
    ),
    PanelRecord("clients", "c", "", clients.body, rows=lambda view: len(view.state.clients), usual=1),
)
BY_NAME = {each.name: each for each in RECORDS}
PANELS = tuple(each.name for each in RECORDS if each.side)
