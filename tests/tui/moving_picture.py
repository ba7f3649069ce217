"""A screen over time as one SVG that moves by CSS alone, so that it plays wherever a picture is shown.

A line of the screen that stays the same is drawn once, and is visible while it holds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import DIMMED_MONOKAI

CELL_X, CELL_Y, MARGIN = 8.4, 17.0, 10.0
_FONT = "14px 'Fira Code', 'Cascadia Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace"


@dataclass(slots=True)
class MovingPicture:
    """Takes screens, each a list of lines of segments, one every `frame_s` seconds."""

    width: int
    height: int
    ground: str
    frame_s: float
    _frames: int = 0
    _seen: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    _styles: dict[str, str] = field(default_factory=dict)

    def take(self, lines: Iterable[Iterable[Segment]]) -> None:
        for y, line in enumerate(lines):
            drawn = self._line(y, line)
            if drawn:
                self._seen.setdefault((y, drawn), []).append(self._frames)
        self._frames += 1

    def svg(self) -> str:
        rules: dict[str, str] = {}
        parts = []
        for (_, drawn), frames in self._seen.items():
            name = self._visible(frames, rules)
            # A viewer without animations shows the last frame alone.
            still = "" if frames[-1] == self._frames - 1 else ' visibility="hidden"'
            parts.append(f'<g class="{name}"{still}>{drawn}</g>' if name else drawn)
        wide, high = 2 * MARGIN + self.width * CELL_X, 2 * MARGIN + self.height * CELL_Y
        styles = [f".{name}{{{rule}}}" for rule, name in self._styles.items()]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" xml:space="preserve">'
            f"<style>text{{font:{_FONT};white-space:pre}}{''.join(styles)}{''.join(rules.values())}</style>"
            f'<rect width="100%" height="100%" rx="8" fill="{self.ground}"/>' + "\n".join(parts) + "</svg>\n"
        )

    def _visible(self, frames: Sequence[int], rules: dict[str, str]) -> str:
        """Return the class of what is seen in these frames, none if in all of them."""
        if len(frames) == self._frames:
            return ""
        name = f"f{'-'.join(map(str, _runs(frames)))}"
        if name not in rules:
            shown = set(frames)
            edges = [at for at in range(self._frames) if not at or (at in shown) != (at - 1 in shown)]
            steps = "".join(
                f"{100 * at / self._frames:.2f}%{{visibility:{'visible' if at in shown else 'hidden'}}}"
                for at in edges
            )
            seconds = self._frames * self.frame_s
            rules[name] = (
                f"@keyframes {name}{{{steps}}}.{name}{{animation:{name} {seconds:g}s step-end infinite}}"
            )
        return name

    def _line(self, y: int, line: Iterable[Segment]) -> str:
        top = MARGIN + y * CELL_Y
        drawn, x = [], 0
        for text, style, _ in line:
            cells = cell_len(text)
            left, wide = MARGIN + x * CELL_X, cells * CELL_X
            x += cells
            paint = style or Style()
            back = _hex(paint.bgcolor) if paint.bgcolor and not paint.reverse else ""
            if back and back != self.ground:
                rect = f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{CELL_Y}" '
                drawn.append(f'{rect}class="{self._class(f"fill:{back}")}"/>')
            word = text.strip()
            if word:
                rule = f"fill:{_hex(paint.color)}" + (";font-weight:bold" if paint.bold else "")
                start = left + CELL_X * cell_len(text[: len(text) - len(text.lstrip())])
                length = f'textLength="{CELL_X * cell_len(word):.1f}"'
                place = f'x="{start:.1f}" y="{top + 13:.1f}" {length} class="{self._class(rule)}"'
                drawn.append(f"<text {place}>{escape(word)}</text>")
        return "".join(drawn)

    def _class(self, rule: str) -> str:
        return self._styles.setdefault(rule, f"s{len(self._styles)}")


def _runs(frames: Sequence[int]) -> list[int]:
    shown = set(frames)
    return [at for at in range(min(frames), max(frames) + 2) if (at in shown) != (at - 1 in shown)]


def _hex(colour: Color | None) -> str:
    return (colour or Color.parse("white")).get_truecolor(DIMMED_MONOKAI).hex
