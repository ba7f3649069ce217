"""Draws the page of one request: prediction, place in the queue, progress, end."""

from collections.abc import Iterable
from math import expm1

from clairvoyant_cli.state import snapshot as state
from clairvoyant_cli.state.snapshot import FinishedRequest, QueuedRequest, RunningRequest, Snapshot
from tui.formatting import bar, class_letter, class_tone, clock, count, duration, ratio, share
from tui.panels.requests import (
    ETA_WIDE,
    compared,
    ends,
    level_tone,
    progress,
    starts,
    tau_fraction,
    tau_tone,
)
from tui.styled_text import Line, Tone, cell, wrap
from tui.view_state import ViewState

_LABEL = 12
_BAR = 24
_MOST, _MORE = 12, Line("  …", "faint")
_LEAST_EFFECT = 0.01
_MANIFOLD = 2.0
_SAID_BY = {
    "operator": "the operator",
    "rule": "a rule of the clients file",
    "client": "its client",
    "predictor": "the predictor, from its text",
}
AnyRequest = QueuedRequest | RunningRequest | FinishedRequest


def detail(view: ViewState, ident: str, width: int) -> list[Line]:
    snapshot = view.state
    every: tuple[AnyRequest, ...] = (*snapshot.alive, *snapshot.recent)
    request = next((each for each in every if each.id == ident), None)
    if request is None:
        return [Line("This request has ended and is no longer kept.", "soft")]
    lines = [_who(request), Line()]
    if isinstance(request, QueuedRequest):
        lines += _waiting(request, view, snapshot, width)
    elif isinstance(request, RunningRequest):
        lines += _running(request, view)
    else:
        lines += _finished(request)
    if isinstance(request, FinishedRequest) and request.remark:
        lines += _labelled("but", request.remark, width)
    if request.parts:
        lines += [Line(), *_parts(request.parts, view)]
    lines += [Line(), *_prediction(request.predicted)]
    moves = () if isinstance(request, FinishedRequest) else request.moves
    if moves:
        lines += [Line(), Line("history", "faint")]
    for move in moves:
        lines.append(Line(f"  {clock(move.at)}  ", "faint").add(move.kind).add(f"  {move.note}", "soft"))
    if isinstance(request, FinishedRequest) or not view.prompts:
        return lines
    if request.prompt is not None:
        text = _indented([request.prompt], width)
        lines += [Line(), Line("prompt", "faint"), *text[:_MOST], *[_MORE] * (len(text) > _MOST)]
    if request.answer:  # its end, line by line as it was written
        text = _indented(request.answer.split("\n"), width)
        lines += [Line(), Line("answer so far", "faint"), *[_MORE] * (len(text) > _MOST), *text[-_MOST:]]
    return lines


def _indented(texts: Iterable[str], width: int) -> list[Line]:
    return [Line(f"  {line}") for each in texts for line in wrap(each, max(20, width - 2))]


def _fact(label: str, value: str, tone: Tone = "ink", note: str = "") -> Line:
    return Line(cell(label, _LABEL), "faint").add(value, tone).add(f"  {note}" if note else "", "soft")


def _gauge(label: str, fraction: float, tone: Tone) -> Line:
    return Line(cell(label, _LABEL), "faint").join(bar(fraction, _BAR, tone))


def _who(request: AnyRequest) -> Line:
    line = Line(f"{request.model}  " if request.model else "", "strong").add("for ", "faint")
    line.add(request.client or "an unnamed client")
    return line.add("  by ", "faint").add(request.endpoint, "soft")


def _waiting(request: QueuedRequest, view: ViewState, snapshot: Snapshot, width: int) -> list[Line]:
    age_s = request.age_s + view.drift_s
    rank = f"rank {request.rank:,} of {snapshot.waits:,}"
    lines = [
        _fact("waiting", duration(age_s), "strong", rank),
        _fact("starts in", starts(request, view, ETA_WIDE).plain, note=_before(request)),
    ]
    if request.cuts:
        done = f"{count(request.tokens)} of ~{count(request.predicted.expected_tokens)} tokens"
        lines.append(_fact("suspended", done, "accent", f"cut {request.cuts} times for shorter requests"))
    fraction = tau_fraction(request, view)
    if fraction is not None:
        line = _gauge("of tau", fraction, tau_tone(request))
        lines.append(line.add(f" {share(fraction)} of {duration(request.tau_s)}", "soft"))
    key = _fact("policy key", f"{request.key:.4g}", "ink", f"{snapshot.policy}: the lowest key goes first")
    lines += [Line(), *_labelled("why here", request.why or "unknown", width), key]
    if request.rank_fcfs is not None:
        wait = f"#{request.rank_fcfs:,}, starts in {duration(request.eta_fcfs_s)}"
        lines.append(_fact("by arrival", wait, "ink", compared(request).plain))
    if request.priority:
        lines.append(_fact("priority", f"{request.priority:+d}", "ink", "lower goes sooner"))
    return lines + _level(request)


