"""Colours that can be read and distinguished: the contrast of WCAG 2 (4.5 to 1), and the distance of tones
under two kinds of colour blindness, in each of our themes.
"""

from collections.abc import Sequence
from itertools import combinations, product
from math import dist
from typing import get_args

import pytest
from rich._palettes import STANDARD_PALETTE
from rich.color import ColorSystem
from textual.color import Color
from textual.theme import Theme

from tui.palette import SIXTEEN, THEMES, Palette
from tui.styled_text import Tone

READABLE = 4.5
TEXT = [tone for tone in get_args(Tone) if tone != "track"]  # rules, and what of a bar is empty


def contrast(one: Color, other: Color) -> float:
    low, high = sorted(0.05 + _luminance(each) for each in (one, other))
    return high / low


def _luminance(colour: Color) -> float:
    channels = (each / 255 for each in colour.rgb)
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_text_of_every_tone_can_be_read_on_every_ground(theme: Theme) -> None:
    palette = Palette(theme.name)
    grounds = [Color.parse(str(each)) for each in (theme.background, theme.surface)]
    grounds.append(Color.from_rich_color(palette.cursor.bgcolor))
    for styles in (palette.styles, palette.stale):
        for tone in TEXT:
            style = styles[tone]
            on = grounds if style.bgcolor is None else [Color.from_rich_color(style.bgcolor)]
            assert min(contrast(Color.from_rich_color(style.color), each) for each in on) >= READABLE, tone


DICHROMATS = {  # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
MEANING: tuple[Tone, ...] = ("short", "medium", "long", "alert", "accent")
GREYS: tuple[Tone, ...] = ("ink", "soft", "faint")
APART = 15.0


def lab(colour: Color, eye: str) -> tuple[float, float, float]:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
    seen = [min(1.0, max(0.0, _dot(row, linear))) for row in DICHROMATS[eye]]
    to_xyz = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))
    x, y, z = (
        v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (_dot(row, seen) for row in to_xyz)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _dot(row: Sequence[float], values: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, values, strict=True))


@pytest.mark.parametrize("eye", DICHROMATS)
@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_tones_that_mean_something_differ_for_every_eye(theme: Theme, eye: str) -> None:
    styles = Palette(theme.name).styles
    seen = {tone: lab(Color.from_rich_color(styles[tone].color), eye) for tone in (*MEANING, *GREYS)}
    for one, other in (*combinations(MEANING, 2), *product(MEANING, GREYS)):
        assert dist(seen[one], seen[other]) >= APART, (one, other)


def test_the_tones_of_a_terminal_with_sixteen_colours_are_among_them_and_differ() -> None:
    colours = {tone: style.color for tone, style in Palette(SIXTEEN.name).styles.items()}
    sixteen = {colour: colour.downgrade(ColorSystem.STANDARD) for colour in colours.values() if colour}
    assert all(STANDARD_PALETTE[each.number or 0] == colour.triplet for colour, each in sixteen.items()), (
        "what is drawn is what was chosen"
    )
    assert len({sixteen[colour] for tone in MEANING if (colour := colours[tone])}) == len(MEANING)
