"""Sends of a board what has changed, and makes nothing else.

Textual's own compositor asks every widget for all of its lines in each frame, and cuts all of them at the
edges of every other. Canvases that stand side by side cover nobody, and know which cells they have changed.
"""

from rich.console import COLOR_SYSTEMS, Console
from textual._compositor import Compositor, CompositorUpdate  # the pinned version's; there is no public door
from textual.geometry import Offset, Region

from tui.widgets.board import Board
from tui.widgets.canvas import Canvas

Patch = tuple[Canvas, Offset, Region]
"""A canvas, where it stands, and which cells of the screen it has changed."""


class Patches(CompositorUpdate):
    """What canvases have changed."""

    def __init__(self, patches: list[Patch]) -> None:
        self._patches = patches

    def render_segments(self, console: Console) -> str:
        """Return what draws it."""
        colours = COLOR_SYSTEMS[console.color_system or "truecolor"]  # as Textual has it for its strips
        drawn = []
        for canvas, (left, top), (x, y, width, height) in self._patches:
            for line in range(y, y + height):
                text = canvas.patch(line - top, x - left, x - left + width, colours)
                drawn.append(f"\x1b[{line + 1};{x + 1}H{text}")
        return "".join(drawn)


class BoardCompositor(Compositor):
    """Textual's, but for frames in which only canvases change that nothing covers."""

    _map: object = None
    _canvases: tuple[tuple[Region, Canvas], ...] = ()

    def render_partial_update(self) -> CompositorUpdate | None:  # type: ignore[override]  # a sibling of its own
        """Return what has changed; None if nothing has."""
        patches: list[Patch] = []
        canvases = self._standing()
        for dirty in self._dirty_regions:
            place = next((each for each in canvases if each[0].contains_region(dirty)), None)
            if place is None:
                return super().render_partial_update()
            region, canvas = place
            patches.append((canvas, region.offset, dirty))
        self._dirty_regions.clear()
        return Patches(patches) if patches else None

    def _standing(self) -> tuple[tuple[Region, Canvas], ...]:
        """Return where each canvas stands; none if there is anything else to be seen, which may cover one."""
        visible = self.visible_widgets
        if visible is not self._map:
            self._map = visible
            widgets = [each for each in visible if each is not self.root and not isinstance(each, Board)]
            whole = all(
                isinstance(each, Canvas) and visible[each][1].contains_region(visible[each][0])
                for each in widgets
            )
            found = ((visible[each][0], each) for each in widgets if isinstance(each, Canvas))
            self._canvases = tuple(found) if whole else ()
        return self._canvases
