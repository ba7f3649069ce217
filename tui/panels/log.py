"""Draws the end of the daemon's log, and the page of what went wrong."""

from clairvoyant_cli.state.snapshot import FinishedRequest
from tui.formatting import clock, duration
from tui.panels.requests import OUTCOME
from tui.styled_text import Line, Tone, cell, wrap
from tui.view_state import ViewState

_LEVEL: dict[str, tuple[str, Tone]] = {"warning": ("!", "warn"), "error": ("‼", "alert")}
_FAILED = ("upstream_error", "rejected", "timeout")
_TIME, _WHAT = 10, 11
_MOST_STARTS = 20


def log(view: ViewState, width: int, height: int) -> list[Line]:
    """The newest lines, which are wrapped while rows are free."""
    events = view.state.log[-height:] if height > 0 else ()
    lines, free = list[Line](), height - len(events)
    for event in reversed(events):
        sign, tone = _LEVEL.get(event.level, ("·", "faint"))
        first, *more = wrap(event.text, max(20, width - _TIME - 1)) or [""]
        if len(more) > free:
            first, more = event.text, []
        free -= len(more)
        ink: Tone = "soft" if event.level == "info" else "ink"
        line = Line(clock(event.at), "faint").add(f" {sign} ", tone).add(first, ink)
        lines = [line, *(Line(" " * (_TIME + 1)).add(each, ink) for each in more), *lines]
    return lines or [Line("nothing to report", "faint")]


def went_wrong(view: ViewState, width: int, height: int) -> list[Line]:
    """Failures, refusals and warnings, each with its cause, then starts by tau; the newest first."""
    ended = {row.id: row for row in (*view.history.finished.values(), *view.state.recent)}.values()
    told = [(each.at, *_LEVEL[each.level], each.text) for each in view.state.log if each.level in _LEVEL]
    told += [(row.finished_at, *OUTCOME[row.outcome], _cause(row)) for row in ended if row.outcome in _FAILED]
    starts = [_start(row) for row in ended if row.dispatched_by == "tau"]
    lines = []
    for at, sign, tone, text in (*sorted(told, reverse=True), *sorted(starts, reverse=True)[:_MOST_STARTS]):
        first, *more = wrap(text, max(20, width - _TIME - _WHAT))
        lines.append(Line(cell(clock(at), _TIME), "faint").add(cell(sign, _WHAT), tone).add(first))
        lines += [Line(" " * (_TIME + _WHAT)).add(each) for each in more]
    return lines or [Line("Nothing has gone wrong.", "soft")]


def _cause(row: FinishedRequest) -> str:
    cause = row.remark or f"{row.backend or 'the proxy'} answered with status {row.status}"
    return f"{row.id} {row.client}: {cause}"


def _start(row: FinishedRequest) -> tuple[float, str, Tone, str]:
    at = row.finished_at - row.sojourn_s + row.waited_s
    return at, "τ started", "alert", f"{row.id} {row.client}: had waited {duration(row.waited_s)}"
