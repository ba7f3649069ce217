"""Turns tones into colours.

Classes, accent and alert are near those of Okabe and Ito (Color Universal Design, 2008), moved so that they
and the greys stay apart under deuteranopia and protanopia, which the tests compute. No meaning rests on
colour alone.
"""

from typing import get_args

from rich.style import Style
from textual.theme import Theme

from tui.styled_text import Tone

COLOURS = (
    # tone, night, day, contrast, and of a terminal that has sixteen
    ("ground", "#11161c", "#fbfaf7", "#000000", "#000000"),
    ("raised", "#1a212a", "#f0eee8", "#101010", "#000000"),
    ("ink", "#c9d1d9", "#2b3138", "#ffffff", "#aaaaaa"),
    ("accent", "#59c59b", "#006e4e", "#40e5a6", "#55ff55"),
    ("strong", "#f0f4f8", "#0b0f14", "#ffffff", "#ffffff"),
    ("soft", "#a9b4bf", "#454f59", "#d8d8d8", "#aaaaaa"),
    ("faint", "#8793a1", "#5a6570", "#b0b0b0", "#aaaaaa"),
    ("track", "#2c3641", "#d3d5d3", "#606060", "#555555"),
    ("short", "#69c0fa", "#0265ab", "#6ec7ff", "#55ffff"),
    ("medium", "#f4c057", "#8e5e00", "#ffd000", "#ffff55"),
    ("long", "#bb84c8", "#792d78", "#e086c8", "#ff55ff"),
    ("alert", "#f17440", "#891300", "#ff6a20", "#ff5555"),
    ("cursor", "#1f2b36", "#e3ebe8", "#303030", "#0000aa"),
)
_BY_THEME = {
    name: {row[0]: row[at] for row in COLOURS}
    for at, name in enumerate(("night", "day", "contrast", "sixteen"), 1)
}
*THEMES, SIXTEEN = (
    Theme(
        name=name,
        dark=name != "day",
        primary=colour["accent"],
        accent=colour["accent"],
        warning=colour["medium"],
        error=colour["alert"],
        foreground=colour["ink"],
        background=colour["ground"],
        surface=colour["raised"],
        panel=colour["raised"],
    )
    for name, colour in _BY_THEME.items()
)
_MONOCHROME: dict[Tone, Style] = dict.fromkeys(get_args(Tone), Style()) | {
    "strong": Style(bold=True),
    "faint": Style(dim=True),
    "track": Style(dim=True),
    "alert": Style(bold=True),
    "long": Style(bold=True),
    "badge": Style(reverse=True, bold=True),
    "siren": Style(reverse=True, bold=True),
}


class Palette:
    """Rich styles: of each tone, of the row under the cursor, and of an outdated state."""

    def __init__(self, theme: str, *, colour: bool = True) -> None:
        self.cursor, self.styles = Style(reverse=True), _MONOCHROME
        self.stale = {tone: style + Style(dim=True) for tone, style in _MONOCHROME.items()}
        if colour:
            own = _BY_THEME[theme] | {"good": _BY_THEME[theme]["accent"], "warn": _BY_THEME[theme]["medium"]}
            tones: dict[Tone, Style] = {
                tone: Style(color=own[tone]) for tone in get_args(Tone) if tone in own
            }
            self.cursor = Style(bgcolor=own["cursor"])
            self.styles = tones | {
                "strong": Style(color=own["strong"], bold=True),
                "badge": Style(color=own["ground"], bgcolor=own["accent"], bold=True),
                "siren": Style(color=own["ground"], bgcolor=own["alert"], bold=True),
            }
            self.stale = self.styles | dict.fromkeys(tones, tones["faint"]) | {"track": tones["track"]}
