"""Rows and columns without a widget: which rows are shown, in what order, and how wide each column is."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from clairvoyant_cli.state import selection
from clairvoyant_cli.state.selection import Order, Selection, SortKey
from tui.styled_text import Line, Tone, cell, clip
from tui.view_state import ViewState

RowT = TypeVar("RowT")
_NARROWEST = 4


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
    """A kind of table. `text` is what a filter looks at, `of_group` names the group of a kind that a row is
    of, `of` gives what the drawn rows are of, where time alone does not change them. Where `rows` are but a
    window of all there are, so many stand `before` them, and there are `total`; `chosen` tells by what order
    a daemon has chosen them, where it was asked to.
    """

    columns: tuple[Column[RowT], ...]
    rows: Callable[[ViewState], Sequence[RowT]]
    id: Callable[[RowT], str]
    text: Callable[[RowT], str]
    empty: Callable[[ViewState], str]
    of_group: Callable[[RowT, str], str] = lambda row, kind: ""
    of: Callable[[ViewState], object] | None = None
    before: Callable[[ViewState], int] = lambda view: 0
    total: Callable[[ViewState], int] | None = None
    chosen: Callable[[ViewState], Selection | None] = lambda view: None

    def column(self, name: str) -> Column[RowT] | None:
        """Return the column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    def window(self, view: ViewState) -> tuple[int, int]:
        """Return how many rows stand before those given, and how many there are."""
        return self.before(view), self.total(view) if self.total else len(self.rows(view))

    @property
    def sortable(self) -> tuple[str, ...]:
        """The names of the columns that can be sorted by."""
        return tuple(column.name for column in self.columns if column.sort)


def select(grid: Grid[RowT], rows: Sequence[RowT], order: Order) -> Sequence[RowT]:
    """Return the rows that pass the filter, sorted."""
    column = grid.column(order.by)
    sort = column.sort if column is not None else None
    return selection.select(rows, order, words=grid.text, group=grid.of_group, sort=sort)


@dataclass(frozen=True, slots=True)
class Fitted(Generic[RowT]):
    """A grid's columns at one width: those that are shown, and the cells of each."""

    columns: tuple[tuple[Column[RowT], int], ...]

    @classmethod
    def of(cls, grid: Grid[RowT], width: int, view: ViewState, hidden: Container[str] = ()) -> "Fitted[RowT]":
        """Choose the columns for a width, those that are hidden left out. The flexible ones share what is
        left over, or what is missing.
        """
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
