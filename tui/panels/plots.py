"""Draws the plots: slots over time, waits by class, predicted and real tokens."""

from math import log10

from tui.braille import Dots
from tui.formatting import CLASS_LETTER, class_tone, count
from tui.panels.timeline import timeline
from tui.styled_text import Line, cell, columns
from tui.view_state import ViewState

_WAIT_DECADES = (-1.3, 2.7)
_TOKEN_DECADES = (0.6, 4.0)
_SPAN_S = 600.0
_MIDDLE = {"short": 28.0, "medium": 400.0, "long": 2800.0}
"""Where the letter of a class stands under the predicted tokens."""


def of(view: ViewState) -> object:
    state = view.state
    runs = tuple((row.id, row.backend, row.slot) for row in state.running)
    slots = tuple((each.name, each.slots) for each in state.backends)
    return view.history.ended, runs, slots, state.tau.tau_s, int(view.now)


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """As many plots as fit: one, two side by side, or the slots above those two."""
    if width < 76:
        return waits(view, width, height)
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
    tau_s = view.state.tau.tau_s
    step_s = _SPAN_S / (2 * max(1, width - 6))
    now = (view.now // step_s + 1) * step_s  # points move together, a dot at a time
    of = (width, height, tau_s, now, view.history.ended)
    return view.history.picture("waits", of, lambda: _waits(view, width, height, tau_s, now))


def _waits(view: ViewState, width: int, height: int, tau_s: float | None, now: float) -> list[Line]:
    """A band for each class, all on one scale."""
    low, high = _WAIT_DECADES
    lines = [Line("wait by class, last 10 min  ", "faint")]
    if tau_s:
        lines[0].add("╌ ", "alert").add("τ", "faint")
    for at, (name, letter) in enumerate(CLASS_LETTER.items()):
        dots = Dots(width - 6, (height - 1) * (at + 1) // 3 - (height - 1) * at // 3)
        if tau_s:
            dots.dash(_place(tau_s, low, high), "alert")
        for request in view.history.finished.values():
            if request.predicted.length_class == name:
                x = 1.0 - (now - request.finished_at) / _SPAN_S
                dots.mark(x, _place(max(request.waited_s, 10**low), low, high), class_tone(name))
        ticks = {_place(10.0, low, high): "10s"}
        lines += with_axis(dots, ticks, Line(letter, class_tone(name)))
    return [lines[0].fit(width), *lines[1:height]]


def predicted_and_real(view: ViewState, width: int, height: int) -> list[Line]:
    """Plot real over expected tokens, on log scales; the diagonal is a perfect prediction."""
    of = (width, height, view.history.ended)
    return view.history.picture("predicted", of, lambda: _predicted_and_real(view, width, height))


def _predicted_and_real(view: ViewState, width: int, height: int) -> list[Line]:
    dots = Dots(width - 6, height - 2)
    low, high = _TOKEN_DECADES
    dots.diagonal("track")
    for request in view.history.finished.values():
        if request.tokens is not None and request.outcome == "completed":
            x = _place(request.predicted.expected_tokens, low, high)
            dots.mark(x, _place(request.tokens, low, high), class_tone(request.predicted.length_class))
    title = Line("real tokens over predicted", "faint")
    ticks = {_place(10.0**decade, low, high): count(10.0**decade) for decade in range(1, 5)}
    below = Line(" " * 6)
    for name, tokens in _MIDDLE.items():
        below.pad(6 + int(_place(tokens, low, high) * dots.width)).add(CLASS_LETTER[name], class_tone(name))
    return [title, *with_axis(dots, ticks), below]


def _place(value: float, low: float, high: float) -> float:
    """Place a value on a logarithmic axis, 0 at the bottom and 1 at the top."""
    return (log10(max(value, 1e-9)) - low) / (high - low)


def with_axis(dots: Dots, ticks: dict[float, str], name: Line | None = None) -> list[Line]:
    """Add labels at the left of a plot, by their height as a fraction, and its name in the corner."""
    rows = dots.lines()
    at = {min(len(rows) - 1, int((1.0 - place) * len(rows))): label for place, label in ticks.items()}
    lines = []
    for y, row in enumerate(rows):
        line, label = Line().join(name) if name and y == 0 else Line(), at.get(y, "")
        line.add(cell(label, 5 - line.width, right=True), "faint")
        lines.append(line.add("┤" if label else "│", "track").join(row))
    return lines
