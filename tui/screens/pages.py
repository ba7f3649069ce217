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
from tui.board_panels import Painter
from tui.keys import EVERYWHERE, GROUPS, MOVES, ON_REQUEST
from tui.styled_text import Line, Tone, cell, columns, wrap
from tui.view_state import ViewState
from tui.widgets.canvas import Canvas

_KEY_WIDTH = 7
_UNSAID = ("cancel_now", "priority")
_SCROLLS = "j k scroll  Esc closes"
_COLUMNS: tuple[tuple[str, Tone, str], ...] = (
    ("#", "ink", "place by predicted start"),
    ("why", "ink", "the rule that gives its place"),
    ("tokens", "ink", "~expected, so far/expected, predicted→real"),
    ("ETA", "ink", "when it starts or ends, four of five times"),
    ("of τ", "ink", "wait as a share of its tau"),
    ("total", "ink", "from arrival to end;  for: since its start"),
    ("TTFT", "ink", "from arrival to first token"),
    ("waits", "ink", "of a program, against order of arrival, on average"),
    ("by", "ink", "τ: started by tau;  ▲: by an operator"),
)
_SIGNS: tuple[tuple[str, Tone, str], ...] = (
    ("S", "short", "fewer than 200 tokens expected"),
    ("M", "medium", "200 to 799 tokens;  M→L: the answer was long"),
    ("L", "long", "800 tokens or more"),
    ("τ", "alert", "past tau, or started because it was"),
    ("▲", "accent", "started because an operator moved it to the front"),
    ("½", "accent", "preempted: its tokens so far / expected"),
    ("•", "accent", "marked"),
    ("▶", "accent", "decoding;  ◔ prefill  ◌ connecting  × releasing"),
)


class Page(Canvas):
    """A canvas as high as its lines."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(super().paint(self.view, width, 0)) if self.view is not None else 1

    def paint(self, view: ViewState, width: int, height: int) -> list[Line]:
        lines = super().paint(view, width, height)
        if len(lines) != height:
            self.refresh(layout=True)
        return lines


class PageScreen(ModalScreen[None]):
    """A scrolling page with a title. The key that opens it closes it, too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Close"),
        Binding("v", "app.prompts", "Prompts"),
        *(key.binding for key in (*MOVES, *EVERYWHERE)),
    ]

    def __init__(self, title: str, painter: Painter, key: str = "enter", *, narrow: bool = False) -> None:
        super().__init__()
        self.about = ""  # the id of the request that it shows, and on which the keys act
        for each in key.split(","):
            self._bindings.key_to_bindings[each] = [Binding(each, "dismiss")]
        self._page = VerticalScroll(Page("", painter), classes="page narrow" if narrow else "page")
        self._page.border_title = Content(printable(title))  # text alone would be read as markup
        self._page.border_subtitle = _SCROLLS

    def compose(self) -> ComposeResult:
        yield self._page

    def on_mount(self) -> None:
        self.call_after_refresh(self.app.draw)  # type: ignore[attr-defined]  # the dashboard's

    def show(self, view: ViewState) -> None:
        self.query_one(Page).show(view)

    @classmethod
    def of_request(cls, ident: str, painter: Painter) -> "PageScreen":
        """Return the page of a request; the keys of the board that act on a request act on this one."""
        page = cls(ident, painter, narrow=True)
        page.about = ident
        for key in ON_REQUEST:
            bound = f"app.on_board({str(key.action)!r})"
            page._bindings.key_to_bindings |= {each: [Binding(each, bound)] for each in key.keys.split(",")}
        hints = [f"{key.label} {key.hint or key.name}" for key in ON_REQUEST if key.name not in _UNSAID]
        page._page.border_subtitle = "  ".join((*hints, _SCROLLS))
        return page

    def action_move(self, step: float, unit: str = "row") -> None:
        page = self._page
        lines = {"row": 1, "page": page.size.height, "all": page.virtual_size.height}[unit]
        page.scroll_relative(y=int(step * lines), animate=False)


def help_lines(view: ViewState, width: int, height: int) -> list[Line]:
    half = (width - 4) // 2 if width >= 100 else width
    blocks = [
        _block(name, ((key.label, "accent", key.help) for key in keys if key.help), half)
        for name, keys in GROUPS.items()
    ]
    blocks += [_block("Signs", _SIGNS, half), _block("Columns", _COLUMNS, half)]
    if half == width:
        return [line for block in blocks for line in block]
    chosen, daemon, seen, moves, signs, titles = blocks
    return columns([*chosen, *daemon, *signs[:-1]], [*seen, *moves, *titles[:-1]], half, gap=4)


def _block(title: str, entries: Iterable[tuple[str, Tone, str]], width: int) -> list[Line]:
    lines = [Line(title, "strong")]
    for sign, tone, text in entries:
        for y, line in enumerate(wrap(text, max(20, width - _KEY_WIDTH))):
            lines.append(Line(cell(sign if y == 0 else "", _KEY_WIDTH), tone).add(line))
    return [*lines, Line()]
