"""Widgets that show the lines a painter gives them, and redraw only those that changed."""

from collections.abc import Callable, Mapping

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from tui.board_panels import BY_NAME, Painter, PanelRecord
from tui.palette import Palette
from tui.styled_text import Line, Tone
from tui.table_layout import Grid
from tui.view_state import ViewState

MARGIN = 1  # cells to the left and right of a panel's body
Of = Callable[[ViewState], object]  # what a drawing depends on, if time alone does not change it


class Canvas(Widget):
    """Draws `painter(view, width, height)`, and refreshes only the lines that changed."""

    fades = False  # whether a state that is out of date is drawn grey

    def __init__(self, name: str, painter: Painter | None = None, of: Of | None = None) -> None:
        super().__init__(id=name or None)
        self._painter = painter
        self._of = of
        self._is_of: object = None
        self.view: ViewState | None = None
        self._lines: list[tuple[Line, bool]] = []  # and whether the cursor is on it
        self._strips: dict[int, Strip] = {}
        self._stale = False
        self._paints: dict[bool, tuple[Style, Mapping[Tone, Style]]] = {}  # of blanks, and of each tone

    def show(self, view: ViewState) -> None:
        stale = self.fades and bool(view.lost)
        self.view, self._stale, turned = view, stale, stale is not self._stale
        was_of, self._is_of = self._is_of, self._of(view) if self._of else object()
        if turned or self._is_of != was_of:
            self.redraw(entirely=turned)

    def paint(self, view: ViewState, width: int, height: int) -> list[Line]:
        return self._painter(view, width, height) if self._painter else []

    def lit_row(self) -> int | None:
        return None

    def redraw(self, *, entirely: bool = False) -> None:
        if self.view is None or not self.display or not self.size.area:
            return
        width, height = self.size
        lines = [line.fit(width) for line in self.paint(self.view, width, height)[:height]]
        lines += [Line()] * (height - len(lines))
        lit = self.lit_row()
        before, self._lines = self._lines, [(line, y == lit) for y, line in enumerate(lines)]
        if entirely or len(before) != height:
            self._forget()
            self.refresh()
        elif changed := [y for y in range(height) if before[y] != self._lines[y]]:
            for y in changed:
                self._strips.pop(y, None)
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return lines coloured once. Textual's own way makes a frame a quarter dearer, for borders."""
        left, right = crop.column_span
        return [self._strip(y).crop(left, right) for y in crop.line_range]

    def _strip(self, y: int) -> Strip:
        if y not in self._strips:
            line, lit = self._lines[y] if y < len(self._lines) else (Line(), False)
            ground, styles = self._paints.get(lit) or self._paint(lit)
            segments = [Segment(text, styles[tone]) for text, tone in line]
            segments.append(Segment(" " * (self.size.width - line.width), ground))
            self._strips[y] = Strip(segments, max(self.size.width, line.width))
        return self._strips[y]

    def _paint(self, lit: bool) -> tuple[Style, Mapping[Tone, Style]]:
        """Return the colours of a line, with the filters of the application applied once."""
        palette: Palette = self.app.palette  # type: ignore[attr-defined]  # the dashboard's
        ground = self.rich_style + palette.cursor if lit else self.rich_style
        styles = palette.stale if self._stale else palette.styles
        tones = {tone: self._filtered(ground + style) for tone, style in styles.items()}
        self._paints[lit] = self._filtered(ground), tones
        return self._paints[lit]

    def _filtered(self, style: Style) -> Style:
        segments, background = [Segment(" ", style)], self.background_colors[1]
        for each in self.get_line_filters():
            segments = each.apply(segments, background)
        return segments[0].style or Style.null()

    def _forget(self) -> None:
        self._strips.clear()
        self._paints.clear()

    def notify_style_update(self) -> None:
        self._forget()
        super().notify_style_update()

    def on_resize(self, event: events.Resize) -> None:
        self.redraw(entirely=True)

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw()


class Panel(Canvas, can_focus=True):
    """A canvas under a rule with its key, its name and its main fact. On a small terminal the rule lists all
    panels of the `deck` that it is in.
    """

    def __init__(self, record: PanelRecord) -> None:
        body = record.body
        painter, depends = (None, body.of) if isinstance(body, Grid) else (body, record.depends)
        super().__init__(record.name, painter, depends)
        self.record, self.panel = record, record.name
        self.deck: tuple[str, ...] = ()
        self.fades = record.of_daemon

    def paint(self, view: ViewState, width: int, height: int) -> list[Line]:
        inner = width - 2 * MARGIN
        body = self.body(view, inner, height - 1)
        return [self.rule(view, width), *(Line(" " * MARGIN).join(line.fit(inner)) for line in body)]

    def body(self, view: ViewState, width: int, height: int) -> list[Line]:
        return super().paint(view, width, height) if view.snapshot or not self.fades else []

    def facts(self, view: ViewState) -> Line:
        return self.record.facts(view) if view.snapshot or not self.fades else Line()

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
        """Return the labels of the panels in the rule, closer to each other or as keys if they do not fit."""
        for gap in (" ", "", None):
            labels = [(name, self._label(name, gap)) for name in self.deck or (self.panel,)]
            if sum(label.width for _, label in labels) + 2 <= width:
                break
        return labels

    def _label(self, name: str, gap: str | None = " ") -> Line:
        """Return the label of a panel; without a gap the key alone, but for the panel itself."""
        key, named = BY_NAME[name].key, f" {name}{gap or ''}"
        if name != self.panel:
            return Line(f" {key}" if gap is None else f" {key}{named}", "faint")
        if self.has_focus:
            return Line(f"▸{key}{named}", "accent")
        return Line(f" {key}", "faint").add(named, "strong")

    async def on_click(self, event: events.Click) -> None:
        left = 1
        for name, label in self._labels(self.size.width) if self.deck and event.y == 0 else ():
            if left <= event.x < left + label.width:
                await self.app.run_action(f"go('{name}')", self.screen)
            left += label.width
