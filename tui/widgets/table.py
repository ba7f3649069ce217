"""A panel of rows: only those in sight are drawn, so a thousand cost what twenty do."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Generic

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from tui.formatting import count
from tui.grid import Fitted, Grid, Order, RowT, select
from tui.line import Line, wrap
from tui.view_state import ViewState
from tui.widgets.panel import MARGIN, Facts, Panel

_WHEEL_ROWS = 3
_HEADING = 2  # the rule and the column titles


class Table(Panel, Generic[RowT]):
    """Rows with a cursor. The cursor stays with its request when the order changes, not with the line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("home,g", "edge(0)", "First", show=False),
        Binding("end,G", "edge(1)", "Last", show=False),
    ]

    class Opened(Message):
        """A row was double-clicked."""

    def __init__(self, name: str, grid: Grid[RowT], facts: Facts | None = None) -> None:
        super().__init__(name, facts=facts)
        self.grid = grid
        self.order = Order()
        self.marks: set[str] = set()
        self.rows: Sequence[RowT] = ()
        self._total = 0
        self._cursor = 0
        self._cursor_id = ""
        self._top = 0
        self._fitted: Fitted[RowT] = Fitted(())

    # -- what is shown ----------------------------------------------------------------------------------

    def show(self, view: ViewState) -> None:
        """Draw a scene; the cursor follows its request."""
        self._arrange(view)
        super().show(view)

    def _arrange(self, view: ViewState) -> None:
        rows = self.grid.rows(view)
        self._total = len(rows)
        self.rows = select(self.grid, rows, self.order)
        if self.marks:
            self.marks &= {self.grid.id(row) for row in rows}
        self._follow()

    def _follow(self) -> None:
        """Put the cursor where its request has gone; if it is gone, stay at the same line."""
        ident = self.grid.id
        at = self._cursor
        if not (at < len(self.rows) and ident(self.rows[at]) == self._cursor_id):
            found = next((i for i, row in enumerate(self.rows) if ident(row) == self._cursor_id), None)
            self._put(found if found is not None else at)

    def _put(self, index: int) -> None:
        self._cursor = max(0, min(index, len(self.rows) - 1))
        self._cursor_id = self.grid.id(self.rows[self._cursor]) if self.rows else ""

    def body(self, view: ViewState, width: int, height: int) -> list[Line]:
        """Return the titles and the rows in sight."""
        self._fitted = Fitted.of(self.grid, width)
        if not self.rows:
            text = "No match. Esc clears the filter." if self._total else self.grid.empty(view)
            lines = [Line(f"  {line}", "soft") for line in wrap(text, width - 4)]
            return [Line(), *lines] if height > len(lines) + 1 else lines
        room = max(1, height - 1)
        self._scroll(room)
        shown = self.rows[self._top : self._top + room]
        lines = [self._fitted.heading(self.order)]
        for row in shown:
            line = self._fitted.draw(row, view)
            if self.grid.id(row) in self.marks:
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
        """The cursor's line, when the table has the focus."""
        if not self.rows or not self.has_focus:
            return frozenset()
        return frozenset({_HEADING + self._cursor - self._top})

    def facts(self, view: ViewState) -> Line:
        """Return the counts, the filter and what lies below."""
        line = Line()
        if self.order.filter:
            line.add(f" /{self.order.filter} ", "accent").add(f"{count(len(self.rows))} of ", "soft")
            line.add(f"{count(self._total)} ", "soft")
        if self.marks:
            line.add(f" {len(self.marks)} marked ", "accent")
        line.join(super().facts(view))
        room = self.size.height - _HEADING
        if len(self.rows) > room > 0:
            last = min(len(self.rows), self._top + room)
            line.add(f" {self._top + 1}-{last} of {count(len(self.rows))} ", "soft")
        return line

    # -- what is chosen ---------------------------------------------------------------------------------

    @property
    def current(self) -> RowT | None:
        """The row under the cursor."""
        return self.rows[self._cursor] if self.rows else None

    @property
    def chosen(self) -> list[RowT]:
        """The marked rows; if none is marked, the one under the cursor."""
        if self.marks:
            return [row for row in self.rows if self.grid.id(row) in self.marks]
        return [self.current] if self.current is not None else []

    def mark(self) -> None:
        """Mark the row under the cursor, or take its mark away, and go to the next."""
        if self._cursor_id:
            self.marks ^= {self._cursor_id}
            self.action_move(1)

    def reorder(self, order: Order) -> None:
        """Sort and filter differently."""
        self.order = order
        if self.view is not None:
            self._arrange(self.view)
        self.redraw()

    def cycle_sort(self, step: int) -> None:
        """Sort by the next column; past the last one the daemon's own order comes back."""
        names = ("", *self.grid.sortable)
        at = names.index(self.order.by) if self.order.by in names else 0
        self.reorder(replace(self.order, by=names[(at + step) % len(names)]))

    # -- keys and mouse ---------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        """Go some rows down or up."""
        self._put(self._cursor + step)
        self.redraw()

    def action_page(self, direction: int) -> None:
        """Go a page down or up."""
        self.action_move(direction * max(1, self.size.height - _HEADING - 1))

    def action_edge(self, end: int) -> None:
        """Go to the first row or the last."""
        self._put(len(self.rows) - 1 if end else 0)
        self.redraw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down."""
        self.action_move(_WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up."""
        self.action_move(-_WHEEL_ROWS)

    def on_click(self, event: events.Click) -> None:
        """Put the cursor on a row, open it on a double click, or sort by a title."""
        if event.y < 1:
            super().on_click(event)
        elif event.y == 1:
            column = self._fitted.column_at(event.x - MARGIN)
            if column is not None and column.sort is not None:
                again = column.name == self.order.by
                self.reorder(replace(self.order, by=column.name, reverse=again and not self.order.reverse))
        elif self._top + event.y - _HEADING < len(self.rows):
            self._put(self._top + event.y - _HEADING)
            self.redraw()
            if event.chain == 2:
                self.post_message(self.Opened())
