"""Draws the plots: slots over time, waits by class, queue length, predicted and real tokens."""

from math import log10

from clairvoyant_cli.state.snapshot import FinishedRequest
from tui.braille import Dots
from tui.formatting import class_letter, class_tone, count
from tui.panels.timeline import timeline
from tui.styled_text import Line, cell, columns, ends
from tui.view_state import ViewState

_WAIT_DECADES = (-1.3, 2.7)
_TOKEN_DECADES = (0.6, 4.0)
_MIN_HEIGHT = 5
_SPAN_S = 600.0


def of(view: ViewState) -> object:
    """What the plots depend on."""
    state = view.snapshot
    if state is None:
        return ()
    runs = tuple((row.id, row.backend, row.slot) for row in state.running)
    slots = tuple((each.name, each.slots) for each in state.backends)
    return view.history.ended, runs, slots, state.tau.tau_s, int(view.now)


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """As many plots as fit: one, two side by side, or the slots above those two."""
    if height < _MIN_HEIGHT:
        return queue_length(view, width, height)
    if width < 76:
        if height < 2 * _MIN_HEIGHT + 2:
            return waits(view, width, height)
        top = height * 3 // 5
        return waits(view, width, top) + queue_length(view, width, height - top)
    if height < 18:
        right = min(36, width // 3)
        left = width - right - 2
        return columns(waits(view, left, height), predicted_and_real(view, right, height), left)
    slots = sum(backend.slots for backend in view.snapshot.backends) if view.snapshot else 1
    top = min(2 * slots + 2, height // 2)
    half = (width - 2) // 2
    low = height - top - 1
    right_plot = predicted_and_real(view, width - half - 2, low)
    return [*timeline(view, width, top), Line(), *columns(waits(view, half, low), right_plot, half)]


def waits(view: ViewState, width: int, height: int) -> list[Line]:
    """Plot the waits of ended requests over time, on a log scale; the dashed line is tau."""
    tau_s = view.snapshot.tau.tau_s if view.snapshot else None
    step_s = _SPAN_S / (2 * max(1, width - 6))
    now = (view.now // step_s + 1) * step_s  # points move together, a dot at a time
    of = (width, height, tau_s, now, view.history.ended)
    return view.history.picture("waits", of, lambda: _waits(view, width, height, tau_s, now))


def _waits(view: ViewState, width: int, height: int, tau_s: float | None, now: float) -> list[Line]:
    dots = Dots(width - 6, height - 1)
    low, high = _WAIT_DECADES
    if tau_s:
        dots.dash(_place(tau_s, low, high), "alert")
    for request in _classwise(view):
        x = 1.0 - (now - request.finished_at) / _SPAN_S
        tone = class_tone(request.predicted.length_class)
        dots.mark(x, _place(max(request.waited_s, 10**low), low, high), tone)
    title = Line("wait by class, last 10 min  ", "faint")
    for name in ("short", "medium", "long"):
        title.add(f"{class_letter(name)} ", class_tone(name))
    if tau_s:
        title.add("╌ ", "alert").add("τ", "faint")
    ticks = {_place(10.0**decade, low, high): f"{10.0**decade:g}s" for decade in range(-1, 3)}
    return [title, *_with_axis(dots, ticks)]


def queue_length(view: ViewState, width: int, height: int) -> list[Line]:
    """Plot the queue length by second."""
    samples = [float(sample.waiting) for sample in view.history.samples]
    dots = Dots(width - 6, max(1, height - 1))
    samples = samples[-dots.width * 2 :]
    top = max([*samples, 4.0])
    offset = dots.width * 2 - len(samples)
    for index, value in enumerate(samples):
        dots.column(offset + index, value / top, "accent")
    now = Line(count(samples[-1]) if samples else "–", "strong").add(" waiting", "faint")
    title = ends(Line("queue", "faint"), now, width)
    return [title, *_with_axis(dots, {1.0: count(top), 0.0: "0"})]


def predicted_and_real(view: ViewState, width: int, height: int) -> list[Line]:
    """Plot real over expected tokens, on log scales; the diagonal is a perfect prediction."""
    of = (width, height, view.history.ended)
    return view.history.picture("predicted", of, lambda: _predicted_and_real(view, width, height))


def _predicted_and_real(view: ViewState, width: int, height: int) -> list[Line]:
    dots = Dots(width - 6, height - 1)
    low, high = _TOKEN_DECADES
    dots.diagonal("track")
    for request in _classwise(view):
        if request.tokens is not None and request.outcome == "completed":
            x = _place(request.predicted.expected_tokens, low, high)
            dots.mark(x, _place(request.tokens, low, high), class_tone(request.predicted.length_class))
    title = Line("real tokens over predicted", "faint")
    ticks = {_place(10.0**decade, low, high): count(10.0**decade) for decade in range(1, 5)}
    return [title, *_with_axis(dots, ticks)]


def _classwise(view: ViewState) -> list[FinishedRequest]:
    """Ended requests, long ones last, so that the few are drawn over the many."""
    order = {"short": 0, "medium": 1, "long": 2}
    return sorted(view.history.finished, key=lambda each: order.get(each.predicted.length_class, 3))


def _place(value: float, low: float, high: float) -> float:
    """Place a value on a logarithmic axis, 0 at the bottom and 1 at the top."""
    return (log10(max(value, 1e-9)) - low) / (high - low)


def _with_axis(dots: Dots, ticks: dict[float, str]) -> list[Line]:
    """Add labels at the left of a plot, by their height as a fraction."""
    rows = dots.lines()
    at = {min(len(rows) - 1, int((1.0 - place) * len(rows))): label for place, label in ticks.items()}
    lines = []
    for y, row in enumerate(rows):
        label = at.get(y, "")
        lines.append(Line(cell(label, 5, right=True), "faint").add("┤" if label else "│", "track").join(row))
    return lines
