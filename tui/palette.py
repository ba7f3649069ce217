"""Turns tones into colours.

Classes, accent and alert are near those of Okabe and Ito (Color Universal Design, 2008), moved so that they
and the greys stay apart under deuteranopia and protanopia, which the tests compute. No meaning rests on
colour alone.
"""

from collections.abc import Mapping
from typing import get_args

from rich.style import Style
from textual.color import Color
from textual.theme import Theme

from tui.styled_text import Tone

_COLOURS = (
    # tone, night, day, contrast
    ("ground", "#11161c", "#fbfaf7", "#000000"),
    ("raised", "#1a212a", "#f0eee8", "#101010"),
    ("ink", "#c9d1d9", "#2b3138", "#ffffff"),
    ("accent", "#59c59b", "#006e4e", "#40e5a6"),
    ("strong", "#f0f4f8", "#0b0f14", "#ffffff"),
    ("soft", "#a9b4bf", "#454f59", "#d8d8d8"),
    ("faint", "#8793a1", "#5a6570", "#b0b0b0"),
    ("track", "#2c3641", "#d3d5d3", "#606060"),
    ("short", "#69c0fa", "#0265ab", "#6ec7ff"),
    ("medium", "#f4c057", "#8e5e00", "#ffd000"),
    ("long", "#bb84c8", "#792d78", "#e086c8"),
    ("alert", "#f17440", "#891300", "#ff6a20"),
    ("cursor", "#1f2b36", "#e3ebe8", "#303030"),
)
_OWN = ("strong", "soft", "faint", "track", "short", "medium", "long", "alert", "cursor")
"""Colours that Textual has no name for."""

_VARIABLES = {"ink": "foreground", "accent": "accent", "good": "accent", "warn": "tone-medium"} | {
    tone: f"tone-{tone}" for tone in _OWN
}
"""The theme's variable for each tone."""


def _theme(name: str, colour: dict[str, str]) -> Theme:
    return Theme(
        name=name,
        dark=name != "day",
        primary=colour["accent"],
        secondary=colour["short"],
        accent=colour["accent"],
        success=colour["accent"],
        warning=colour["medium"],
        error=colour["alert"],
        foreground=colour["ink"],
        background=colour["ground"],
        surface=colour["raised"],
        panel=colour["raised"],
        variables={f"tone-{tone}": colour[tone] for tone in _OWN},
    )


THEMES = tuple(
    _theme(name, {row[0]: row[at] for row in _COLOURS})
    for at, name in enumerate(("night", "day", "contrast"), 1)
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

    def __init__(self, variables: Mapping[str, str], *, colour: bool = True) -> None:
        """Read the colours of the current theme, one of `THEMES`."""
        self.cursor, self.styles = Style(reverse=True), _MONOCHROME
        self.stale = {tone: style + Style(dim=True) for tone, style in _MONOCHROME.items()}
        if not colour:
            return
        own = {tone: Color.parse(variables[name]).rich_color for tone, name in _VARIABLES.items()}
        inverse = Style(color=Color.parse(variables["background"]).rich_color, bold=True)
        tones: dict[Tone, Style] = {tone: Style(color=own[tone]) for tone in get_args(Tone) if tone in own}
        self.styles = tones | {
            "strong": Style(color=own["strong"], bold=True),
            "badge": inverse + Style(bgcolor=own["accent"]),
            "siren": inverse + Style(bgcolor=own["alert"]),
        }
        self.cursor = Style(bgcolor=own["cursor"])
        self.stale = self.styles | dict.fromkeys(tones, tones["faint"]) | {"track": tones["track"]}
