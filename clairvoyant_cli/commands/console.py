"""A rich console for untrusted text, such as names of models and clients: no markup, emoji or control codes.

Use `rich.text.Text` for styles.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from clairvoyant_cli.errors import printable

PIPE_WIDTH = 1000
"""Width in a pipe or file, so that nothing is wrapped."""


class PlainConsole(Console):
    """A rich console for untrusted text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(markup=False, emoji=False, **settings)
        if "width" not in settings and not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = PIPE_WIDTH

    def print_table(
        self, headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False
    ) -> None:
        """Print a borderless table; `right` aligns the columns to the right."""
        table = Table(box=None)
        for heading in headings:
            table.add_column(heading, justify="right" if right else "left")
        for row in rows:
            table.add_row(*row)
        self.print(table)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Return a text of one line; here, so that column widths fit the printed text."""
        return super().render_str(printable(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render, replacing unprintable characters in a `Text` too."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), style)
