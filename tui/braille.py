"""Plots of dots: two across and four up in every cell, by the braille block of Unicode."""

from collections.abc import Mapping, Sequence

from tui.formatting import count
from tui.styled_text import Line, Tone, cell, ends, gathered

AXIS = 6  # cells to the left of a plot, for the labels of its axis
_LEAST_TOP = 4.0
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Dots:
    """A plot of `width` x `height` cells. Positions are fractions: (0, 0) bottom left, (1, 1) top right.

    A cell has one tone: that of the last dot set in it.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width = max(1, width)
        self.height = max(1, height)
        self._cells: dict[tuple[int, int], tuple[int, Tone]] = {}

    def column(self, x: int, y: float, tone: Tone, *, filled: bool = False) -> None:
        """Set a dot in a column of dots, and those below if `filled`. Beyond the top or bottom it sticks."""
        last = self.height * 4 - 1
        top = min(last, max(0, round((1.0 - y) * last)))
        for row in range(top, last + 1 if filled else top + 1):
            at = row // 4, x // 2
            self._cells[at] = self._cells.get(at, (0, tone))[0] | _BITS[row % 4][x % 2], tone

    def mark(self, x: float, y: float, tone: Tone) -> None:
        """Set one dot; left and right of the plot is ignored."""
        if 0.0 <= x <= 1.0:
            self.column(round(x * (self.width * 2 - 1)), y, tone)

    def lines(self, ticks: Mapping[float, str], name: Line | None = None) -> list[Line]:
        """Return the lines, with labels at the left by their height, and a name in the corner."""
        at = {min(self.height - 1, int((1.0 - place) * self.height)): label for place, label in ticks.items()}
        lines = []
        for y in range(self.height):
            line, label = Line().join(name if name and y == 0 else Line()), at.get(y, "")
            line.add(cell(label, AXIS - 1 - line.width, right=True), "faint").add(
                "┤" if label else "│", "track"
            )
            drawn = (self._cells.get((y, x), (0, "track")) for x in range(self.width))
            lines.append(
                line.join(gathered((chr(0x2800 + bits) if bits else " ", tone) for bits, tone in drawn))
            )
        return lines


def area(name: str, values: Sequence[float | None], tone: Tone, width: int, height: int) -> list[Line]:
    """Draw a title with the newest and the highest value, and the area under the values."""
    known = [each for each in values if each is not None]
    top = max([*known, _LEAST_TOP])
    dots = Dots(width - AXIS, height - 1)
    for x, value in enumerate(values, 2 * dots.width - len(values)):
        if value and x >= 0:
            dots.column(x, value / top, tone, filled=True)
    title = Line(f"{name} ", "faint").add(count(known[-1] if known else None), "strong")
    title = ends(title, Line("most ", "faint").add(count(max(known, default=None))), width)
    return [title, *dots.lines({1.0: count(top), 0.0: "0"})]
