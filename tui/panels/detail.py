"""Draws the page of one request: prediction, place in the queue, progress, end."""

from collections.abc import Iterable
from math import expm1
from typing import cast

from clairvoyant_cli.state.snapshot import (
    AnswerPart,
    FinishedRequest,
    PredictionState,
    QueuedRequest,
    RunningRequest,
    Snapshot,
)
from tui.formatting import (
    CLASS_LETTER,
    ENOUGH,
    bar,
    change,
    class_letter,
    class_tone,
    clock,
    count,
    duration,
    share,
)
from tui.panels.requests import ETA_WIDE, LEVELS, compared, ends, progress, starts, tau_fraction, tau_tone
from tui.styled_text import Line, Tone, cell, wrap
from tui.view_state import ViewState

_LABEL = 12
_BAR = 24
_MOST, _MORE = 12, Line("  …", "faint")
_LEAST_EFFECT, _MOST_EFFECTS = 0.01, 3  # the strongest come first
_MANIFOLD = 2.0
_MOST_RUNS, _MOST_FIRST = 4, 3
_SAID_BY = {
    "operator": "the operator",
    "rule": "a rule of the clients file",
    "client": "its client",
    "predictor": "the predictor, from its text",
}


def detail(view: ViewState, ident: str, width: int) -> list[Line]:
    state = view.state
    request = next((row for row in (*state.alive, *state.recent) if row.id == ident), None)
    if request is None:
        return [Line("This request has ended and is no longer kept.", "soft")]
    who = Line(f"{request.model}  " if request.model else "", "strong").add("for ", "faint")
    who.add(request.client or "an unnamed client").add("  by ", "faint").add(request.endpoint, "soft")
    lines = [who, Line()]
    if isinstance(request, QueuedRequest):
        lines += _waiting(request, view, state, width)
    else:
        lines += _running(request, view) if isinstance(request, RunningRequest) else _finished(request, state)
    if isinstance(request, FinishedRequest) and request.remark:
        lines += _labelled("note", request.remark, width)
    if request.parts:
        lines += [Line(), *_parts(request.parts, state.taken_at)]
    lines += [Line(), *_prediction(request.predicted)]
    if isinstance(request, FinishedRequest):
        return lines
    lines += [Line(), Line("history", "faint")] if request.moves else []
    for move in request.moves:
        lines.append(Line(f"  {clock(move.at)}  ", "faint").add(move.kind).add(f"  {move.note}", "soft"))
    if view.prompts and request.prompt is not None:
        text = _indented([request.prompt], width)
        lines += [Line(), Line("prompt", "faint"), *text[:_MOST], *[_MORE] * (len(text) > _MOST)]
    if view.prompts and request.answer:  # its end, line by line as it was written
        text = _indented(request.answer.split("\n"), width)
        lines += [Line(), Line("answer so far", "faint"), *[_MORE] * (len(text) > _MOST), *text[-_MOST:]]
    return lines


def _indented(texts: Iterable[str], width: int) -> list[Line]:
    return [Line(f"  {line}") for each in texts for line in wrap(each, max(20, width - 2))]


def _fact(label: str, value: str, tone: Tone = "ink", note: str = "") -> Line:
    return Line(cell(label, _LABEL), "faint").add(value, tone).add(f"  {note}" if note else "", "soft")


def _gauge(label: str, fraction: float, tone: Tone) -> Line:
    return Line(cell(label, _LABEL), "faint").join(bar(fraction, _BAR, tone))


def _labelled(label: str, text: str, width: int) -> list[Line]:
    lines = wrap(text, max(20, width - _LABEL))
    return [_fact(label if y == 0 else "", line) for y, line in enumerate(lines)]


