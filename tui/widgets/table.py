"""A panel of rows; only visible ones are drawn."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Generic

from textual import events
from textual.binding import Binding, BindingType
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
    """Rows with a cursor. It stays on its line, or on its request while it `follows`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("home", "edge(0)", "First", show=False),
        Binding("end,G", "edge(1)", "Last", show=False),
    ]

    class Opened(Message):
        """A row was double-clicked."""

    def __init__(self, name: str, grid: Grid[RowT], facts: Facts | None = None) -> None:
        super().__init__(name, facts=facts, of=grid.of)
        self.grid = grid
        self.order = Order()
        self.marks: dict[str, RowT] = {}
        self.hidden: set[str] = set()
        self.rows: Sequence[RowT] = ()
        self.follows = False
        self._sent = 0
        self._total = 0
        self._cursor = 0
        self._cursor_id = ""
        self._top = 0
        self._fitted: Fitted[RowT] = Fitted(())
        self._heading: tuple[Order, Line] | None = None

    # -- what is shown ----------------------------------------------------------------------------------

    def show(self, view: ViewState) -> None:
        """Draw a scene."""
        if self._of is None or self._is_of is None or self._of(view) != self._is_of:
            self._arrange(view)
        super().show(view)

    def _arrange(self, view: ViewState) -> None:
        rows = self.grid.rows(view)
        self.rows = select(self.grid, rows, self.order)
        self._sent = len(rows)
        self._total = self.grid.total(view) if self.grid.total else len(rows)
        if self.marks:
            here = {self.grid.id(row): row for row in rows}
            self.marks = {ident: here[ident] for ident in self.marks if ident in here}
        self._follow()

    def _follow(self) -> None:
        """Move the cursor with its request, while it follows and the request is there."""
        ident = self.grid.id
        at = self._cursor
        if self.follows and not (self.current is not None and ident(self.current) == self._cursor_id):
            found = next((i for i, row in enumerate(self.rows) if ident(row) == self._cursor_id), None)
            self.follows = found is not None
            at = at if found is None else found
        self._put(at)

    def _put(self, index: int) -> None:
        self._cursor = max(0, min(index, len(self.rows) - 1))
        current = self.current
        self._cursor_id = self.grid.id(current) if current is not None else ""

    def body(self, view: ViewState, width: int, height: int) -> list[Line]:
        """Return the titles and the visible rows."""
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
        """Return filter, counts, marks, own facts and visible range; own facts give way first."""
        kept = Line()
        if self.order.filter.strip():
            kept.add(f" /{self.order.filter} ", "accent")
            kept.add(f"{count(len(self.rows))} of {count(self._sent)} ", "soft")
        if self._total > self._sent:
            kept.add(f" first {self._sent:,} of {self._total:,} ", "warn")
        kept.add(f" {len(self.marks)} marked " if self.marks else "", "accent")
        kept.add(" following " if self.follows else "", "accent")
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
        """The row under the cursor."""
        return self.rows[self._cursor] if self._cursor < len(self.rows) else None

    @property
    def chosen(self) -> list[RowT]:
        """The marked rows; if none is marked, the one under the cursor."""
        if self.marks:
            return list(self.marks.values())
        return [self.current] if self.current is not None else []

    def mark(self) -> None:
        """Mark or unmark the row under the cursor, and go to the next."""
        if self.current is not None:
            if self.marks.pop(self._cursor_id, None) is None:
                self.marks[self._cursor_id] = self.current
            self.action_move(1)

    def follow(self) -> bool:
        """Keep the cursor on its request, or on its line; return whether it follows."""
        self.follows = not self.follows and bool(self._cursor_id)
        self.redraw()
        return self.follows

    def reorder(self, order: Order) -> None:
        """Sort and filter differently."""
        self.order = order
        if self.view is not None:
            self._arrange(self.view)
        self.redraw()

    def sort_by(self, name: str) -> None:
        """Sort by a column; again to reverse."""
        again = name == self.order.by
        self.reorder(replace(self.order, by=name, reverse=again and not self.order.reverse))

    def show_column(self, name: str) -> None:
        """Show or hide a column."""
        self.hidden ^= {name}
        self.redraw()

    def cycle_sort(self, step: int) -> None:
        """Sort by the next column; after the last one, in the daemon's order."""
        names = ("", *self.grid.sortable)
        at = names.index(self.order.by) if self.order.by in names else 0
        self.reorder(replace(self.order, by=names[(at + step) % len(names)]))

    # -- keys and mouse ---------------------------------------------------------------------------------

    def action_move(self, step: int) -> None:
        """Go some rows down or up."""
        self.follows = False
        self._put(self._cursor + step)
        self.redraw()

    def action_page(self, direction: int) -> None:
        """Go a page down or up."""
        self.action_move(direction * max(1, self.size.height - _HEADING - 1))

    def action_edge(self, end: int) -> None:
        """Go to the first row or the last."""
        self.action_move(len(self.rows) if end else -len(self.rows))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.action_move(_WHEEL_ROWS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.action_move(-_WHEEL_ROWS)

    def on_click(self, event: events.Click) -> None:
        if event.y < 1:
            super().on_click(event)
        elif event.y == 1:
            column = self._fitted.column_at(event.x - MARGIN)
            if column is not None and column.sort is not None:
                self.sort_by(column.name)
        elif self._top + event.y - _HEADING < len(self.rows):
            self.action_move(self._top + event.y - _HEADING - self._cursor)
            if event.chain == 2:
                self.post_message(self.Opened())
