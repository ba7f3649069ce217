"""Rows and columns without a widget: which rows are shown, in what order, and how wide each column is."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tui.styled_text import Line, Tone, cell, clip
from tui.view_state import ViewState

RowT = TypeVar("RowT")
SortKey = float | str
_NARROWEST = 4


@dataclass(frozen=True, slots=True)
class Order:
    """How a table is sorted and filtered; an empty `by` keeps the daemon's order."""

    by: str = ""
    reverse: bool = False
    filter: str = ""


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """One column. `draw` gives at most `width` cells. `from_width` is the narrowest table that shows it;
    a `flex` column takes a share of what is left; `when` says of what states it tells anything.
    """

    name: str
    title: str
    width: int
    draw: Callable[[RowT, ViewState, int], Line]
    sort: Callable[[RowT], SortKey] | None = None
    right: bool = False
    from_width: int = 0
    flex: int = 0
    when: Callable[[ViewState], bool] = lambda view: True


@dataclass(frozen=True, slots=True)
class Grid(Generic[RowT]):
    """A kind of table. `text` is what a filter looks at; `of` returns what the drawing depends on, if
    time alone does not change it; `total` counts all rows where the daemon sends only the first.
    """

    columns: tuple[Column[RowT], ...]
    rows: Callable[[ViewState], Sequence[RowT]]
    id: Callable[[RowT], str]
    text: Callable[[RowT], str]
    empty: Callable[[ViewState], str]
    of: Callable[[ViewState], object] | None = None
    total: Callable[[ViewState], int] | None = None

    def column(self, name: str) -> Column[RowT] | None:
        """Return the column of this name."""
        return next((column for column in self.columns if column.name == name), None)


def select(grid: Grid[RowT], rows: Sequence[RowT], order: Order) -> Sequence[RowT]:
    """Return the rows that pass the filter, sorted. Every word must match; a word after `!` must not."""
    words = [word for word in order.filter.lower().split() if word != "!"]
    if words:
        rows = [row for row in rows if _matches(grid.text(row).lower(), words)]
    column = grid.column(order.by)
    if column is None or column.sort is None:
        return rows[::-1] if order.reverse else rows
    return sorted(rows, key=column.sort, reverse=order.reverse)


def _matches(text: str, words: Sequence[str]) -> bool:
    return all(word[1:] not in text if word.startswith("!") else word in text for word in words)


@dataclass(frozen=True, slots=True)
class Fitted(Generic[RowT]):
    """A grid's columns at one width: those that are shown, and the cells of each."""

    columns: tuple[tuple[Column[RowT], int], ...]

    @classmethod
    def of(cls, grid: Grid[RowT], width: int, view: ViewState, hidden: Container[str] = ()) -> "Fitted[RowT]":
        """Choose the columns for a width; flexible ones share what is left over, or what is missing."""
        shown = [
            column
            for column in grid.columns
            if width >= column.from_width and column.name not in hidden and column.when(view)
        ]
        spare = width - sum(column.width for column in shown) - (len(shown) - 1)
        flex = sum(column.flex for column in shown)
        cells: list[tuple[Column[RowT], int]] = []
        for column in shown:
            extra = spare * column.flex // flex if column.flex else 0
            cells.append((column, max(_NARROWEST, column.width + extra) if column.flex else column.width))
        return cls(tuple(cells))

    def heading(self, order: Order) -> Line:
        """Return the titles; the one sorted by carries an arrow."""
        line = Line()
        for column, width in self.columns:
            if line.width:
                line.add(" ")
            sorted_by = column.name == order.by or (not order.by and order.reverse and column.title == "#")
            arrow = ("↓" if order.reverse else "↑") * sorted_by
            tone: Tone = "accent" if sorted_by else "faint"
            title = clip(column.title, width - len(arrow))  # the arrow stays, whatever goes
            line.add(cell(title + arrow, width, right=column.right), tone)
        return line

    def draw(self, row: RowT, view: ViewState) -> Line:
        """Draw one row."""
        line, blank = Line(), 0
        for column, width in self.columns:
            drawn = column.draw(row, view, width)
            if drawn.width > width:
                drawn = drawn.fit(width)
            room = width - drawn.width
            before, after = (room, 0) if column.right else (0, room)
            line.add(" " * (blank + before)).join(drawn)
            blank = after + 1
        return line.add(" " * (blank - 1))

    def column_at(self, x: int) -> Column[RowT] | None:
        """Return the column under the cell `x`."""
        left = 0
        for column, width in self.columns:
            if left <= x <= left + width:
                return column
            left += width + 1
        return None
