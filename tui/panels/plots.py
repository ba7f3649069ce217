"""Draws plots of the last ten minutes: queue, tokens per second, tau; waits."""

from collections.abc import Iterator
from math import log10

from tui.braille import AXIS, Dots, area
from tui.formatting import CLASS_LETTER, spark
from tui.history import SAMPLES, Sample
from tui.styled_text import Line, ends, gathered
from tui.view_state import ViewState

_TREND = 12
_TWO_GRAPHS = 11
_WAIT_DECADES = (-1.3, 2.7)
_SPAN_S = 600.0


def of(view: ViewState) -> object:
    """What the plots show changes with each second."""
    return next(reversed(view.history.samples), None), view.state.taken_at // 1.0, view.state.tau.tau_s


def graph_facts(view: ViewState) -> Line:
    return Line(" last 10 min ", "soft")


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


def plots(view: ViewState, width: int, height: int) -> list[Line]:
    """Plot the waits of ended requests over time on a log scale, a band for each class; dashed is tau."""
    tau_s = view.state.tau.tau_s
    step_s = _SPAN_S / (2 * max(1, width - AXIS))
    now = (view.now // step_s + 1) * step_s  # points move together, a dot at a time
    lines = [Line("wait by class, last 10 min  ", "faint")]
    classes = {each.predicted.length_class for each in view.history.finished.values()}
    if tau_s and classes:
        lines[0].add("╌ ", "alert").add("τ", "faint")
    for at, (name, letter) in enumerate(CLASS_LETTER.items()):
        dots = Dots(width - AXIS, (height - 1) * (at + 1) // 3 - (height - 1) * at // 3)
        for x in range(0, 2 * dots.width, 6) if tau_s and name in classes else ():
            dots.column(x, _place(tau_s or 0.0), "alert")
        for request in view.history.finished.values():
            if request.predicted.length_class == name:
                ago = (now - request.finished_at) / _SPAN_S
                dots.mark(1.0 - ago, _place(request.waited_s), name)
        lines += dots.lines({_place(10.0): "10s"}, Line(letter, name))
    return lines[:height]


def _place(value_s: float) -> float:
    """Place a wait on a logarithmic axis, 0 at the bottom and 1 at the top."""
    low, high = _WAIT_DECADES
    return (log10(max(value_s, 1e-9)) - low) / (high - low)
