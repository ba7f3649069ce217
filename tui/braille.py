"""An area of dots: two across and four up in every cell, by the braille block of Unicode."""

from collections.abc import Sequence

from tui.formatting import count
from tui.styled_text import Line, Tone, cell, ends, gathered

AXIS = 6  # cells to the left of a plot, for the labels of its axis
_LEAST_TOP = 4.0
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def area(name: str, values: Sequence[float | None], tone: Tone, width: int, height: int) -> list[Line]:
    """Draw a title with the newest and the highest value, and the area under the values."""
    known = [each for each in values if each is not None]
    top = max([*known, _LEAST_TOP])
    columns, rows = 2 * max(1, width - AXIS), 4 * max(1, height - 1)  # of dots
    heights = [0] * columns  # of the area, in dots
    for x, value in enumerate(values, columns - len(values)):
        if value and x >= 0:
            heights[x] = rows - round((1.0 - min(value / top, 1.0)) * (rows - 1))
    title = Line(f"{name} ", "faint").add(count(known[-1] if known else None), "strong")
    lines = [ends(title, Line("most ", "faint").add(count(max(known, default=None))), width)]
    for y in range(rows // 4):
        label = count(top) if y == 0 else "0" if y == rows // 4 - 1 else ""
        line = Line(cell(label, AXIS - 1, right=True), "faint").add("┤" if label else "│", "track")
        drawn = (_braille(heights[x : x + 2], rows - 4 * y) for x in range(0, columns, 2))
        lines.append(line.join(gathered((each, tone if each != " " else "track") for each in drawn)))
    return lines


def _braille(heights: Sequence[int], top: int) -> str:
    """Return the Braille cell whose upper edge is `top` dots high; `heights` are those of its two columns."""
    bits = 0
    for x, height in enumerate(heights):
        for y in range(max(0, top - height), 4):
            bits |= _BITS[y][x]
    return chr(0x2800 + bits) if bits else " "
