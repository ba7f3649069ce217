"""What the page of `top --web` shows: the panels of `top`, each by its own painter, at the page's own width.

A text is a list of pieces, each with its tone, which is a class of the page's style. A page has two columns,
and one if it is narrow.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clairvoyant_cli.state.snapshot import FinishedRequest, QueuedRequest, RunningRequest
from tui.board_panels import RECORDS, PanelRecord
from tui.palette import COLOURS
from tui.panels import header
from tui.panels.detail import detail
from tui.panels.log import went_wrong
from tui.styled_text import Line
from tui.table_layout import Fitted, Grid
from tui.view_state import ViewState

NARROW = 60
_ONE_LINE = 1000  # cells, of a text that the page wraps
_MOST = {"queue": (20, 200), "recent": (10, 30), "programs": (0, 18), "log": (12, 12)}
"""How many rows or lines a panel has on a narrow page, and on others; the rest have `_LINES`."""
_LINES = 40
_DIALOG, _MARGIN = 116, 6  # cells of the dialog, and how much less than a narrow page it has
_GRAPH = PanelRecord("graph", "0", "picture", lambda view, width, height: [])  # the page has room for it
_WRONG = PanelRecord("what went wrong", "w", "below", went_wrong)


def painted(view: ViewState, left: int, right: int, shown: str = "") -> Mapping[str, Any]:
    """Return what a page draws. `left` and `right` are the widths of its columns in cells, and `shown` is the
    id of the request in its dialog.
    """
    narrow = left < NARROW
    _, facts, _ = header.header(replace(view, where=""), _ONE_LINE, 3)
    head = (header.worth(view, _ONE_LINE), facts, Line(header.bottleneck(view), "soft"))
    return {
        "head": list(map(_bare, head)),
        "panels": [_panel(record, view, left, right, narrow) for record in (*RECORDS, _GRAPH, _WRONG)],
        "detail": detail(view, shown, min(left - _MARGIN, _DIALOG)) if shown else [],
    }


def _bare(line: Line) -> Line:
    """Drop the blanks at both ends, by which a line of the terminal is placed."""
    bare, blank = Line(), ""
    for text, tone in line:
        text = text if bare else text.lstrip()
        bare.add(blank).add(text.rstrip(), tone)
        blank = text[len(text.rstrip()) :]
    return bare


def _panel(record: PanelRecord, view: ViewState, left: int, right: int, narrow: bool) -> dict[str, Any]:
    on_left = record.side == "requests" or record.name == "timeline"
    told = {"name": record.name, "key": record.key, "left": on_left, "facts": record.facts(view)}
    if record.none or not record.side:  # it is shown while it has rows
        told["none"] = record.rows is not None and not record.rows(view)
    if record.side == "picture":  # the page draws it
        return told
    most = _MOST.get(record.name, (_LINES, _LINES))[not narrow]
    if isinstance(record.body, Grid):
        return told | _table(record.body, view, left, most)
    return told | {"lines": record.body(view, right, most)[:_LINES]}


def _table(grid: Grid[Any], view: ViewState, width: int, most: int) -> dict[str, Any]:
    """Return the titles of the columns that fit, and the cells of the first rows."""
    rows, columns = grid.rows(view), Fitted.of(grid, width, view).columns
    return {
        "titles": [((each.title or each.name).strip(), each.right) for each, _ in columns],
        "rows": [
            (
                row.id,
                isinstance(row, QueuedRequest | RunningRequest | FinishedRequest),
                [each.draw(row, view, cells).fit(cells) for each, cells in columns],
            )
            for row in rows[:most]
        ],
        "more": max(0, max(len(rows), grid.total(view)) - most),
        "lines": [] if rows else [Line(grid.empty(view), "soft")],
    }


def style() -> str:
    """Return the colours of the terminal as CSS: dark, light, and for those who want more contrast."""
    night, day, contrast = (
        ":root {" + "".join(f" --{row[0]}: {row[at]};" for row in COLOURS) + " }" for at in (1, 2, 3)
    )
    return (
        f"{night}\n@media (prefers-color-scheme: light) {{ {day} }}\n"
        f"@media (prefers-contrast: more) {{ {contrast} }}\n"
    )
