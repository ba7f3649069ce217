"""The page of the clients, kept up to date while it is open."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from tui.panels.clients import body
from tui.view_state import ViewState
from tui.widgets.page import Page


class Clients(ModalScreen[None]):
    """Who has what in the queue, and what each may."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,c", "leave", "Close"),
        Binding("j", "step(1)", "Down", show=False),
        Binding("k", "step(-1)", "Up", show=False),
    ]

    def compose(self) -> ComposeResult:
        """Lay out the page."""
        with VerticalScroll(classes="page") as page:
            page.border_title = "clients"
            page.border_subtitle = "Esc closes"
            yield Page(lambda view, width, height: body(view, width))

    def show(self, view: ViewState) -> None:
        """Draw the clients as they are now."""
        self.query_one(Page).show(view)

    def action_step(self, step: int) -> None:
        """Scroll down or up."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)
