"""Every key, and what the signs mean."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from tui.keys import GROUPS, Group
from tui.styled_text import Line, Tone, cell, columns, wrap
from tui.view_state import ViewState
from tui.widgets.page import Page

_KEY_WIDTH = 6
_SIGNS: tuple[tuple[str, Tone, str], ...] = (
    ("S", "short", "predicted short: fewer than 200 tokens"),
    ("M", "medium", "predicted medium"),
    ("L", "long", "predicted long: 800 tokens or more"),
    ("τ", "alert", "has waited longer than tau, or ran because it had"),
    ("▲", "accent", "sent to the top by the operator"),
    ("‖", "warn", "held"),
    ("•", "accent", "marked"),
    ("▶", "accent", "decoding;  ◔ prefill  ◌ connecting  × releasing"),
)


def help_lines(width: int) -> list[Line]:
    """Return the help, in two columns where there is room."""
    two = width >= 100
    half = (width - 4) // 2 if two else width
    blocks = [_group(group, half) for group in GROUPS] + [_signs(half)]
    if not two:
        return [line for block in blocks for line in [*block, Line()]]
    left = [*blocks[0], Line(), *blocks[1], Line(), *blocks[4]]
    right = [*blocks[2], Line(), *blocks[3]]
    return columns(left, right, half, gap=4)


def _group(group: Group, width: int) -> list[Line]:
    lines = [Line(group.name, "strong")]
    for key in group.keys:
        lines += _entry(key.label, "accent", key.help, width)
    return lines


def _signs(width: int) -> list[Line]:
    lines = [Line("Signs", "strong")]
    for sign, tone, text in _SIGNS:
        lines += _entry(sign, tone, text, width)
    return lines


def _entry(sign: str, tone: Tone, text: str, width: int) -> list[Line]:
    """Set a text beside its sign, on as many lines as it takes."""
    lines = wrap(text, max(20, width - _KEY_WIDTH))
    return [Line(cell(sign if y == 0 else "", _KEY_WIDTH), tone).add(line) for y, line in enumerate(lines)]


class Help(ModalScreen[None]):
    """The help, over the board; any of its own keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1", "leave", "Close")]

    def compose(self) -> ComposeResult:
        """Lay out the page."""
        with VerticalScroll(classes="page") as page:
            page.border_title = "keys and signs"
            page.border_subtitle = "Esc closes"
            yield Page(lambda view, width, height: help_lines(width))

    def show(self, view: ViewState) -> None:
        """Draw once there is something to draw on."""
        self.query_one(Page).show(view)

    def action_leave(self) -> None:
        """Close."""
        self.dismiss(None)
