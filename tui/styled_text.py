"""Lines of text with tones ("short", "alert"): painters return them, the palette colours them."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Literal, Self

from rich.cells import cell_len, set_cell_size

from clairvoyant_cli.errors import printable

Tone = Literal[
    "ink",  # what is to be read
    "strong",  # what is to be read first
    "soft",  # what explains it
    "faint",  # headings, units, what may be overlooked
    "track",  # rules and the empty part of a bar
    "accent",
    "short",
    "medium",
    "long",
    "good",
    "warn",
    "alert",
    "badge",  # inverse accent
    "siren",  # inverse alert
]


_GROUNDED = frozenset({"badge", "siren"})
"""The tones that colour the ground, and a blank with it."""


class Line:
    """Text with tones, `width` cells wide; grows to the right."""

    __slots__ = ("spans", "width")

    def __init__(self, text: str = "", tone: Tone = "ink") -> None:
        self.spans: list[tuple[str, Tone]] = []
        self.width = 0
        if text:
            text, self.width = _measured(text)
            self.spans.append((text, tone))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self.spans == other.spans

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"Line({self.plain!r})"

    @property
    def plain(self) -> str:
        return "".join(text for text, _ in self.spans)

    def add(self, text: str, tone: Tone = "ink") -> Self:
        """Append text, made printable. Blanks continue the tone before them: fewer pieces to draw."""
        if text:
            text, width = _measured(text)
            self.width += width
            spans = self.spans
            if spans:
                before, had = spans[-1]
                if had == tone or (text.isspace() and had not in _GROUNDED and tone not in _GROUNDED):
                    spans[-1] = (before + text, had)
                    return self
            spans.append((text, tone))
        return self

    def join(self, other: "Line") -> Self:
        mine, theirs = self.spans, other.spans
        if mine and theirs and mine[-1][1] == theirs[0][1]:
            text, tone = theirs[0]
            mine[-1] = (mine[-1][0] + text, tone)
            mine += theirs[1:]
        else:
            mine += theirs
        self.width += other.width
        return self

    def pad(self, width: int) -> Self:
        """Append spaces up to `width` cells."""
        if width > self.width:
            self.add(" " * (width - self.width), "ink")
        return self

    def fit(self, width: int) -> "Line":
        """Return the line cut to at most `width` cells, with an ellipsis where something went."""
        if self.width <= width:
            return self
        cut = Line()
        for text, tone in self.spans:
            room = width - cut.width
            if cell_len(text) > room:
                return cut.add(clip(text, room), tone)
            cut.add(text, tone)
            if cut.width == width:
                break
        return cut


@lru_cache(maxsize=4096)  # from one frame to the next most words stay
def _measured(text: str) -> tuple[str, int]:
    """Return a text as it is shown, and its cells."""
    text = printable(text)
    return text, cells(text)


def changed(before: Line, after: Line, width: int) -> tuple[int, int]:
    """Return the first cell where two lines differ, and the one after the last; (0, 0) if equal."""
    if before == after:
        return 0, 0
    start = _common(before.spans, after.spans)
    if before.width != after.width:
        return start, width
    return start, before.width - _common(before.spans[::-1], after.spans[::-1])


def _common(one: list[tuple[str, Tone]], other: list[tuple[str, Tone]]) -> int:
    """Return how many cells of equal pieces two lines begin with."""
    found = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        found += cells(mine[0])
    return found


def cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def clip(text: str, width: int) -> str:
    """Cut text to `width` cells; an ellipsis stands for what went."""
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    return set_cell_size(text, width - 1) + "…"


def cell(text: str, width: int, *, right: bool = False) -> str:
    """Cut and fill text to exactly `width` cells."""
    text = clip(text, width)
    blank = " " * (width - cell_len(text))
    return blank + text if right else text + blank


def gathered(pieces: Iterable[tuple[str, Tone]]) -> Line:
    """Set pieces beside each other; those of one tone that follow each other become one."""
    line = Line()
    for tone, run in groupby(pieces, key=itemgetter(1)):
        line.add("".join(text for text, _ in run), tone)
    return line


def ends(left: Line, right: Line, width: int) -> Line:
    """Put one line at the left edge and one at the right; the left one gives way."""
    left = left.fit(max(0, width - right.width - 1))
    return Line().join(left).pad(width - right.width).join(right).fit(width)


def columns(left: list[Line], right: list[Line], left_width: int, gap: int = 2) -> list[Line]:
    return [
        Line().join(a.fit(left_width)).pad(left_width + gap).join(b)
        for a, b in zip_longest(left, right, fillvalue=Line())
    ]


def flow(pieces: Iterable[Line], width: int, gap: int = 3) -> Line:
    """Join the pieces that fit in `width`; the first one is cut if it must be."""
    line = Line()
    for piece in pieces:
        if not line.width:
            line.join(piece.fit(width))
            continue
        if line.width + gap + piece.width > width:
            break
        line.add(" " * gap).join(piece)
    return line


def wrap(text: str, width: int) -> list[str]:
    """Break text at its spaces into lines of at most `width` cells; a longer word is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = ""
        line = f"{line} {clip(word, width)}" if line else clip(word, width)
    return [*lines, line]
