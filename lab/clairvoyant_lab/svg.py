"""Draws plots as SVG: axes with units, round ticks, error bars, a legend."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 55
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, which is safe for colour-blind readers."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve and the half width of its confidence interval."""

    x: float
    y: float
    half_width: float = 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """A named line. `marked` draws its points."""

    name: str
    points: tuple[Point, ...]
    marked: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one pair of axes; the labels contain the units."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]


def svg(plots: Sequence[Plot]) -> str:
    """Return all plots, one below the other, as one SVG document."""
    body = [line for number, plot in enumerate(plots) for line in _panel(plot, number * HEIGHT)]
    height = HEIGHT * len(plots)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *body, "</svg>", ""])


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Return round numbers (1, 2 or 5 times a power of ten apart) that cover the range."""
    span = high - low or abs(high) or 1.0
    rough = span / about
    power = 10.0 ** floor(log10(rough))
    step = power * next(m for m in (1.0, 2.0, 5.0, 10.0) if m * power >= rough * (1.0 - 1e-9))
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, max(last, first + 1) + 1)]


def _extent(curves: Sequence[Curve]) -> tuple[list[float], list[float]]:
    points = [point for curve in curves for point in curve.points]
    xs = [point.x for point in points] or [0.0, 1.0]
    spreads = [p.half_width if isfinite(p.half_width) else 0.0 for p in points]
    lows = [p.y - s for p, s in zip(points, spreads, strict=True)] or [0.0]
    highs = [p.y + s for p, s in zip(points, spreads, strict=True)] or [1.0]
    return ticks(min(xs), max(xs)), ticks(min(*lows, 0.0), max(*highs, 0.0))


def _panel(plot: Plot, offset: int) -> Iterator[str]:
    x_ticks, y_ticks = _extent(plot.curves)
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at_x(x: float) -> float:
        return LEFT + (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * plot_width

    def at_y(y: float) -> float:
        return offset + TOP + (y_ticks[-1] - y) / (y_ticks[-1] - y_ticks[0]) * plot_height

    bottom, right = offset + TOP + plot_height, LEFT + plot_width
    yield f'<text x="{LEFT}" y="{offset + 22}" font-size="14">{escape(plot.title)}</text>'
    for tick in y_ticks:
        y = at_y(tick)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
    for tick in x_ticks:
        x = at_x(tick)
        yield f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="black"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">{tick:g}</text>'
    yield f'<path d="M{LEFT} {offset + TOP}V{bottom}H{right}" fill="none" stroke="black"/>'
    across, middle = LEFT + plot_width / 2, offset + TOP + plot_height / 2
    yield f'<text x="{across}" y="{bottom + 40}" text-anchor="middle">{escape(plot.x_label)}</text>'
    turned = f'transform="translate(18 {middle}) rotate(-90)"'
    yield f'<text {turned} text-anchor="middle">{escape(plot.y_label)}</text>'
    for number, curve in enumerate(plot.curves):
        colour = COLOURS[number % len(COLOURS)]
        yield from _curve(curve, colour, at_x, at_y)
        key_y = offset + TOP + 12 + 18 * number
        line = f'x1="{right + 12}" y1="{key_y}" x2="{right + 34}" y2="{key_y}"'
        yield f'<line {line} stroke="{colour}"/>'
        yield f'<text x="{right + 40}" y="{key_y + 4}">{escape(curve.name)}</text>'


def _curve(
    curve: Curve, colour: str, at_x: Callable[[float], float], at_y: Callable[[float], float]
) -> Iterator[str]:
    spots = [(at_x(p.x), at_y(p.y)) for p in curve.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
    for (x, y), point in zip(spots, curve.points, strict=True):
        if curve.marked:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        if isfinite(point.half_width) and point.half_width > 0.0:
            top, foot = at_y(point.y + point.half_width), at_y(point.y - point.half_width)
            bar = f"M{x - 3:.1f} {top:.1f}h6m-3 0V{foot:.1f}m-3 0h6"
            yield f'<path d="{bar}" fill="none" stroke="{colour}"/>'
