"""A choice by one letter: which column to sort by, or which to show."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from string import ascii_lowercase
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

_HALF = 28


def letters_for(names: Iterable[str]) -> dict[str, str]:
    """Return a letter for each name: the first of its own that is free, else the first that is."""
    given: dict[str, str] = {}
    for name in names:
        free = [each for each in (*name, *ascii_lowercase) if each in ascii_lowercase and each not in given]
        if free:
            given[free[0]] = name
    return given


class Letters(ModalScreen[str | None]):
    """Closes with the name whose letter was pressed; those in `lit` are marked."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter", "leave", "Leave")]

    def __init__(self, question: str, names: Sequence[tuple[str, str]], lit: Iterable[str] = ()) -> None:
        """`names` are pairs of a name and what is shown for it."""
        super().__init__()
        self._question = question
        self._shown = dict(names)
        self._lit = frozenset(lit)
        self._letters = letters_for(self._shown)

    def compose(self) -> ComposeResult:
        """Lay out the letters."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="question", markup=False)
            pieces = [self._piece(letter, name) for letter, name in self._letters.items()]
            half = (len(pieces) + 1) // 2
            for left, right in zip_longest(pieces[:half], pieces[half:], fillvalue=Content()):
                yield Static(Content.assemble(left.pad_right(_HALF - left.cell_length), right))

    def _piece(self, letter: str, name: str) -> Content:
        mark = "●" if name in self._lit else " "
        return Content.assemble(f"{mark} ", (letter, "b $accent"), f"  {self._shown[name]}")

    def on_key(self, event: events.Key) -> None:
        """Close with what was chosen."""
        if event.key in self._letters:
            event.stop()
            self.dismiss(self._letters[event.key])

    def action_leave(self) -> None:
        """Close without a choice."""
        self.dismiss(None)
