"""What is drawn where the font has few characters: in the old console of Windows, and on that of Linux.

Consolas has no braille, and the old console of Windows looks into no second font: a framed question mark
stands in every cell of a plot (github.com/microsoft/terminal, issues 385 and 12314). So whatever is sent to
the screen is put into characters of WGL4, which every font of Windows has; plots are drawn with half blocks.
"""

from collections.abc import Mapping

from textual.driver import Driver

_UPPER, _LOWER = 0b0001_1011, 0b1110_0100  # the bits of a braille cell's upper and lower two rows of dots
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
PLAIN: dict[int, int | str] = {  # each is one cell wide, as is what it stands for
    0x2800 + bits: _HALVES[bool(bits & _UPPER), bool(bits & _LOWER)] for bits in range(256)
} | str.maketrans("▁▂▃▅▆▇▉▊▋▍▎▏▔━╸╌╭╮╰╯▶▸◆◌◔◐✓✗⊘‖⏎¦▗╎╱", "__▄▄█████▌▌▌▀══-┌┐└┘►►♦·○◘√xø║┘|▄|/")


def plain_driver(driver: type[Driver], glyphs: Mapping[int, int | str] = PLAIN) -> type[Driver]:
    """Return a driver that sends plain glyphs alone, and is the given one in all else."""

    class Plain(driver):  # type: ignore[misc, valid-type]  # which it is depends on the system
        def write(self, data: str) -> None:
            super().write(data.translate(glyphs))

    return Plain
