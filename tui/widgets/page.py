"""Lines as tall as they are, for a scrolling page."""

from textual.geometry import Size

from tui.view_state import ViewState
from tui.widgets.canvas import Canvas, Painter


class Page(Canvas):
    """A canvas that is as high as what its painter gives it."""

    DEFAULT_CSS = """
    Page { height: auto; width: 100%; }
    """

    def __init__(self, painter: Painter) -> None:
        super().__init__(painter)
        self._height = 0

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines at this width."""
        return len(self.paint(self.view, width, 0)) if self.view is not None else 1

    def show(self, view: ViewState) -> None:
        """Draw a scene; ask for another height if it needs one."""
        self.view = view
        height = len(self.paint(view, self.size.width, 0))
        if height != self._height:
            self._height = height
            self.refresh(layout=True)
        super().show(view)
