"""Draws who had which slot and who has it next, and below it the same requests in order of arrival."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import ceil
from statistics import fmean

from clairvoyant_cli.state.snapshot import FinishedRequest, QueuedRequest, RunningRequest, Snapshot
from tui.formatting import class_tone, duration, short_names
from tui.styled_text import Line, Tone, cell, gathered
from tui.view_state import ViewState

_TICKS_S = (5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
_TICKS = 6  # in the past
_PAST = 0.6  # the share of the width
_BARS = 8  # of mean length that the past has room for in a slot
_LABEL = 10
_MOST_SLOTS = 16  # of a server
_FILLS: Mapping[Tone, str] = {"medium": "▓", "long": "▒"}

Slot = tuple[str, int]  # a server's name and the number of its slot, from 0


@dataclass(frozen=True, slots=True)
class Bar:
    """A request, or a part of one, in a slot."""

    begun_at: float
    ended_at: float
    tone: Tone
    waited_s: float | None = None  # before it, None if that is told elsewhere
    by_tau: bool = False
    cut: bool = False
    known: bool = True  # it is no forecast


def facts(view: ViewState) -> Line:
    state = view.state
    short, other = ([*each][:1] for each in (state.stats_paired, state.stats_fcfs))
    if not short or not short[0].wait.n or not other:
        return Line(" above as served, below in order of arrival ", "soft")
    waits = Line(" short waits ", "soft").add(duration(short[0].wait.p50), "strong")
    return waits.add(", in order of arrival ", "soft").add(f"{duration(other[0].wait.p50)} ", "strong")


def timeline(view: ViewState, width: int, height: int) -> list[Line]:
    """Draw a line for each slot, or two with the waits if there is room, twice, about an axis of time."""
    state, room = view.state, max(1, (height - 1) // 2)
    labels = dict(islice(_labels(state).items(), room))
    cells = max(1, width - _LABEL)
    past = round(_PAST * cells)
    tick_s = _tick_s(view)
    step_s = _TICKS * tick_s / past
    left_at = (view.now // step_s - past) * step_s
    served, in_order = as_served(view, left_at), as_arrived(view, left_at)
    with_waits = len(labels) * 2 <= room
    fills = _FILLS if view.few_colours else {}

    def rows(bars: dict[Slot, list[Bar]], name: str, solid: str, begins: str) -> Iterator[Line]:
        for slot, label in labels.items():
            line = Line(cell(label or f"{name} {slot[1]}", _LABEL), "faint")
            yield line.join(strip(bars.get(slot, ()), left_at, step_s, cells, past, solid, begins, fills))
            if with_waits:
                yield Line(" " * _LABEL).join(_waits(bars.get(slot, ()), left_at, step_s, cells))

    axis = Line(" " * _LABEL).join(_axis(past, cells, step_s, tick_s))
    return [*rows(served, "slot", "█", "▐"), axis, *rows(in_order, "arrival", "▄", "▗")]


def as_served(view: ViewState, since: float = 0.0) -> dict[Slot, list[Bar]]:
    """Return the requests that ended since then and those that run, and what is to come."""
    state, bars = view.state, dict[Slot, list[Bar]]()
    ended = (row for row in view.history.finished.values() if row.finished_at >= since)
    preempted = (row for row in state.queue if row.parts)
    rows: tuple[FinishedRequest | RunningRequest | QueuedRequest, ...] = (*ended, *state.running, *preempted)
    for row in rows:
        for slot, bar in _parts(row, state.taken_at):
            bars.setdefault(slot, []).append(bar)
    tones: dict[str, Tone] = {row.id: class_tone(row.predicted.length_class) for row in state.alive}
    runs = {row.id for row in state.running}
    for turn in state.to_come:
        waited_s = None if turn.id in runs else turn.waited_s
        bar = Bar(turn.begun_at, turn.ended_at, tones.get(turn.id, "faint"), waited_s, known=False)
        bars.setdefault((turn.backend, turn.slot), []).append(bar)
    return bars


def _parts(row: FinishedRequest | RunningRequest | QueuedRequest, now: float) -> Iterator[tuple[Slot, Bar]]:
    tone, parts = class_tone(row.predicted.length_class), row.parts
    for part in parts if isinstance(row, QueuedRequest) else parts[:-1]:
        yield (part.backend, part.slot or 0), Bar(part.began_at, part.ended_at or now, tone, None, cut=True)
    if isinstance(row, QueuedRequest) or row.slot is None:
        return
    if isinstance(row, FinishedRequest):
        ended_at, begun_at = row.finished_at, row.finished_at - row.sojourn_s + row.waited_s
    else:
        ended_at, begun_at = now, now - row.elapsed_s
    begun_at = parts[-1].began_at if parts else begun_at
    bar = Bar(begun_at, ended_at, tone, row.waited_s, by_tau=row.dispatched_by == "tau")
    yield (row.backend, row.slot), bar


def as_arrived(view: ViewState, since: float = 0.0) -> dict[Slot, list[Bar]]:
    """Return the slots since then in order of arrival, as the daemon's replay has them."""
    state, bars = view.state, dict[Slot, list[Bar]]()
    classes = {row.id: row.predicted.length_class for row in view.history.finished.values()}
    classes |= {row.id: row.predicted.length_class for row in state.alive}
    for turn in (each for each in state.in_order if each.ended_at >= since):
        tone: Tone = class_tone(classes[turn.id]) if turn.id in classes else "faint"
        begun_at, known = turn.begun_at, turn.known or turn.ended_at <= view.now
        bar = Bar(begun_at, turn.ended_at, tone, turn.waited_s, known=known)
        halves = [bar]
        if not known and begun_at < view.now:
            halves = [
                Bar(begun_at, view.now, tone, turn.waited_s),
                Bar(view.now, turn.ended_at, tone, known=False),
            ]
        bars.setdefault((turn.backend, turn.slot), []).extend(halves)
    return bars


