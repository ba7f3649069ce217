"""A picture of dots: two across and four up in every cell, by the braille block of Unicode."""

from tui.styled_text import Line, Tone, gathered

_CELLS = (" ", *(chr(0x2800 + bits) for bits in range(1, 256)))
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Dots:
    """A canvas of `width` x `height` cells. Positions are fractions: (0, 0) bottom left, (1, 1) top right.

    A cell has one tone: that of the last dot set in it.
    """

    def __init__(self, width: int, height: int) -> None:
        self.width = max(1, width)
        self.height = max(1, height)
        self._bits = [[0] * self.width for _ in range(self.height)]
        self._tones: list[list[Tone]] = [["ink"] * self.width for _ in range(self.height)]

    def dot(self, x: int, y: int, tone: Tone) -> None:
        """Set the dot at column `x` from the left and row `y` from the top; outside is ignored."""
        if 0 <= x < self.width * 2 and 0 <= y < self.height * 4:
            self._bits[y // 4][x // 2] |= _BITS[y % 4][x % 2]
            self._tones[y // 4][x // 2] = tone

    def mark(self, x: float, y: float, tone: Tone) -> None:
        """Set one dot; a value beyond the top or bottom sticks to the edge."""
        if 0.0 <= x <= 1.0:
            self.dot(self._across(x), self._down(y), tone)

    def column(self, x: int, y: float, tone: Tone) -> None:
        """Fill a dot column from the bottom up to the fraction `y`."""
        if y <= 0.0:
            return
        for row in range(self._down(y), self.height * 4):
            self.dot(x, row, tone)

    def dash(self, y: float, tone: Tone) -> None:
        for x in range(0, self.width * 2, 6):
            self.dot(x, self._down(y), tone)

    def diagonal(self, tone: Tone) -> None:
        steps = max(self.width * 2, self.height * 4)
        for step in range(0, steps, 2):
            self.mark(step / (steps - 1 or 1), step / (steps - 1 or 1), tone)

    def lines(self) -> list[Line]:
        return [
            gathered((_CELLS[bit], tone) for bit, tone in zip(bits, tones, strict=True))
            for bits, tones in zip(self._bits, self._tones, strict=True)
        ]

    def _across(self, x: float) -> int:
        return min(self.width * 2 - 1, max(0, round(x * (self.width * 2 - 1))))

    def _down(self, y: float) -> int:
        return min(self.height * 4 - 1, max(0, round((1.0 - y) * (self.height * 4 - 1))))
