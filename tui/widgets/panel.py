"""A canvas with a title rule: the panel's key, its name and its main fact."""

from collections.abc import Callable

from textual import events
from textual.message import Message

from tui.layout import PANELS
from tui.styled_text import Line, Tone
from tui.view_state import ViewState
from tui.widgets.canvas import Canvas, Of, Painter

Facts = Callable[[ViewState], Line]
MARGIN = 1
"""Cells to the left and right of a panel's body."""


def key_of(name: str) -> str:
    return "a" if name == "sessions" else str((PANELS.index(name) + 1) % 10)


class Panel(Canvas):
    """A panel. On a small terminal its rule lists all panels of the `deck` that it is in."""

    class Chosen(Message):
        """A neighbour's name in the rule was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.panel = name

    def __init__(
        self,
        name: str,
        painter: Painter | None = None,
        facts: Facts | None = None,
        *,
        fades: bool = True,
        waits: bool = False,
        of: Of | None = None,
    ) -> None:
        """`fades`: it is grey while the daemon is lost; `waits`: it is empty before the first state."""
        super().__init__(painter, name=name, focusable=True, of=of)
        self.fades = fades
        self._waits = waits
        self.panel = name
        self.deck: tuple[str, ...] = ()
        self._facts = facts

    def paint(self, view: ViewState, width: int, height: int) -> list[Line]:
        inner = width - 2 * MARGIN
        body = self.body(view, inner, height - 1)
        return [self.rule(view, width), *(Line(" " * MARGIN).join(line.fit(inner)) for line in body)]

    def body(self, view: ViewState, width: int, height: int) -> list[Line]:
        return super().paint(view, width, height) if view.snapshot or not self._waits else []

    def facts(self, view: ViewState) -> Line:
        return self._facts(view) if self._facts and (view.snapshot or not self._waits) else Line()

    def rule(self, view: ViewState, width: int) -> Line:
        line = Line("─", "track")
        for label in self._labels(width):
            line.join(label)
        facts = self.facts(view)
        if line.width + facts.width + 2 > width:
            facts = Line()
        line = line.fit(width)
        line.add("─" * max(0, width - line.width - facts.width - 1), "track")
        return line.join(facts).add("─" if line.width < width else "", "track")

    def _labels(self, width: int) -> list[Line]:
        """Return the labels of the panels in the rule, closer to each other if they do not fit."""
        names = self.deck or (self.panel,)
        labels = [self._label(name) for name in names]
        fits = sum(label.width for label in labels) + 2 <= width
        return labels if fits else [self._label(name, "") for name in names]

    def _label(self, name: str, gap: str = " ") -> Line:
        if name != self.panel:
            return Line(f" {key_of(name)} {name}{gap}", "faint")
        lit: Tone = "accent" if self.has_focus else "strong"
        sign = Line("▸", "accent") if self.has_focus else Line(" ")
        return sign.add(key_of(name), "accent" if self.has_focus else "faint").add(f" {name}{gap}", lit)

    def on_click(self, event: events.Click) -> None:
        if event.y != 0:
            return
        x = 1
        for name, label in zip(self.deck, self._labels(self.size.width), strict=False):
            if x <= event.x < x + label.width:
                self.post_message(self.Chosen(name))
                return
            x += label.width
