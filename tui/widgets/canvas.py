"""A widget that shows the lines a painter gives it, and redraws only those that changed."""

from collections.abc import Callable, Mapping

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.palette import Palette
from tui.styled_text import Line, Tone, changed
from tui.view_state import LinkState, ViewState

Painter = Callable[[ViewState, int, int], list[Line]]
Of = Callable[[ViewState], object]
"""What a drawing depends on: it is repainted only when that changes."""

Paint = tuple[Style, Mapping[Tone, Style]]
"""The style of blanks, and of text in each tone."""


class Canvas(Widget):
    """Draws `painter(view, width, height)`, and refreshes only the cells that changed."""

    fades = False
    """Whether a state that is out of date is drawn grey."""

    def __init__(
        self, painter: Painter | None = None, *, name: str = "", focusable: bool = False, of: Of | None = None
    ) -> None:
        super().__init__(id=name or None)
        self._painter = painter
        self._of = of
        self._is_of: object = None
        self.can_focus = focusable
        self.view: ViewState | None = None
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}
        self._marked: frozenset[int] = frozenset()
        self._stale = False
        self._paints: dict[tuple[bool, bool], Paint] = {}

    def show(self, view: ViewState) -> None:
        self.view = view
        stale = view.link.state is LinkState.LOST
        self._stale, turned = stale, stale is not self._stale
        was_of = self._is_of
        self._is_of = self._of(view) if self._of else None
        if turned or was_of is None or self._is_of != was_of:
            self.redraw(entirely=turned)

    def paint(self, view: ViewState, width: int, height: int) -> list[Line]:
        return self._painter(view, width, height) if self._painter else []

    def lit_rows(self) -> frozenset[int]:
        return frozenset()

    def redraw(self, *, entirely: bool = False) -> None:
        if self.view is None or not self.display or not self.size.area:
            return
        width, height = self.size
        lines = [line.fit(width) for line in self.paint(self.view, width, height)[:height]]
        lines += [Line()] * (height - len(lines))
        marked = self.lit_rows()
        before, was_marked = self._lines, self._marked
        self._lines, self._marked = lines, marked
        if entirely or len(before) != height:
            self._forget_colours()
            self.refresh()
            return
        relit = marked ^ was_marked
        regions = []
        for y, (old, new) in enumerate(zip(before, lines, strict=True)):
            left, right = (0, width) if y in relit else changed(old, new, width)
            if right > left:
                self._strips.pop(y, None)
                regions.append(Region(left, y, right - left, 1))
        if regions:
            self.refresh(*regions)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines coloured once; Textual's own way costs more, for borders that a canvas lacks."""
        left, right = crop.column_span
        return [self.render_line(y).crop(left, right) for y in crop.line_range]

    def render_line(self, y: int) -> Strip:
        """Turn one line into what Textual draws."""
        drawn = self._strips.get(y)
        if drawn is None:
            width = self.size.width
            line = self._lines[y] if y < len(self._lines) else Line()
            drawn = self._strips[y] = strip(line, self._paint(y in self._marked), width)
        return drawn

    def _paint(self, marked: bool) -> Paint:
        """Return the colours of a line, with the filters of the application applied once."""
        stale = self.fades and self._stale
        paint = self._paints.get((marked, stale))
        if paint is None:
            palette: Palette = self.app.palette  # type: ignore[attr-defined]  # the dashboard's
            ground = self.rich_style + palette.cursor if marked else self.rich_style
            styles = palette.stale if stale else palette.styles
            tones = {tone: self._filtered(ground + style) for tone, style in styles.items()}
            paint = self._paints[marked, stale] = self._filtered(ground), tones
        return paint

    def _filtered(self, style: Style) -> Style:
        segments, background = [Segment(" ", style)], self.background_colors[1]
        for each in self.get_line_filters():
            segments = each.apply(segments, background)
        return segments[0].style or Style.null()

    def _forget_colours(self) -> None:
        self._paints.clear()
        self._strips.clear()

    def notify_style_update(self) -> None:
        self._forget_colours()
        super().notify_style_update()

    def on_resize(self, event: events.Resize) -> None:
        self._lines = []
        self._forget_colours()
        self.redraw()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw()


def strip(line: Line, paint: Paint, width: int) -> Strip:
    ground, styles = paint
    segments = [Segment(text, styles[tone]) for text, tone in line.spans]
    if line.width < width:
        segments.append(Segment(" " * (width - line.width), ground))
    return Strip(segments, max(width, line.width))
