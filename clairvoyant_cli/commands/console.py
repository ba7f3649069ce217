"""The console of the commands. What it prints holds names that anybody chose: of models, clients, profiles.

Rule 1: such text is shown and never obeyed: it is no markup, no name of an emoji, no code for the terminal.
What is to be bold is a `rich.text.Text`.
"""

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clairvoyant_cli.errors import printable

PIPE_WIDTH = 1000
"""Cells of a line in a pipe or a file: nothing is cut there, nor wrapped."""


class PlainConsole(Console):
    """A rich console for text from outside."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)
        if "width" not in settings and not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = PIPE_WIDTH

    def render_str(self, text: str, **settings: Any) -> Text:
        """Make a text of one line; here, so that the width of a cell is that of what is shown."""
        return super().render_str(printable(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Draw something, also a `Text` that holds what cannot be printed."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), style)
