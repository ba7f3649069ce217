"""The pages over the board: one request, the clients, the help. An open page is kept up to date."""

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.screen import ModalScreen

from clairvoyant_cli.errors import printable
from tui.keys import EVERYWHERE, GROUPS, MOVES
from tui.panels import clients
from tui.panels.detail import detail
from tui.styled_text import Line, Tone, cell, columns, wrap
from tui.view_state import ViewState
from tui.widgets.canvas import Canvas, Painter

_KEY_WIDTH = 6
_SIGNS: tuple[tuple[str, Tone, str], ...] = (
    ("S", "short", "predicted short: fewer than 200 tokens"),
    ("M", "medium", "predicted medium"),
    ("L", "long", "predicted long: 800 tokens or more"),
    ("τ", "alert", "past tau, or started because it was"),
    ("▲", "accent", "started because an operator moved it to the front"),
    ("½", "accent", "its answer was cut, and goes on from there"),
    ("•", "accent", "marked"),
    ("▶", "accent", "decoding;  ◔ prefill  ◌ connecting  × releasing"),
)


class Page(Canvas):
    """A canvas as high as its lines."""

    DEFAULT_CSS = "Page { height: auto; width: 100%; }"

    def __init__(self, painter: Painter) -> None:
        super().__init__(painter)
        self._height = 0

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.paint(self.view, width, 0)) if self.view is not None else 1

    def show(self, view: ViewState) -> None:
        """Draw, and ask for another height if the lines need one."""
        self.view = view
        height = len(self.paint(view, self.size.width, 0))
        if height != self._height:
            self._height = height
            self.refresh(layout=True)
        super().show(view)


class PageScreen(ModalScreen[None]):
    """A scrolling page with a title."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Close"),
        *(key.binding for key in (*MOVES, *EVERYWHERE)),
    ]

    def __init__(self, title: str, painter: Painter, classes: str = "page") -> None:
        super().__init__()
        self._page_title = title
        self._painter = painter
        self._page_classes = classes

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes=self._page_classes) as page:
            page.border_title = Content(printable(self._page_title))  # text alone would be read as markup
            page.border_subtitle = "j k scroll  Esc closes"
            yield Page(self._painter)

    def show(self, view: ViewState) -> None:
        self.query_one(Page).show(view)

    def action_move(self, step: float, unit: str = "row") -> None:
        page = self.query_one(VerticalScroll)
        lines = {"row": 1, "page": page.size.height, "all": page.virtual_size.height}[unit]
        page.scroll_relative(y=int(step * lines), animate=False)


class Clients(PageScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,c", "dismiss", "Close")]

    def __init__(self) -> None:
        super().__init__("clients", lambda view, width, height: clients.body(view, width))


class Detail(PageScreen):
    """One request: it is followed from the queue to a slot to its end."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "dismiss", "Close"),
        Binding("v", "app.prompts", "Prompts"),
    ]

    def __init__(self, ident: str) -> None:
        super().__init__(ident, lambda view, width, height: detail(view, ident, width), "page narrow")


class Help(PageScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1", "dismiss", "Close")]

    def __init__(self) -> None:
        super().__init__("keys and signs", lambda view, width, height: help_lines(width))


def help_lines(width: int) -> list[Line]:
    half = (width - 4) // 2 if width >= 100 else width
    blocks = [
        _block(name, ((key.label, "accent", key.help) for key in keys if key.help), half)
        for name, keys in GROUPS.items()
    ]
    blocks.append(_block("Signs", _SIGNS, half))
    if half == width:
        return [line for block in blocks for line in [*block, Line()]]
    left = [*blocks[0], Line(), *blocks[1], Line(), *blocks[4]]
    return columns(left, [*blocks[2], Line(), *blocks[3]], half, gap=4)


def _block(title: str, entries: Iterable[tuple[str, Tone, str]], width: int) -> list[Line]:
    lines = [Line(title, "strong")]
    for sign, tone, text in entries:
        for y, line in enumerate(wrap(text, max(20, width - _KEY_WIDTH))):
            lines.append(Line(cell(sign if y == 0 else "", _KEY_WIDTH), tone).add(line))
    return lines