def strip(
    bars: Iterable[Bar],
    left_at: float,
    step_s: float,
    width: int,
    now: int,
    solid: str,
    begins: str,
    fills: Mapping[Tone, str] | None = None,
) -> Line:
    """Draw the bars of a slot; `now` is the cell of the present, `fills` what is drawn of a class if its
    colour does not tell.
    """
    drawn: list[tuple[str, Tone]] = [(" ", "track")] * width
    drawn[now] = "│", "track"
    ordered = sorted(bars, key=lambda each: each.begun_at)
    last = max((bar.begun_at for bar in ordered if not bar.known), default=left_at)
    for x in range(now + 1, min(width, int((last - left_at) / step_s))):
        drawn[x] = "╱", "track"  # requests that are expected to arrive
    for bar in ordered:
        left, right = (bar.begun_at - left_at) / step_s, (bar.ended_at - left_at) / step_s
        first, last = int(left) if left > 0 else -1, ceil(right) - 1
        body = (fills or {}).get(bar.tone, solid) if bar.known else "░"
        for x in range(max(first, 0), min(max(last, first), width - 1) + 1):
            drawn[x] = body, bar.tone
        if 0 <= first < width and bar.waited_s is not None:
            drawn[first] = ("τ", "alert") if bar.by_tau else (begins if bar.known else "▒", bar.tone)
        if bar.cut and 0 <= last < width:
            drawn[last] = "╎", "alert"
    return gathered(drawn)


def _waits(bars: Iterable[Bar], left_at: float, step_s: float, width: int) -> Line:
    """Write under each bar how long it waited, where there is room."""
    line = Line()
    for bar in sorted(bars, key=lambda each: each.begun_at):
        at = int((bar.begun_at - left_at) // step_s)
        if bar.waited_s is None or at < line.width + bool(line) or at < 0:
            continue
        text = duration(bar.waited_s)
        if at + len(text) <= width:
            line.pad(at).add(text, "soft" if bar.known else "faint")
    return line


def _axis(past: int, width: int, step_s: float, tick_s: float) -> Line:
    line = Line()
    for number in range(1 - _TICKS, 2 * _TICKS):
        text = f"{'−' if number < 0 else '+'}{duration(abs(number) * tick_s)}" if number else "now"
        x = past + round(number * tick_s / step_s)
        if x > line.width and x + len(text) <= (width if number >= 0 else past - 1):
            line.pad(x).add(text, "faint" if number else "soft")
    return line


def _tick_s(view: ViewState) -> float:
    """Return the seconds between two marks of the axis: the past has room for some answers of mean length."""
    took_s = [row.sojourn_s - row.waited_s for row in view.history.finished.values() if row.slot is not None]
    wish_s = _BARS * fmean(took_s) / _TICKS if took_s else 0.0
    return next((tick_s for tick_s in _TICKS_S if tick_s >= wish_s), _TICKS_S[-1])


def _labels(state: Snapshot) -> dict[Slot, str]:
    """Return the slots of all servers, with their labels if there are several servers."""
    names = short_names([each.name for each in state.backends]) if len(state.backends) > 1 else {}
    return {
        (server.name, slot): f"{names[server.name][: _LABEL - 4]} {slot}" if names else ""
        for server in state.backends
        for slot in range(min(server.slots, _MOST_SLOTS))
    }