def _before(request: QueuedRequest) -> str:
    if request.ahead is None or request.held:
        return ""
    ahead = round(request.ahead)
    return f"about {ahead:,} start{'s' * (ahead == 1)} before it" if ahead else ""


def _level(request: QueuedRequest | RunningRequest) -> list[Line]:
    if request.urgency is not None:
        meaning, tone = level_tone(request.urgency)
        said = _SAID_BY.get(request.urgency_by, request.urgency_by)
        return [_fact("urgency", f"level {request.urgency}, {meaning}", tone, f"set by {said}")]
    if request.urgency_by:
        return [_fact("urgency", "rejected", "warn", "its client has used its share of urgency")]
    return []


def _labelled(label: str, text: str, width: int) -> list[Line]:
    lines = wrap(text, max(20, width - _LABEL))
    return [Line(cell(label if y == 0 else "", _LABEL), "faint").add(line) for y, line in enumerate(lines)]


def _running(request: RunningRequest, view: ViewState) -> list[Line]:
    slot = f"slot {request.slot}" if request.slot is not None else request.backend
    line = _gauge("answer", progress(request), class_tone(request.predicted.length_class))
    line.add(f"{' about' * request.estimated} {count(request.tokens)}", "strong")
    line.add(f" of ~{count(request.predicted.expected_tokens)}", "soft")
    return [
        _fact("running", duration(request.elapsed_s + view.drift_s), "strong", f"{request.state} in {slot}"),
        line,
        _fact("ends in", ends(request, view, ETA_WIDE).plain),
        _fact("waited", duration(request.waited_s), "ink", f"sent by {request.dispatched_by}"),
        _fact("first token", duration(request.ttft_s)),
        *([_fact("not cut", request.uncut, "soft")] if request.uncut else []),
        *_level(request),
    ]


def _finished(request: FinishedRequest) -> list[Line]:
    error = f"predicted {count(request.predicted.expected_tokens)}" if request.tokens is not None else ""
    return [
        _fact("ended", clock(request.finished_at), "strong", f"{request.outcome}, status {request.status}"),
        _fact("tokens", count(request.tokens), "strong", error),
        _fact("waited", duration(request.waited_s), "ink", f"sent by {request.dispatched_by or 'nobody'}"),
        _fact("first token", duration(request.ttft_s)),
        _fact("in all", duration(request.sojourn_s)),
    ]


def _parts(parts: tuple[state.AnswerPart, ...], view: ViewState) -> list[Line]:
    """Draw when the request had a slot, a line per part, on one time scale."""
    ends = [part.ended_at for part in parts if part.ended_at is not None]
    begin, end = parts[0].began_at, max([*ends, view.state.taken_at] if parts[-1].ended_at is None else ends)
    scale = _BAR / max(end - begin, 1e-9)
    lines = [Line("parts", "faint")]
    for number, part in enumerate(parts, 1):
        ended = end if part.ended_at is None else part.ended_at
        before = min(_BAR - 1, int((part.began_at - begin) * scale))
        length = max(1, min(_BAR - before, round((ended - part.began_at) * scale)))
        line = Line(cell(f"  {number}", _LABEL), "faint").add(" " * before).add("█" * length, "accent")
        line.add(" " * (_BAR - before - length)).add(f" {duration(ended - part.began_at)}")
        lines.append(line.add(f", {count(part.tokens)} tokens", "soft"))
    return lines


def _prediction(prediction: state.PredictionState) -> list[Line]:
    name = prediction.length_class
    source = f"by {prediction.source}" if prediction.source else ""
    lines = [_fact("predicted", f"{class_letter(name)} {name}", class_tone(name), source)]
    for name in ("short", "medium", "long"):
        chance: float = getattr(prediction, f"p_{name}")
        lines.append(_gauge(f"  {name}", chance, class_tone(name)).add(f" {ratio(chance)}"))
    expected = f"~{count(prediction.expected_tokens)}"
    lines.append(_fact("tokens", expected, "ink", f"90 % stay under {count(prediction.q90_tokens)}"))
    effects = [(name, expm1(effect)) for name, effect in prediction.features]
    telling = [(name, effect) for name, effect in effects if abs(effect) >= _LEAST_EFFECT]
    if telling:
        lines.append(Line("predicted longer or shorter because of", "faint"))
    for name, effect in telling:
        text = f"×{effect + 1:.1f}" if effect >= _MANIFOLD else f"{effect:+.0%}".replace("-", "−")
        lines.append(_fact(f"  {text}", name, "soft"))
    return lines
