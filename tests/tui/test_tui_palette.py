"""Colours that can be read: the contrast of WCAG 2 (4.5 to 1) in each of our themes."""

from typing import get_args

import pytest
from textual.color import Color
from textual.theme import Theme

from tui.palette import THEMES, Palette
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
    palette = Palette(theme.to_color_system().generate() | theme.variables)
    grounds = [Color.parse(str(each)) for each in (theme.background, theme.surface)]
    grounds.append(Color.from_rich_color(palette.cursor.bgcolor))
    for styles in (palette.styles, palette.stale):
        for tone in TEXT:
            style = styles[tone]
            on = grounds if style.bgcolor is None else [Color.from_rich_color(style.bgcolor)]
            assert min(contrast(Color.from_rich_color(style.color), each) for each in on) >= READABLE, tone
