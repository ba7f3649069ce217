"""A rich console for untrusted text, such as names of models and clients: no markup, emoji or control codes.

Use `rich.text.Text` for styles.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from clairvoyant_cli.errors import printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

PIPE_WIDTH = 1000  # width in a pipe or file, so that nothing is wrapped


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

    @contextmanager
    def progress(self, *columns: "ProgressColumn") -> Iterator[Callable[..., None]]:
        """Yield a function that shows how far a command is: (title, done, total, left).

        On a terminal it moves a bar, which `columns` follow; elsewhere it prints each title once. A
        `total` of None is unknown, and `left` is a text.
        """
        from rich.progress import BarColumn, Progress, TextColumn

        is_drawn, printed = self.is_terminal and not self.is_dumb_terminal, ""
        drawn = (TextColumn("{task.description}", markup=False), BarColumn(), *columns)
        with Progress(*drawn, console=self, transient=True, disable=not is_drawn) as bar:
            task = bar.add_task("", total=None, left="")

            def show(title: str, done: float, total: float | None = None, left: str = "") -> None:
                nonlocal printed
                bar.update(task, description=title, completed=done, total=total, left=left)
                if not is_drawn and title != printed:
                    printed = title
                    self.print(f"{title}, {left}" if left else title, highlight=False)

            yield show

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