def _waiting(request: QueuedRequest, view: ViewState, state: Snapshot, width: int) -> list[Line]:
    ahead = 0 if request.ahead is None or request.held else round(request.ahead)
    before = f"about {ahead:,} start{'s' * (ahead == 1)} before it" if ahead else ""
    rank, age_s = f"rank {request.rank:,} of {state.waits:,}", request.age_s + view.drift_s
    lines = [
        _fact("waiting", duration(age_s), "strong", rank),
        _fact("starts in", starts(request, view, ETA_WIDE).plain, note=before),
    ]
    if request.rank_fcfs is not None:
        wait = f"#{request.rank_fcfs:,}, starts in {duration(request.eta_fcfs_s)}"
        lines.append(_fact("by arrival", wait, "ink", compared(request).plain))
    lines += [*_place(request, state), *_holders(request, view), *_first(request, state)]
    lines += _labelled("why here", f"{request.cause}: {request.why}" if request.why else "unknown", width)
    if request.cuts:
        done = f"{count(request.tokens)} of ~{count(request.predicted.expected_tokens)} tokens"
        lines.append(
            _fact("suspended", done, "accent", f"preempted {request.cuts} times for shorter requests")
        )
    fraction = tau_fraction(request, view)
    if fraction is not None:
        line = _gauge("of tau", fraction, tau_tone(request))
        lines.append(line.add(f" {share(fraction)} of {duration(request.tau_s)}", "soft"))
    key = _fact("policy key", f"{request.key:.4g}", "ink", f"{state.policy}: the lowest key goes first")
    lines.append(key)
    if request.priority:
        lines.append(_fact("priority", f"{request.priority:+d}", "ink", "lower goes sooner"))
    return lines + _level(request)


def _named(row: QueuedRequest | RunningRequest) -> str:
    return f"{row.client or 'unnamed'} ({row.id})"


def _place(request: QueuedRequest, state: Snapshot) -> list[Line]:
    """The slot in which it is expected to start, and after which request."""
    turn = next((each for each in state.to_come if each.id == request.id), None)
    if turn is None:
        return [_fact("server", "one of " + ", ".join(request.backends))] if request.backends else []
    there = [each for each in state.to_come if (each.backend, each.slot) == (turn.backend, turn.slot)]
    before = max(
        (each for each in there if each.begun_at < turn.begun_at),
        key=lambda turn: turn.begun_at,
        default=None,
    )
    row = next((each for each in state.alive if before is not None and each.id == before.id), None)
    note = "" if row is None else f"after {_named(row)}"
    return [_fact("server", f"{turn.backend}, slot {turn.slot}", note=note)]


def _holders(request: QueuedRequest, view: ViewState) -> list[Line]:
    """Which running requests hold the slots that it may have, and when each ends."""
    able = [row for row in view.state.running if not request.backends or row.backend in request.backends]
    lines: list[Line] = []
    for row in sorted(able, key=lambda row: row.eta_s or 0.0)[:_MOST_RUNS]:
        slot = "" if row.slot is None else f", slot {row.slot}"
        line = _fact(
            "" if lines else "held by", _named(row), note=f"ends in {ends(row, view, ETA_WIDE).plain}"
        )
        lines.append(line.add(f" on {row.backend}{slot}", "faint"))
    return lines


def _first(request: QueuedRequest, state: Snapshot) -> list[Line]:
    """Who goes first, each with the word that says why."""
    lines: list[Line] = []
    for row in state.queue[:_MOST_FIRST] if request.rank > 1 else ():
        if row.rank < request.rank:
            line = _fact("" if lines else "before it", f"#{row.rank} ").add(
                class_letter(row.predicted.length_class), class_tone(row.predicted.length_class)
            )
            lines.append(line.add(f" {_named(row)}  ").add(row.cause, cast(Tone, row.tone)))
    return lines


def _level(request: QueuedRequest | RunningRequest) -> list[Line]:
    if request.urgency is not None:
        meaning, tone = LEVELS[min(request.urgency, 4)]
        said = _SAID_BY.get(request.urgency_by, request.urgency_by)
        return [_fact("urgency", f"level {request.urgency}, {meaning}", tone, f"set by {said}")]
    why = "its client has used its share of urgency"
    return [_fact("urgency", "rejected", "warn", why)] if request.urgency_by else []


