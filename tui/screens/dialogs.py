"""Small questions over the board: yes or no, one of several, a letter, a line of text."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from os.path import commonprefix
from string import ascii_lowercase
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from clairvoyant_cli.errors import printable
from tui.keys import MOVES

_HALF = 28
AnswerT = TypeVar("AnswerT")


def _question(text: str) -> Static:
    return Static(printable(text), classes="question", markup=False)


class Dialog(ModalScreen[AnswerT | None]):
    """A question; Escape closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._asked = question


class Confirm(Dialog[bool]):
    """Asks before a cancel or a drain. Only `y` says yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,q,enter", "answer(False)", "No"),
    ]

    def __init__(self, question: str, detail: str) -> None:
        super().__init__(question)
        self._detail = printable(detail)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield _question(self._asked)
            yield Static(self._detail, classes="detail", markup=False)
            yield Static("[b $accent]y[/] yes    [b $accent]n[/] no (Enter)", classes="keys")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Choose(Dialog[str]):
    """Offers a few options; the current one is marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "dismiss(None)", "Close"),
        *(key.binding for key in MOVES),
    ]

    def __init__(self, question: str, options: Sequence[tuple[str, str]], current: str = "") -> None:
        """`options` are pairs of an id and its text."""
        super().__init__(question)
        self._options = options
        self._current = current

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog choose"):
            yield _question(self._asked)
            options = (Option(self._line(ident, text), id=ident) for ident, text in self._options)
            yield OptionList(*options, markup=False)

    def foresee(self, options: Sequence[tuple[str, str]]) -> None:
        """Show other texts for the same options."""
        self._options = options
        for listing in self.query(OptionList):  # none before it is laid out, nor after it was left
            for ident, text in options:
                listing.replace_option_prompt(ident, self._line(ident, text))

    def _line(self, ident: str, text: str) -> str:
        lines = "\n".join(printable(line) for line in text.split("\n"))
        return f"{'●' if ident == self._current else '○'} {lines}"

    def on_mount(self) -> None:
        self.foresee(self._options)  # they may have changed while they were laid out
        ids = [ident for ident, _ in self._options]
        self.query_one(OptionList).highlighted = ids.index(self._current) if self._current in ids else 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_move(self, step: float, unit: str = "row") -> None:
        options = self.query_one(OptionList)
        rows = 1 if unit == "row" else options.option_count
        options.highlighted = max(
            0, min((options.highlighted or 0) + int(step * rows), options.option_count - 1)
        )


class Prompt(Dialog[str]):
    """A line at the bottom. `enter` takes what was typed, and returns what is wrong with it, or nothing. The
    words that `complete` offers for the last one stand above it; Tab completes it. `typed` gets the text
    after each letter.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", priority=True),
        Binding("up", "recall(-1)"),
        Binding("down", "recall(1)"),
    ]
    _typed_before: ClassVar[defaultdict[str, list[str]]] = defaultdict(list)  # by sign

    def __init__(
        self,
        sign: str,
        value: str,
        enter: Callable[[str], str] = lambda text: "",
        complete: Callable[[str], Sequence[str]] = lambda text: (),
        typed: Callable[[str], None] = lambda text: None,
        hint: str = "",
    ) -> None:
        super().__init__(sign)
        self._value, self._hint = value, hint
        self._enter, self._complete, self._typed = enter, complete, typed
        self._past = self._typed_before[sign]
        self._at = len(self._past)

    def compose(self) -> ComposeResult:
        with Vertical(classes="prompt"):
            yield Static("", classes="offers", markup=False)
            with Horizontal():
                yield Static(self._asked, classes="sign", markup=False)
                yield Input(self._value, compact=True, select_on_focus=False, placeholder=self._hint)

    def type_ahead(self, letter: str) -> None:
        """Take a letter that was typed before the line had the focus."""
        self._value += letter  # of a line that is not laid out yet
        for field in self.query(Input):
            field.insert_text_at_cursor(letter)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._typed(event.value)
        self._say("  ".join(self._complete(event.value)))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        fault = self._enter(event.value)
        if fault:
            self._say(fault)
        else:
            self._past[:] = [each for each in self._past if each != event.value] + [event.value]
            self.dismiss(event.value)

    def action_complete(self) -> None:
        """Complete the last word as far as all that fit agree."""
        field = self.query_one(Input)
        offered = self._complete(field.value)
        if offered:
            before, _, last = field.value.rpartition(" ")
            longest = commonprefix(list(offered)) + " " * (len(offered) == 1)  # noqa: RUF071 - words
            field.value = f"{before} {longest}".lstrip() if len(longest) > len(last) else field.value
            field.cursor_position = len(field.value)

    def action_recall(self, step: int) -> None:
        self._at = max(0, min(self._at + step, len(self._past)))
        field = self.query_one(Input)
        field.value = ([*self._past, ""])[self._at]
        field.cursor_position = len(field.value)

    def _say(self, text: str) -> None:
        line = self.query_one(".offers", Static)
        line.display = bool(text)
        line.update(printable(text))


def letters_for(names: Iterable[str]) -> dict[str, str]:
    """Return a letter for each name: the first of its own that is free, else the first that is."""
    given: dict[str, str] = {}
    for name in names:
        free = [each for each in (*name, *ascii_lowercase) if each in ascii_lowercase and each not in given]
        if free:
            given[free[0]] = name
    return given


class Letters(Dialog[str]):
    """Asks for one of several names by a letter; those in `lit` are marked."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "dismiss(None)", "Close")]

    def __init__(self, question: str, names: Sequence[tuple[str, str]], lit: Iterable[str] = ()) -> None:
        """`names` are pairs of a name and its text."""
        super().__init__(question)
        self._shown = dict(names)
        self._lit = frozenset(lit)
        self._letters = letters_for(self._shown)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield _question(self._asked)
            pieces = [self._piece(letter, name) for letter, name in self._letters.items()]
            half = (len(pieces) + 1) // 2
            for left, right in zip_longest(pieces[:half], pieces[half:], fillvalue=Content()):
                yield Static(Content.assemble(left.pad_right(_HALF - left.cell_length), right))

    def _piece(self, letter: str, name: str) -> Content:
        mark = "●" if name in self._lit else " "
        return Content.assemble(f"{mark} ", (letter, "b $accent"), f"  {self._shown[name]}")

    def on_key(self, event: events.Key) -> None:
        if event.key in self._letters:
            event.stop()
            self.dismiss(self._letters[event.key])
