"""A panel of rows; only visible ones are drawn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic

from textual import events
from textual.message import Message

from tui.formatting import count
from tui.styled_text import Line, wrap
from tui.table_layout import Fitted, Grid, Order, RowT, select
from tui.view_state import ViewState
from tui.widgets.panel import MARGIN, Facts, Panel

_WHEEL_ROWS = 3
_HEADING = 2  # the rule and the column titles
_RULE = 3  # cells of it that are always seen


class Table(Panel, Generic[RowT]):
    """Rows with a cursor. It stays on the request that it was moved to. Before that, and once that request
    has left the table, it is on none, so that no key acts on a request that nobody chose.
    """

    class Opened(Message):
        """A row was double-clicked."""

    def __init__(self, name: str, grid: Grid[RowT], facts: Facts | None = None) -> None:
        super().__init__(name, facts=facts, of=grid.of)
        self.grid = grid
        self.order = Order()
        self.marks: dict[str, RowT | None] = {}
        self.hidden: set[str] = set()
        self.rows: Sequence[RowT] = ()
        self._sent = 0
        self._total = 0
        self._cursor = 0
        self._cursor_id = ""
        self._is_on_row = False
        self._top = 0
        self._fitted: Fitted[RowT] = Fitted(())
        self._heading: tuple[Order, Line] | None = None

    # -- what is shown ----------------------------------------------------------------------------------

    def show(self, view: ViewState) -> None:
        if self._of is None or self._is_of is None or self._of(view) != self._is_of:
            self._arrange(view)
        super().show(view)

    def _arrange(self, view: ViewState) -> None:
        rows = self.grid.rows(view)
        self.rows = select(self.grid, rows, self.order)
        self._sent = len(rows)
        self._total = self.grid.total(view) if self.grid.total else len(rows)
        if self.marks:
            here = {self.grid.id(row): row for row in self.rows}
            self.marks = {ident: here.get(ident) for ident in self.marks}
        self._follow()

    def _follow(self) -> None:
        ident, at = self.grid.id, self._cursor
        if self._cursor_id and not (at < len(self.rows) and ident(self.rows[at]) == self._cursor_id):
            found = next((i for i, row in enumerate(self.rows) if ident(row) == self._cursor_id), None)
            self._is_on_row = found is not None
            self._cursor = min(at, len(self.rows)) if found is None else found
        elif self._cursor_id:
            self._is_on_row = True

    def _put(self, index: int) -> None:
        self._cursor = max(0, min(index, len(self.rows) - 1))
        self._is_on_row = bool(self.rows)
        self._cursor_id = self.grid.id(self.rows[self._cursor]) if self.rows else ""
        if not any(self.marks.values()):
            self.marks.clear()

    def body(self, view: ViewState, width: int, height: int) -> list[Line]:
        fitted = Fitted.of(self.grid, width, view, self.hidden)
        if self._heading is None or (fitted, self.order) != (self._fitted, self._heading[0]):
            self._fitted, self._heading = fitted, (self.order, fitted.heading(self.order))
        if not self.rows:
            text = "No match. Esc clears the filter." if self._sent else self.grid.empty(view)
            lines = [Line(f"  {line}", "soft") for line in wrap(text, width - 4)]
            return [Line(), *lines] if height > len(lines) + 1 else lines
        room = max(1, height - 1)
        self._scroll(room)
        lines = [self._heading[1]]
        for row in self.rows[self._top : self._top + room]:
            line = self._fitted.draw(row, view)
            if self.marks and self.grid.id(row) in self.marks:
                line.spans[0] = ("•" + line.spans[0][0][1:], "accent")
            lines.append(line)
        return lines

    def _scroll(self, room: int) -> None:
        if self._cursor < self._top:
            self._top = self._cursor
        elif self._cursor >= self._top + room:
            self._top = self._cursor - room + 1
        self._top = max(0, min(self._top, len(self.rows) - room))

    def lit_rows(self) -> frozenset[int]:
        if not self._is_on_row or not self.has_focus:
            return frozenset()
        return frozenset({_HEADING + self._cursor - self._top})

    def facts(self, view: ViewState) -> Line:
        """Return filter, counts, marks, own facts and visible range; own facts give way first."""
        kept = Line()
        if self.order.filter.strip():
            kept.add(f" /{self.order.filter} ", "accent")
            kept.add(f"{count(len(self.rows))} of {count(self._sent)} ", "soft")
        if self._total > self._sent:
            kept.add(f" first {self._sent:,} of {self._total:,} ", "warn")
        marked = sum(row is not None for row in self.marks.values())
        kept.add(f" {marked} marked " if marked else "", "accent")
        own, below = super().facts(view), Line()
        rows = self.size.height - _HEADING
        if len(self.rows) > rows > 0:
            last = min(len(self.rows), self._top + rows)
            below.add(f" {self._top + 1:,}-{last:,} of {len(self.rows):,} ", "soft")
        room = self.size.width - self._label(self.panel).width - _RULE
        if kept.width + own.width + below.width <= room:
            kept.join(own)
        return kept.join(below) if kept.width + below.width <= room else kept

    # -- what is chosen ---------------------------------------------------------------------------------

    @property
    def current(self) -> RowT | None:
        return self.rows[self._cursor] if self._is_on_row else None

    @property
    def chosen(self) -> list[RowT]:
        """The marked rows that are shown; if none is marked, the one under the cursor."""
        if self.marks:
            return [row for row in self.marks.values() if row is not None]
        return [self.current] if self.current is not None else []

    @property
    def left(self) -> str:
        """The id of the request that was chosen and has left the table; "" if none was."""
        return "" if self.chosen else next(iter(self.marks), self._cursor_id)

    def unchoose(self) -> None:
        """Take the cursor and the marks off, and show the first rows again."""
        self.marks.clear()
        self._cursor, self._cursor_id, self._is_on_row, self._top = 0, "", False, 0
        self.redraw()

    def forget_marks(self) -> None:
        """Choose nothing, if what was marked has left."""
        if self.marks:
            self.marks.clear()
            self._cursor_id, self._is_on_row = "", False
            self.redraw()

    def mark(self) -> None:
        """Mark or unmark the row under the cursor, and go to the next."""
        if self.current is not None and self.marks.pop(self._cursor_id, None) is None:
            self.marks[self._cursor_id] = self.current
        self.move(1)

    def reorder(self, order: Order) -> None:
        self.order = order
        if self.view is not None:
            self._arrange(self.view)
        if not self._is_on_row and not self.marks:
            self.unchoose()
        self.redraw()

    def sort_by(self, name: str) -> None:
        """Sort by a column; again to reverse."""
        again = name == self.order.by
        self.reorder(replace(self.order, by=name, reverse=again and not self.order.reverse))

    # -- keys and mouse ---------------------------------------------------------------------------------

    def move(self, step: float, unit: str = "row") -> None:
        """Go some rows, pages or tables down or up; from where a request has left, to the one next to it."""
        rows = {"row": 1, "page": max(1, self.size.height - _HEADING - 1), "all": len(self.rows)}[unit]
        self._put(self._cursor + int(step * rows) - (step > 0 and not self._is_on_row))
        self.redraw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.move(_WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.move(-_WHEEL_ROWS)

    def on_click(self, event: events.Click) -> None:
        if event.y < 1:
            super().on_click(event)
        elif event.y == 1:
            column = self._fitted.column_at(event.x - MARGIN)
            if column is not None and column.sort is not None:
                self.sort_by(column.name)
        elif self._top + event.y - _HEADING < len(self.rows):
            self._put(self._top + event.y - _HEADING)
            self.redraw()
            if event.chain == 2:
                self.post_message(self.Opened())
