"""Draws the last ten minutes: queue length, tokens per second, promotions by tau."""

from collections.abc import Iterable, Sequence

from tui.braille import Dots
from tui.formatting import count, spark
from tui.history import SAMPLES, Sample
from tui.panels import tau
from tui.panels.plots import with_axis
from tui.styled_text import Line, Tone, ends
from tui.view_state import ViewState

AXIS, _TREND = 6, 12
_TWO_GRAPHS = 11
_LEAST_TOP = 4.0


def of(view: ViewState) -> object:
    samples = view.history.samples
    return samples[-1] if samples else None


def facts(view: ViewState) -> Line:
    return Line(" last 10 min ", "soft")


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """The queue over the tokens, or, if the panel is low, over a line of them; then tau."""
    cells = max(1, width - AXIS)
    dots = _by_time(view.history.samples, 2 * cells)
    waiting = _queue(dots)
    speed = _filled(sum(each.tokens_per_s for each in part) / len(part) if part else None for part in dots)
    below = [
        Line(f"{'tau':>{AXIS - 1}} ", "faint").join(tau.strip(view, cells)),
        ends(Line(" " * AXIS).add("10 min ago", "faint"), Line("now", "faint"), width),
    ]
    if height >= _TWO_GRAPHS:
        upper = (height - len(below)) // 2
        lower = height - len(below) - upper
        return [
            *area("waiting", waiting, "accent", width, upper),
            *area("tokens/s", speed, "soft", width, lower),
            *below,
        ]
    known = [each for each in speed[::2] if each is not None]
    line = Line(f"{'tok/s':>{AXIS - 1}} ", "faint").add(f"{spark(known, cells):>{cells}}", "soft")
    return [*area("waiting", waiting, "accent", width, height - 3), line, *below]


def trend(view: ViewState) -> Line:
    """The length of the queue in the last ten minutes, as small as can be."""
    known = [each for each in _queue(_by_time(view.history.samples, _TREND)) if each is not None]
    return Line(spark(known, _TREND), "faint") if any(known) else Line()


def _queue(parts: list[list[Sample]]) -> list[float | None]:
    return _filled(max((each.waiting for each in part), default=None) for part in parts)


def _by_time(samples: Iterable[Sample], columns: int) -> list[list[Sample]]:
    """Return the samples under each column of dots; the columns stand still while time goes on."""
    parts: list[list[Sample]] = [[] for _ in range(columns)]
    step_s = SAMPLES / columns
    samples = [*samples]
    last = int(samples[-1].at / step_s) if samples else 0
    for each in samples:
        at = columns - 1 - last + int(each.at / step_s)
        if 0 <= at < columns:
            parts[at].append(each)
    return parts


def _filled(values: Iterable[float | None]) -> list[float | None]:
    """Continue each value until the next: states come less often than columns."""
    last: float | None = None
    return [last := last if value is None else value for value in values]


def area(name: str, values: Sequence[float | None], tone: Tone, width: int, height: int) -> list[Line]:
    """Draw a title with the newest and the highest value, and the area under the values."""
    known = [each for each in values if each is not None]
    top = max([*known, _LEAST_TOP])
    dots = Dots(width - AXIS, height - 1)
    values = [*[None] * (2 * dots.width - len(values)), *values]
    for x, value in enumerate(values):
        dots.column(x, (value or 0.0) / top, tone)
    title = Line(f"{name} ", "faint").add(count(known[-1]) if known else "–", "strong")
    title = ends(title, Line("most ", "faint").add(count(max(known, default=None))), width)
    return [title, *with_axis(dots, {1.0: count(top), 0.0: "0"})]
