"""A canvas with a title rule: the panel's key, its name and its main fact."""

from collections.abc import Callable

from textual import events

from tui.layout import PANELS
from tui.styled_text import Line
from tui.view_state import ViewState
from tui.widgets.canvas import Canvas, Of, Painter

Facts = Callable[[ViewState], Line]
MARGIN = 1
"""Cells to the left and right of a panel's body."""


def key_of(name: str) -> str:
    return "a" if name == "sessions" else str((PANELS.index(name) + 1) % 10)


class Panel(Canvas, can_focus=True):
    """A panel. On a small terminal its rule lists all panels of the `deck` that it is in."""

    def __init__(
        self,
        name: str,
        painter: Painter | None = None,
        facts: Facts = lambda view: Line(),
        *,
        of: Of | None = None,
        of_daemon: bool = True,
    ) -> None:
        """What is `of_daemon` is empty before the first state, and grey while the daemon is lost."""
        super().__init__(name, painter, of)
        self.panel = name
        self.deck: tuple[str, ...] = ()
        self.fades = of_daemon
        self._facts = facts

    def paint(self, view: ViewState, width: int, height: int) -> list[Line]:
        inner = width - 2 * MARGIN
        body = self.body(view, inner, height - 1)
        return [self.rule(view, width), *(Line(" " * MARGIN).join(line.fit(inner)) for line in body)]

    def body(self, view: ViewState, width: int, height: int) -> list[Line]:
        return super().paint(view, width, height) if view.snapshot or not self.fades else []

    def facts(self, view: ViewState) -> Line:
        return self._facts(view) if view.snapshot or not self.fades else Line()

    def rule(self, view: ViewState, width: int) -> Line:
        line, facts = Line("─", "track"), self.facts(view)
        for _, label in self._labels(width):
            line.join(label)
        if line.width + facts.width + 2 > width:
            facts = Line()
        line = line.fit(width)
        line.add("─" * (width - line.width - facts.width - 1), "track")
        return line.join(facts).add("─" * (line.width < width), "track")

    def _labels(self, width: int) -> list[tuple[str, Line]]:
        """Return the labels of the panels in the rule, closer to each other if they do not fit."""
        for gap in (" ", ""):
            labels = [(name, self._label(name, gap)) for name in self.deck or (self.panel,)]
            if sum(label.width for _, label in labels) + 2 <= width:
                break
        return labels

    def _label(self, name: str, gap: str = " ") -> Line:
        if name != self.panel:
            return Line(f" {key_of(name)} {name}{gap}", "faint")
        if self.has_focus:
            return Line(f"▸{key_of(name)} {name}{gap}", "accent")
        return Line(f" {key_of(name)}", "faint").add(f" {name}{gap}", "strong")

    async def on_click(self, event: events.Click) -> None:
        left = 1
        for name, label in self._labels(self.size.width) if self.deck and event.y == 0 else ():
            if left <= event.x < left + label.width:
                await self.app.run_action(f"go('{name}')", self.screen)
            left += label.width
