"""A panel of rows; only visible ones are drawn."""

from collections.abc import Sequence
from typing import Any

from textual import events

from tui.board_panels import PanelRecord
from tui.formatting import count
from tui.styled_text import Line, wrap
from tui.table_layout import Fitted, Grid
from tui.view_state import ViewState
from tui.widgets.canvas import MARGIN, Panel

_WHEEL_ROWS = 3
_HEADING = 2  # the rule and the column titles
_RULE = 3  # cells of it that are always seen


class Table(Panel):
    """Rows with a cursor. It stays on the request that it was moved to. Before that, and once that request
    has left the table, it is on none, so that no key acts on a request that nobody chose. Ended
    requests come at the top: without the focus, their table shows the first ones.
    """

    def __init__(self, record: PanelRecord, grid: Grid[Any]) -> None:
        super().__init__(record)
        self.grid = grid
        self.sort = self.filter = ""
        self.marks: dict[str, Any] = {}  # rows by id, None for one that has left
        self.rows: Sequence[Any] = ()
        self._sent = 0
        self._cursor = 0
        self._cursor_id = ""
        self._top = 0
        self._fitted: Fitted[Any] = Fitted(())

    def show(self, view: ViewState) -> None:
        self._arrange(view)
        super().show(view)

    def _arrange(self, view: ViewState) -> None:
        rows = self.grid.rows(view)
        left = self.screen.focused not in (None, self)  # None while the terminal has no focus
        if self.panel == "recent" and left and not self.marks:
            self._cursor, self._cursor_id, self._top = 0, "", 0
        self.rows, self._sent = self.grid.select(rows, self.sort, self.filter), len(rows)
        if self.marks:
            here = {row.id: row for row in self.rows}
            self.marks = {ident: here.get(ident) for ident in self.marks}
        if self._cursor_id and self.current is None:
            at = {row.id: at for at, row in enumerate(self.rows)}
            self._cursor = at.get(self._cursor_id, min(self._cursor, len(self.rows)))

    def body(self, view: ViewState, width: int, height: int) -> list[Line]:
        self._fitted = Fitted.of(self.grid, width, view)
        if not self.rows:
            text = "No match. Esc clears the filter." if self._sent else self.grid.empty(view)
            lines = [Line(f"  {line}", "soft") for line in wrap(text, width - 4)]
            return [Line(), *lines] if height > len(lines) + 1 else lines
        room = max(1, height - 1)
        top = min(max(self._top, self._cursor - room + 1), self._cursor)
        self._top = max(0, min(top, len(self.rows) - room))
        lines = [self._fitted.heading(self.sort)]
        for row in self.rows[self._top : self._top + room]:
            lines.append(line := self._fitted.draw(row, view))
            if row.id in self.marks:
                line[0] = ("•" + line[0][0][1:], "accent")
        return lines

    def lit_row(self) -> int | None:
        return _HEADING + self._cursor - self._top if self.current and self.has_focus else None

    def facts(self, view: ViewState) -> Line:
        """Return filter, counts, marks, own facts and visible range; own facts give way first."""
        kept = Line()
        if self.filter.strip():
            kept.add(f" /{self.filter} ", "accent")
            kept.add(f"{count(len(self.rows))} of {count(self._sent)} ", "soft")
        if (total := self.grid.total(view)) > self._sent:
            kept.add(f" first {self._sent:,} of {total:,} ", "warn")
        marked = sum(row is not None for row in self.marks.values())
        kept.add(f" {marked} marked " if marked else "", "accent")
        own, below = super().facts(view), Line()
        rows = self.size.height - _HEADING
        if len(self.rows) > rows > 0:
            last = min(len(self.rows), self._top + rows)
            below.add(f" ▲ {self._top:,}" if self._top else "", "accent")
            below.add(f" {self._top + 1:,}-{last:,} of {len(self.rows):,} ", "soft")
        room = self.size.width - self._label(self.panel).width - _RULE
        if kept.width + own.width + below.width <= room:
            kept.join(own)
        return kept.join(below) if kept.width + below.width <= room else kept

    @property
    def current(self) -> Any:
        """The row under the cursor, None if it is on none."""
        row = self.rows[self._cursor] if self._cursor < len(self.rows) else None
        return row if row is not None and row.id == self._cursor_id else None

    @property
    def chosen(self) -> list[Any]:
        """The marked rows that are shown; if none is marked, the one under the cursor."""
        return [row for row in (self.marks.values() if self.marks else [self.current]) if row is not None]

    @property
    def left(self) -> str:
        """The id of the request that was chosen and has left the table; "" if none was."""
        return "" if self.chosen else next(iter(self.marks), self._cursor_id)

    def unchoose(self) -> None:
        """Take the cursor and the marks off, and show the first rows again."""
        self.marks.clear()
        self._cursor, self._cursor_id, self._top = 0, "", 0
        self.redraw()

    def mark(self) -> None:
        """Mark or unmark the row under the cursor, and go to the next."""
        if self.current is not None and self.marks.pop(self._cursor_id, None) is None:
            self.marks[self._cursor_id] = self.current
        self.move(1)

    def reorder(self, sort: str, filter_by: str) -> None:
        self.sort, self.filter = sort, filter_by
        if self.view is not None:
            self._arrange(self.view)
        if self.current is None and not self.marks:
            self.unchoose()
        self.redraw()

    def sort_by(self, name: str) -> None:
        """Sort by a column; again to reverse."""
        self.reorder(f"-{name}" if name == self.sort else name, self.filter)

    def move(self, step: float, unit: str = "row") -> None:
        """Go some rows, pages or tables down or up; from where a request has left, to the one next to it."""
        rows = {"row": 1, "page": max(1, self.size.height - _HEADING - 1), "all": len(self.rows)}[unit]
        self._put(self._cursor + int(step * rows) - (step > 0 and self.current is None))

    def _put(self, index: int) -> None:
        self._cursor = max(0, min(index, len(self.rows) - 1))
        self._cursor_id = self.rows[self._cursor].id if self.rows else ""
        if not any(self.marks.values()):
            self.marks.clear()
        self.redraw()

    def on_mouse_scroll_down(self) -> None:
        self.move(_WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        self.move(-_WHEEL_ROWS)

    async def on_click(self, event: events.Click) -> None:
        left = MARGIN
        for column, width in self._fitted.columns if event.y == 1 else ():
            if left <= event.x <= left + width and column.sort is not None:
                self.sort_by(column.name)
            left += width + 1
        if event.y >= _HEADING and self._top + event.y - _HEADING < len(self.rows):
            self._put(self._top + event.y - _HEADING)
            if event.chain == 2:
                await self.app.run_action("detail", self.screen)
