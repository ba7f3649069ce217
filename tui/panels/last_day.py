"""Draws the page of the last 24 hours: what went wrong, then load, waiting, failures and gain."""

from collections.abc import Callable, Sequence

from clairvoyant_cli.errors import printable
from clairvoyant_cli.state.last_day import DayStep, LastDay
from tui.braille import AXIS, area
from tui.formatting import count, duration
from tui.styled_text import Line, Tone, wrap
from tui.view_state import ViewState

_HIGH = 5  # lines of a plot
_PLOTS: tuple[tuple[str, Tone, Callable[[DayStep], float]], ...] = (
    ("slots at work, in %", "accent", lambda step: 100.0 * step.busy),
    ("waiting", "medium", lambda step: step.waiting),
    ("failed or refused", "alert", lambda step: step.failed),
    ("seconds less waiting than in order of arrival", "good", lambda step: max(step.saved_s, 0.0)),
)


def page(day: LastDay, view: ViewState, width: int, height: int) -> list[Line]:
    """One line for each outage, and a plot of each figure by five minutes."""
    requests, failed = sum(each.requests for each in day.steps), sum(each.failed for each in day.steps)
    saved_s = sum(each.saved_s for each in day.steps)
    head = Line(count(requests), "strong").add(" requests, ", "soft").add(count(failed), "strong")
    head.add(" failed; ", "soft").add(duration(abs(saved_s)), "good" if saved_s >= 0 else "warn")
    lines = [
        head.add(f" {'less' if saved_s >= 0 else 'more'} waiting than in order of arrival", "soft"),
        Line(),
    ]
    for outage in day.outages:
        first, *more = wrap(printable(outage.sentence(day.taken_at)), max(20, width - 2))
        lines += [Line("‼ ", "alert").add(first), *(Line("  ").add(each) for each in more)]
    lines += [Line() if day.outages else Line("Nothing has gone wrong.", "soft")]
    for name, tone, figure in _PLOTS:
        lines += [
            Line(),
            *area(name, _highest([*map(figure, day.steps)], 2 * (width - AXIS)), tone, width, _HIGH),
        ]
    axis = Line(" " * AXIS)
    for text, at in (("24 h ago", 0.0), ("12 h", 0.5), ("now", 1.0)):
        axis.pad(AXIS + round(at * (width - AXIS - len(text)))).add(text, "faint")
    return [*lines, axis]


def _highest(values: Sequence[float], columns: int) -> list[float]:
    """Return as many values as a plot has columns of dots: the highest of each, or each several times."""
    most, columns = len(values), max(1, columns)
    bounds = [
        (x * most // columns, max((x + 1) * most // columns, x * most // columns + 1)) for x in range(columns)
    ]
    return [max(values[first:last], default=0.0) for first, last in bounds]
