"""Small questions over the board: yes or no, one of several, a line of text."""

from collections.abc import Callable, Sequence
from os.path import commonprefix
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from clairvoyant_cli.errors import printable
from tui.keys import MOVES

AnswerT = TypeVar("AnswerT")


class Dialog(ModalScreen[AnswerT | None]):
    """A question; Escape closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, question: str, detail: str = "") -> None:
        super().__init__()
        self._asked = Static(printable(question), classes="question", markup=False)
        self._detail = Static(printable(detail), classes="detail", markup=False)


class Confirm(Dialog[bool]):
    """Asks before a cancel or a drain. Only `y` says yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,q,enter", "dismiss(False)", "No"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield self._asked
            yield self._detail
            yield Static("[b $accent]y[/] yes    [b $accent]n[/] no (Enter)")


class Choose(Dialog[str]):
    """Offers options: pairs of an id and its text. The one that is `lit` is marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "dismiss(None)", "Close"),
        *(key.binding for key in MOVES),
    ]

    def __init__(
        self, question: str, options: Sequence[tuple[str, str]], lit: str, *, narrow: bool = False
    ) -> None:
        super().__init__(question)
        ids = [ident for ident, _ in options]
        self._narrow = narrow
        self._list = OptionList(markup=False)
        for ident, text in options:
            lines = "\n".join(printable(line) for line in text.split("\n"))
            self._list.add_option(Option(f"{'●' if ident == lit else '○'} {lines}", id=ident))
        self._list.highlighted = ids.index(lit) if lit in ids else 0

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog narrow" if self._narrow else "dialog choose"):
            yield self._asked
            yield self._list

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)

    def action_move(self, step: float, unit: str = "row") -> None:
        options = self._list
        to = (options.highlighted or 0) + int(step * (1 if unit == "row" else options.option_count))
        options.highlighted = max(0, min(to, options.option_count - 1))


class Prompt(Dialog[str]):
    """A line at the bottom. `enter` takes what was typed, and returns what is wrong with it, or nothing. The
    words that `complete` offers for the last one stand above it; Tab completes it. `typed` gets the text
    after each letter.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete", priority=True),
    ]

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
        self.field = Input(value, compact=True, select_on_focus=False, placeholder=hint)
        self._offers = Static("", classes="offers", markup=False)
        self._enter, self._complete, self._typed = enter, complete, typed

    def compose(self) -> ComposeResult:
        with Vertical(classes="prompt"):
            yield self._offers
            with Horizontal():
                yield self._asked
                yield self.field

    def on_mount(self) -> None:
        self._say("  ".join(self._complete(self.field.value)))

    def on_input_changed(self, event: Input.Changed) -> None:
        self._typed(event.value)
        self._say("  ".join(self._complete(event.value)))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        fault = self._enter(event.value)
        if fault:
            self._say(fault)
        else:
            self.dismiss(event.value)

    def action_complete(self) -> None:
        """Complete the last word as far as all that fit agree."""
        before, _, last = self.field.value.rpartition(" ")
        offered = self._complete(self.field.value)
        longest = commonprefix(list(offered)) + " " * (len(offered) == 1)  # noqa: RUF071 - words
        if len(longest) > len(last):
            self.field.value = f"{before} {longest}".lstrip()
            self.field.cursor_position = len(self.field.value)

    def _say(self, text: str) -> None:
        self._offers.display = bool(text)
        self._offers.update(printable(text))
