"""The field in which a filter is typed; the table follows every letter."""

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input


class FilterField(Input):
    """Appears in the footer's place. Enter keeps the filter, Escape drops it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "drop", "Drop the filter", show=False)]

    class Closed(Message):
        """Typing is over. `kept` is false where the filter is to go."""

        def __init__(self, kept: bool) -> None:
            super().__init__()
            self.kept = kept

    def __init__(self) -> None:
        super().__init__(
            id="filter", compact=True, placeholder="filter: words that must match, !words that must not"
        )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        event.stop()
        self.post_message(self.Closed(kept=True))

    def action_drop(self) -> None:
        """Drop the filter."""
        self.post_message(self.Closed(kept=False))
