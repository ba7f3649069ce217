"""The page of one request, kept up to date while it is open."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen

from tui.panels.detail import detail
from tui.styled_text import printable
from tui.view_state import ViewState
from tui.widgets.page import Page


class Detail(ModalScreen[None]):
    """Follows a request by its id: from the queue to a slot to its end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "Close"),
        Binding("v", "app.prompts", "Prompts"),
    ]

    def __init__(self, ident: str) -> None:
        super().__init__()
        self._ident = ident

    def compose(self) -> ComposeResult:
        """Lay out the page."""
        with VerticalScroll(classes="page narrow") as page:
            # As content: text alone would be read as markup.
            page.border_title = Content(printable(self._ident))
            page.border_subtitle = "Esc closes"
            yield Page(lambda view, width, height: detail(view, self._ident, width))

    def show(self, view: ViewState) -> None:
        """Draw the request as it is now."""
        self.query_one(Page).show(view)

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)
