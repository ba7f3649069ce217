"""Draws the last ten minutes: queue, tokens per second, starts by tau."""

from collections.abc import Iterator

from tui.braille import AXIS, area
from tui.formatting import spark
from tui.history import SAMPLES, Sample
from tui.styled_text import Line, ends, gathered
from tui.view_state import ViewState

_TREND = 12
_TWO_GRAPHS = 11
_SPAN_S = 600.0


def of(view: ViewState) -> object:
    """What the graph shows changes with each second."""
    return next(reversed(view.history.samples), None), view.state.taken_at // 1.0, view.state.tau.tau_s


def graph(view: ViewState, width: int, height: int) -> list[Line]:
    """The queue over the tokens, or, if the panel is low, over a line of them; then tau."""
    cells = max(1, width - AXIS)
    waiting, speed = zip(*_by_time(view, 2 * cells), strict=True)
    below = [
        Line(f"{'tau':>{AXIS - 1}} ", "faint").join(_firings(view, cells)),
        ends(Line(" " * AXIS).add("10 min ago", "faint"), Line("now", "faint"), width),
    ]
    if height >= _TWO_GRAPHS:
        below = [*area("tokens/s", speed, "soft", width, (height - 1) // 2), *below]
    else:
        known = [each for each in speed[::2] if each is not None]
        line = Line(f"{'tok/s':>{AXIS - 1}} ", "faint").add(f"{spark(known, cells):>{cells}}", "soft")
        below = [line, *below]
    return [*area("waiting", waiting, "accent", width, height - len(below)), *below]


def _firings(view: ViewState, width: int) -> Line:
    """Draw the starts by tau of the last ten minutes, `width` cells wide."""
    step_s = _SPAN_S / width
    now = (view.now // step_s + 1) * step_s
    hits = {width - 1 - int((now - at) / step_s) for at in view.state.tau.recent}
    return gathered(("◆", "alert") if x in hits else ("·", "track") for x in range(width))


def trend(view: ViewState) -> Line:
    """The length of the queue in the last ten minutes, as small as can be."""
    known = [waiting for waiting, _ in _by_time(view, _TREND) if waiting is not None]
    return Line(spark(known, _TREND), "faint") if any(known) else Line()


def _by_time(view: ViewState, columns: int) -> Iterator[tuple[float | None, float | None]]:
    """Yield the longest queue and the mean speed under each column of dots; without a state, the last ones.

    The columns stand still while time goes on.
    """
    parts: list[list[Sample]] = [[] for _ in range(columns)]
    samples, step_s = view.history.samples, SAMPLES / columns
    for each in samples:
        at = columns - 1 - int(samples[-1].at / step_s) + int(each.at / step_s)
        if 0 <= at < columns:
            parts[at].append(each)
    last: tuple[float | None, float | None] = None, None
    for part in parts:
        if part:
            last = max(each.waiting for each in part), sum(each.tokens_per_s for each in part) / len(part)
        yield last
