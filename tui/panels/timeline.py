"""Draws the slots over time: what ran, what runs and until when, and predicted ends."""

from collections.abc import Iterator
from dataclasses import dataclass

from clairvoyant_cli.state.snapshot import FinishedRequest, RunningRequest, Snapshot
from tui.formatting import class_letter, class_tone, duration, short_names
from tui.styled_text import Line, Tone, cell, clip, gathered
from tui.view_state import ViewState

PAST_S = 180.0
AHEAD_S = 60.0
_WIDEST = 12
"""Of the name of a lane."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a slot's time, in seconds from now. `ends_at` is its predicted end, None if it was cut;
    `sign` is why it began or ended, if not by the policy.
    """

    begins_at: float
    until: float
    length_class: str
    sign: str = ""
    ends_at: float | None = None
    runs: bool = False


def timeline(view: ViewState, width: int, height: int) -> list[Line]:
    """Return two lines per slot if there is room, else one; slots that do not fit are counted."""
    snapshot = view.snapshot
    if snapshot is None or width < 2 * _WIDEST:
        return []
    lanes = _lanes(view, snapshot)
    room = max(1, height - 2)
    each = 2 if 2 * len(lanes) <= room else 1
    shown = list(lanes.items())[: room // each]
    names = short_names([each.name for each in snapshot.backends])
    if len(names) == 1:
        names = dict.fromkeys(names, "slot")
    label = min(_WIDEST, 3 + max(map(len, names.values()), default=0))
    cells = width - label
    lines = [_legend(len(lanes) - len(shown))]
    for (backend, slot), spans in shown:
        name = f"{clip(names[backend], label - 3)} {slot}"
        lines.append(Line(cell(name, label), "faint").join(_solid(spans, cells)))
        if each > 1:
            lines.append(Line(" " * label).join(_signs(spans, cells)))
    return [*lines, _axis(label, cells)]


def _lanes(view: ViewState, snapshot: Snapshot) -> dict[tuple[str, int], list[Span]]:
    lanes: dict[tuple[str, int], list[Span]] = {
        (backend.name, slot): [] for backend in snapshot.backends for slot in range(backend.slots)
    }
    requests: tuple[FinishedRequest | RunningRequest, ...] = (
        *view.history.finished.values(),
        *snapshot.running,
    )
    for request in requests:
        for lane, span in _spans(request, view):
            if lane in lanes and span.until > -PAST_S and span.begins_at <= 0.0:
                lanes[lane].append(span)
    there = {backend.name for backend in snapshot.backends if backend.is_there}
    return {lane: spans for lane, spans in lanes.items() if spans or lane[0] in there}


def _spans(
    request: FinishedRequest | RunningRequest, view: ViewState
) -> Iterator[tuple[tuple[str, int], Span]]:
    now, real = view.now, request.real_class if isinstance(request, FinishedRequest) else ""
    kind = real or request.predicted.length_class
    for part in request.parts:
        if part.slot is not None and part.ended_at is not None:
            yield (part.backend, part.slot), Span(part.began_at - now, part.ended_at - now, kind, "½")
    if request.slot is None:
        return
    lane, sign = (request.backend, request.slot), "◆" if request.dispatched_by == "tau" else ""
    if isinstance(request, RunningRequest):
        left_s = None if request.eta_s is None else max(0.0, request.eta_s - view.drift_s)
        yield lane, Span(-request.elapsed_s - view.drift_s, 0.0, kind, sign, left_s, runs=True)
    elif not request.parts:
        end = request.finished_at - now
        begin = end - (request.sojourn_s - request.waited_s)
        predicted = None if request.expected_s is None else begin + request.expected_s
        yield lane, Span(begin, end, kind, sign, predicted)


def _x(at: float, cells: int) -> int:
    return int((at + PAST_S) / (PAST_S + AHEAD_S) * cells)


def _solid(spans: list[Span], cells: int) -> Line:
    """Draw past time solid after the letter of the class, and the rest of running requests hatched."""
    drawn: list[tuple[str, Tone]] = [("·", "track")] * cells
    for span in spans:
        tone = class_tone(span.length_class)
        begin, end = max(0, _x(span.begins_at, cells)), min(cells, max(_x(span.until, cells), 1))
        for x in range(begin, max(end, begin + 1)):
            if x < cells:
                drawn[x] = ("█", tone)
        if not span.runs and end - begin > 1:
            drawn[end - 1] = ("▌", tone)  # so that two of a class that follow each other stay two
        if span.runs and span.ends_at is not None:
            for x in range(end, min(cells, _x(span.ends_at, cells) + 1)):
                drawn[x] = ("▒", tone)
        if begin < cells:
            drawn[begin] = (class_letter(span.length_class), tone)
    return gathered(drawn)


def _signs(spans: list[Span], cells: int) -> Line:
    drawn: list[tuple[str, Tone]] = [(" ", "ink")] * cells
    for span in spans:
        if span.ends_at is not None and not span.runs and 0 <= _x(span.ends_at, cells) < cells:
            drawn[_x(span.ends_at, cells)] = ("¦", "soft")
    for span in spans:
        at = _x(span.until if span.sign == "½" else span.begins_at, cells)
        if span.sign and 0 <= at < cells:
            drawn[at] = (span.sign, "alert" if span.sign == "◆" else "accent")
    return gathered(drawn)


def _legend(left_out: int) -> Line:
    line = Line("slots  ", "faint").add("█", "soft").add(" ran  ", "faint").add("▒", "soft")
    line.add(" still to run  ", "faint").add("¦", "soft").add(" predicted end  ", "faint").add("◆", "alert")
    line.add(" tau  ", "faint").add("½", "accent").add(" cut", "faint")
    return line.add(f"  and {left_out} more slots", "faint") if left_out else line


def _axis(label: int, cells: int) -> Line:
    now = _x(0.0, cells)
    line = Line(cell(f"{'':{label}}{duration(PAST_S)} ago", label + now - 3), "faint").add("now", "soft")
    return line.add(cell(f"in {duration(AHEAD_S)}", cells - now, right=True), "faint")