def _running(request: RunningRequest, view: ViewState) -> list[Line]:
    slot = f"slot {request.slot} of {request.backend}" if request.slot is not None else request.backend
    line = _gauge("answer", progress(request), class_tone(request.predicted.length_class))
    line.add(f"{' about' * request.estimated} {count(request.tokens)}", "strong")
    return [
        _fact("running", duration(request.elapsed_s + view.drift_s), "strong", f"{request.state} in {slot}"),
        line.add(f" of ~{count(request.predicted.expected_tokens)}", "soft"),
        _fact("ends in", ends(request, view, ETA_WIDE).plain),
        _fact("waited", duration(request.waited_s), "ink", f"sent by {request.dispatched_by}"),
        _fact("first token", duration(request.ttft_s), note="from arrival"),
        *([_fact("preemption", f"no: {request.uncut}", "soft")] if request.uncut else []),
        *_level(request),
    ]


def _finished(request: FinishedRequest, state: Snapshot) -> list[Line]:
    error = f"predicted {count(request.predicted.expected_tokens)}" if request.tokens is not None else ""
    in_order = [turn.waited_s for turn in state.in_order if turn.id == request.id]
    slot, sent = "" if request.slot is None else f", slot {request.slot}", request.dispatched_by
    return [
        _fact("ended", clock(request.finished_at), "strong", f"{request.outcome}, status {request.status}"),
        _fact("tokens", count(request.tokens), "strong", error),
        _fact("server", f"{request.backend}{slot}" if sent else "not sent to a server"),
        _fact("waited", duration(request.waited_s), note=f"sent by {sent}" * bool(sent)),
        *(_fact("by arrival", duration(s), note=change(request.waited_s, s, ENOUGH)) for s in in_order),
        _fact("first token", duration(request.ttft_s), note="from arrival"),
        _fact("in all", duration(request.sojourn_s)),
    ]


def _parts(parts: tuple[AnswerPart, ...], now: float) -> list[Line]:
    """Draw when the request had a slot, a line per part, on one time scale."""
    until = [now if part.ended_at is None else part.ended_at for part in parts]
    begin, lines = parts[0].began_at, [Line("parts", "faint")]
    scale = _BAR / max(max(until) - begin, 1e-9)
    for number, (part, end) in enumerate(zip(parts, until, strict=True), 1):
        before = min(_BAR - 1, int((part.began_at - begin) * scale))
        length = max(1, min(_BAR - before, round((end - part.began_at) * scale)))
        line = Line(cell(f"  {number}", _LABEL), "faint").add(" " * before).add("█" * length, "accent")
        line.add(" " * (_BAR - before - length)).add(f" {duration(end - part.began_at)}")
        lines.append(line.add(f", {count(part.tokens)} tokens", "soft"))
    return lines


def _prediction(prediction: PredictionState) -> list[Line]:
    name, chances = prediction.length_class, (prediction.p_short, prediction.p_medium, prediction.p_long)
    expected = f"~{count(prediction.expected_tokens)}"
    source = f"by the {prediction.source} predictor" if prediction.source else ""
    lines = [
        _fact("predicted", f"{class_letter(name)} {name}", class_tone(name), source),
        *(
            _gauge(f"  {tone}", chance, tone).add(f" {chance:.2f}")
            for tone, chance in zip(CLASS_LETTER, chances, strict=True)
        ),
        _fact("tokens", expected, "ink", f"90 % stay under {count(prediction.q90_tokens)}"),
    ]
    effects = [(name, expm1(effect)) for name, effect in prediction.features]
    telling = [(name, effect) for name, effect in effects if abs(effect) >= _LEAST_EFFECT][:_MOST_EFFECTS]
    lines += [Line("predicted longer or shorter because of", "faint")] if telling else []
    for name, effect in telling:
        text = f"×{effect + 1:.1f}" if effect >= _MANIFOLD else f"{effect:+.0%}".replace("-", "−")
        lines.append(_fact(f"  {text}", name, "soft"))
    return lines
