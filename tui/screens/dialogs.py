"""Small questions over the board: yes or no, one of several, a value."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from tui.styled_text import printable


class Confirm(ModalScreen[bool]):
    """Asks before something that cannot be undone. Only `y` and Enter say yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str, detail: str = "") -> None:
        super().__init__()
        self._question = printable(question)
        self._detail = printable(detail)

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="question", markup=False)
            if self._detail:
                yield Static(self._detail, classes="detail", markup=False)
            yield Static("[b $accent]y[/] yes    [b $accent]n[/] no", classes="keys")

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Choose(ModalScreen[str | None]):
    """Offers a few options; the current one is marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "Leave"),
        Binding("j", "step(1)", "Down", show=False),
        Binding("k", "step(-1)", "Up", show=False),
    ]

    def __init__(self, question: str, options: Sequence[tuple[str, str]], current: str = "") -> None:
        """`options` are pairs of an id and what is shown."""
        super().__init__()
        self._question = question
        self._options = options
        self._current = current

    def compose(self) -> ComposeResult:
        """Lay out the options."""
        with Vertical(classes="dialog choose"):
            yield Static(self._question, classes="question", markup=False)
            yield OptionList(
                *(Option(self._said(ident, text), id=ident) for ident, text in self._options), markup=False
            )

    def retell(self, options: Sequence[tuple[str, str]]) -> None:
        """Show other words for the same options."""
        self._options = options
        for listing in self.query(OptionList):  # none before it is laid out, nor after it was left
            for ident, text in options:
                listing.replace_option_prompt(ident, self._said(ident, text))

    def _said(self, ident: str, text: str) -> str:
        return f"{'●' if ident == self._current else '○'} {_printable_lines(text)}"

    def on_mount(self) -> None:
        """Stand on the current option."""
        self.retell(self._options)  # what was told while it was being laid out
        ids = [ident for ident, _ in self._options]
        self.query_one(OptionList).highlighted = ids.index(self._current) if self._current in ids else 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the option."""
        self.dismiss(event.option_id)

    def action_step(self, step: int) -> None:
        """Go down or up."""
        options = self.query_one(OptionList)
        options.action_cursor_down() if step > 0 else options.action_cursor_up()

    def action_leave(self) -> None:
        """Close without a choice."""
        self.dismiss(None)


class Ask(ModalScreen[str | None]):
    """Asks for a value; `complaint` says what is wrong with one, or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave")]

    def __init__(self, question: str, value: str, complaint: Callable[[str], str]) -> None:
        super().__init__()
        self._question = question
        self._value = value
        self._complaint = complaint

    def compose(self) -> ComposeResult:
        """Lay out the question and the field."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="question", markup=False)
            yield Input(self._value, compact=True)
            yield Static("", classes="complaint", markup=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say at once what is wrong."""
        self.query_one(".complaint", Static).update(self._complaint(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the value, if it will do."""
        if not self._complaint(event.value):
            self.dismiss(event.value)

    def action_leave(self) -> None:
        """Close without a value."""
        self.dismiss(None)


def _printable_lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))
