"""Rows and columns without a widget: which rows are shown, in what order, and how wide each column is."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

from tui.formatting import duration
from tui.styled_text import Line, Tone, cell, cells, clip
from tui.view_state import ViewState

RowT = TypeVar("RowT")
NAMED = 6  # from this importance on, other columns go before the texts of a column are cut
_WIDEST_BAR = 24


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """One column. `draw` gives at most `width` cells. Where room lacks, the columns that `matter` least go.
    `holds` yields the texts that it is to show whole if it can: it is `width` cells wide or more, and not
    shown if they are all empty. It is `most` cells wide if there is room; a `flex` column takes what is
    left, up to that. `when` says of what states it tells anything.
    """

    name: str
    width: int
    matter: int
    draw: Callable[[RowT, ViewState, int], Line]
    sort: Callable[[RowT], Any] | None = None
    title: str = ""  # if it is not the name
    right: bool = False
    holds: Callable[[ViewState], Iterable[str]] | None = None
    most: int = 0
    flex: bool = False
    when: Callable[[ViewState], bool] = lambda view: True

    def needs(self, view: ViewState) -> int:
        """Return how many cells its texts take; 0 if it has nothing to show."""
        if not self.when(view):
            return 0
        if self.holds is None:
            return self.width
        longest = max(map(cells, self.holds(view)), default=0)
        return longest and max(longest, self.width, len(self.title or self.name))


@dataclass(frozen=True, slots=True)
class Grid(Generic[RowT]):
    """A kind of table. `text` is what a filter looks at; `of` returns what the drawing depends on, if
    time alone does not change it; `total` counts all rows where the daemon sends only the first.
    """

    columns: tuple[Column[RowT], ...]
    rows: Callable[[ViewState], Sequence[RowT]]
    empty: Callable[[ViewState], str] = lambda view: ""
    text: Callable[[RowT], str] = str
    of: Callable[[ViewState], object] | None = None
    total: Callable[[ViewState], int] = lambda view: 0

    def select(self, rows: Sequence[RowT], sort: str, filter_by: str) -> Sequence[RowT]:
        """Return the rows that pass the filter, sorted by a column, downwards after a minus, by none if "".

        Every word of the filter must match; a word after `!` must not.
        """
        for word in filter_by.lower().split():
            wanted, word = not word.startswith("!"), word.removeprefix("!")
            if word:
                rows = [row for row in rows if (word in self.text(row).lower()) is wanted]
        key = next((each.sort for each in self.columns if each.name == sort.lstrip("-")), None)
        return rows if key is None else sorted(rows, key=key, reverse=sort.startswith("-"))

    def lines(self, view: ViewState, width: int, most: int | None = None) -> list[Line]:
        """Return the titles and the first rows."""
        fitted = Fitted.of(self, width, view)
        return [fitted.heading(), *(fitted.draw(row, view) for row in self.rows(view)[:most])]


def heeded(view: ViewState) -> bool:
    return view.state.urgency.heeded


def words(
    name: str,
    width: int,
    matter: int,
    field: str,
    rows: Callable[[ViewState], Iterable[Any]],
    form: Callable[[Any, ViewState], str] = lambda text, view: text,
    tone: Callable[[Any], Tone] = lambda row: "soft",
    **more: Any,
) -> Column[Any]:
    """Make a column of texts as wide as those of all `rows`, sorted by what is not formatted yet."""
    of = attrgetter(field)
    return Column(
        name,
        width,
        matter,
        lambda row, view, width: Line(form(of(row), view), tone(row)),
        of,
        holds=lambda view: (form(text, view) for text in {of(row) for row in rows(view)}),
        **more,
    )


def number(
    name: str,
    width: int,
    matter: int,
    field: str,
    form: Callable[[float | None], str] = duration,
    tone: Tone = "ink",
    title: str = "",
    *,
    grows: bool = False,
    **more: Any,
) -> Column[Any]:
    """Make a column of numbers; a time that `grows` also does so between two states."""
    of = attrgetter(field)

    def draw(row: Any, view: ViewState, width: int) -> Line:
        return Line(form(of(row) + view.drift_s if grows else of(row)), tone)

    return Column(name, width, matter, draw, lambda row: of(row) or 0.0, title, right=True, **more)


@dataclass(frozen=True, slots=True)
class Fitted(Generic[RowT]):
    """A grid's columns at one width: those that are shown, and the cells of each."""

    columns: tuple[tuple[Column[RowT], int], ...]

    @classmethod
    def of(cls, grid: Grid[RowT], width: int, view: ViewState) -> "Fitted[RowT]":
        """Choose the columns for a width, and share it out."""
        shown = {each.name: each for each in grid.columns}
        sizes = {name: size for name, column in shown.items() if (size := column.needs(view))}
        for name in sorted(sizes, key=lambda name: shown[name].matter):
            lacks = sum(sizes.values()) + len(sizes) - 1 - width
            matter = shown[name].matter
            gives = sum(size - shown[n].width for n, size in sizes.items() if shown[n].matter <= matter)
            if lacks <= 0 or len(sizes) == 1 or (matter >= NAMED and lacks <= gives):
                break
            del sizes[name]
        spare = width - sum(sizes.values()) - len(sizes) + 1
        for _ in range(-spare):  # the texts that matter least are cut, the longest first
            cut = (name for name, size in sizes.items() if size > shown[name].width)
            sizes[max(cut, key=lambda name: (-shown[name].matter, sizes[name]), default=name)] -= 1
        for name, size in sizes.items():
            column = shown[name]
            more = min(spare, (column.most or _WIDEST_BAR) - size) if column.flex else column.most - size
            if 0 < more <= spare:
                sizes[name] += more
                spare -= more
        return cls(tuple((shown[name], size) for name, size in sizes.items()))

    def heading(self, sort: str = "") -> Line:
        """Return the titles; the one sorted by carries an arrow."""
        line = Line()
        for column, width in self.columns:
            arrow = ("↓" if sort.startswith("-") else "↑") * (column.name == sort.lstrip("-"))
            title = clip((column.title or column.name).strip(), width - len(arrow))  # the arrow stays
            line.add(" " * bool(line))
            line.add(cell(title + arrow, width, right=column.right), "accent" if arrow else "faint")
        return line

    def draw(self, row: RowT, view: ViewState) -> Line:
        line, blank = Line(), 0
        for column, width in self.columns:
            drawn = column.draw(row, view, width).fit(width)
            room = width - drawn.width
            before, after = (room, 0) if column.right else (0, room)
            line.add(" " * (blank + before)).join(drawn)
            blank = after + 1
        return line.add(" " * (blank - 1))
