"""The container of the panels: it stands them where the plan says."""

from collections.abc import Callable

from textual.containers import Container
from textual.geometry import Offset, Region, Size, Spacing
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.widget import Widget

from tui.layout import Box


class PlanLayout(Layout):
    """Asks a plan for boxes by the children's ids. A child without a box is not placed."""

    name = "plan"

    def __init__(self, plan: Callable[[int, int], dict[str, Box]]) -> None:
        self._plan = plan

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        """Place the children."""
        boxes = self._plan(size.width, size.height)
        return [
            WidgetPlacement(
                Region(box.x, box.y, box.width, box.height),
                Offset(),
                Spacing(),
                child,
                0,
                False,
                False,
                False,
            )
            for child in children
            if (box := boxes.get(child.id or "")) is not None
        ]


class Board(Container):
    """All panels; `plan` gives a box to each that is to be seen."""

    def __init__(self, *children: Widget, plan: Callable[[int, int], dict[str, Box]]) -> None:
        super().__init__(*children, id="board")
        self._plan_layout = PlanLayout(plan)

    @property
    def layout(self) -> Layout:
        """The layout that follows the plan."""
        return self._plan_layout
