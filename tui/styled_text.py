"""Lines of text with tones ("short", "alert"): painters return them, the palette colours them.

`rich.text.Text` would do as well, but takes three times as long to build, and 28 us a line to render.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Literal, Self

from rich.cells import cell_len, set_cell_size
from textual.content import Content

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
_GROUNDED = ("badge", "siren")  # they colour the ground, and a blank with it


class Line(list[tuple[str, Tone]]):
    """Pieces of text, each with its tone; `width` cells. It grows to the right."""

    __slots__ = ("width",)

    def __init__(self, text: str = "", tone: Tone = "ink") -> None:
        self.width = 0
        if text:
            text, self.width = _measured(text)
            self.append((text, tone))

    @property
    def plain(self) -> str:
        return "".join([text for text, _ in self])

    def add(self, text: str, tone: Tone = "ink") -> Self:
        """Append text, made printable. Blanks continue the tone before them: fewer pieces to draw."""
        if text:
            text, width = _measured(text)
            self.width += width
            if self:
                before, had = self[-1]
                if had == tone or (text.isspace() and had not in _GROUNDED and tone not in _GROUNDED):
                    self[-1] = before + text, had
                    return self
            self.append((text, tone))
        return self

    def join(self, other: "Line") -> Self:
        if self and other and self[-1][1] == other[0][1]:
            (text, tone), *more = other
            self[-1] = self[-1][0] + text, tone
            self.extend(more)
        else:
            self.extend(other)
        self.width += other.width
        return self

    def pad(self, width: int) -> Self:
        """Append spaces up to `width` cells."""
        return self.add(" " * (width - self.width))

    def fit(self, width: int) -> "Line":
        """Return the line cut to at most `width` cells, with an ellipsis where something went."""
        if self.width <= width:
            return self
        cut = Line()
        for text, tone in self:
            cut.add(clip(text, width), tone)
            width -= cells(text)
            if width <= 0:
                break
        return cut


@lru_cache(maxsize=4096)  # from one frame to the next most words stay
def _measured(text: str) -> tuple[str, int]:
    """Return a text as it is shown, and its cells."""
    text = printable(text)
    return text, cells(text)


def cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def clip(text: str, width: int) -> str:
    """Cut text to `width` cells; an ellipsis stands for what went."""
    if cells(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def cell(text: str, width: int, *, right: bool = False) -> str:
    """Cut and fill text to exactly `width` cells."""
    text = clip(text, width)
    blank = " " * (width - cells(text))
    return blank + text if right else text + blank


def gathered(pieces: Iterable[tuple[str, Tone]]) -> Line:
    """Set pieces beside each other; those of one tone that follow each other become one."""
    line = Line()
    for tone, run in groupby(pieces, key=itemgetter(1)):
        line.add("".join([text for text, _ in run]), tone)
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
        if not line:
            line.join(piece.fit(width))
        elif line.width + gap + piece.width <= width:
            line.add(" " * gap).join(piece)
        else:
            break
    return line


def wrap(text: str, width: int) -> list[str]:
    """Break text into lines of at most `width` cells."""
    return [line.plain for line in Content(" ".join(text.split())).wrap(width)]
