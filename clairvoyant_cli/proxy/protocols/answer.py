"""What an answer tells while it passes: how many tokens, at what speeds, and whether it is whole.

Rule 1: watching never changes, delays or holds back a byte.
Rule 2: per chunk it costs one `bytes.count`; the JSON is read once, after the end has been passed on, and
what is not read of it is skipped: two megabytes of anything take 5 ms at most.
Rule 3: no text is kept beyond the tail that carries the totals, and that is dropped with the request.
Rule 4: a number that no backend can mean is none: what follows may store, add and divide what is told here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.proxy.protocols.loose import Loose, Other, number

TAIL_BYTES = 64 * 1024
"""How much of a stream's end is kept: a Responses stream repeats the whole answer in its last event."""

WHOLE_BYTES = 2 * 1024 * 1024
"""The longest unstreamed answer that is read. Longer ones are embeddings, which have no tokens to count."""

LAST_LINES = 64
FIRST_LINES = 8
"""Lines of a stream's tail that are read. The totals come last; Anthropic counts the prompt in its first
event, which of a short answer is still there."""

MOST_TOKENS = 1 << 31
LONGEST_S = 7 * 86_400.0
"""More than any model's context, and longer than anybody waits."""

NS_PER_S = 1e9
MS_PER_S = 1e3


class Usage(TypedDict, total=False):
    """OpenAI's, Anthropic's and Responses' count of tokens."""

    completion_tokens: Loose
    output_tokens: Loose
    total_output_tokens: Loose
    prompt_tokens: Loose
    input_tokens: Loose


class Timings(TypedDict, total=False):
    """llama.cpp's."""

    predicted_n: Loose
    predicted_ms: Loose
    prompt_n: Loose
    prompt_ms: Loose


class Stats(TypedDict, total=False):
    """LM Studio's."""

    total_output_tokens: Loose
    predicted_tokens_count: Loose


class Inner(TypedDict, total=False):
    """What a Responses event, or LM Studio's last one, wraps its totals in."""

    usage: Other | Usage
    stats: Other | Stats


class Event(msgspec.Struct, gc=False):
    """An event of a stream, or a whole answer; of each what is read, which may be of any type."""

    type: Loose = None
    done: Loose = None
    stop: Loose = None
    error: Loose = None
    usage: Other | Usage = None
    timings: Other | Timings = None
    stats: Other | Stats = None
    response: Other | Inner = None
    result: Other | Inner = None
    tokens_predicted: Loose = None
    tokens_evaluated: Loose = None
    eval_count: Loose = None
    eval_duration: Loose = None
    prompt_eval_count: Loose = None
    prompt_eval_duration: Loose = None
    load_duration: Loose = None


EVENT = msgspec.json.Decoder(Event)


@dataclass(frozen=True, slots=True)
class Totals:
    """What the backend said of a finished answer; None where it said nothing.

    `complete` is False for a stream that ended without its closing event, or with an error in it: its
    length says nothing about the request.
    """

    tokens: int | None = None
    prompt_tokens: int | None = None
    decode_s: float | None = None
    prefill_s: float | None = None
    load_s: float | None = None
    prefilled_tokens: int | None = None
    complete: bool = False
    error: bool = False


class AnswerWatch:
    """Counts an answer's tokens as it passes and reads its totals when it is over."""

    def __init__(self, head: ResponseHead) -> None:
        content_type = (head.get(b"content-type") or b"").lower()
        self.readable = head.get(b"content-encoding") in (None, b"identity")
        self._sse = b"event-stream" in content_type
        self._ndjson = b"ndjson" in content_type
        self._ok = 200 <= head.status < 300
        self._tail = bytearray()
        self.events = 0

    @property
    def streaming(self) -> bool:
        """Whether the answer comes token by token."""
        return self._sse or self._ndjson

    def feed(self, data: bytes) -> None:
        """Take note of a piece of the body."""
        if self._sse:
            self.events += data.count(b"\n\n") or (data.count(b"\r\n\r\n") if b"\r" in data else 0)
        elif self._ndjson:
            self.events += data.count(b"\n")
        tail = self._tail
        if self.streaming:
            tail += data
            if len(tail) > 2 * TAIL_BYTES:
                del tail[:-TAIL_BYTES]
        elif self.readable:
            tail += data
            if len(tail) > WHOLE_BYTES:
                self.readable = False
                tail.clear()

    def totals(self) -> Totals:
        """Return what the answer said of itself; call once it has ended. Never raises: a shape that is not
        known says nothing.
        """
        if not self.readable or not self._ok:
            return Totals()
        if not self.streaming:
            return _merge(list(_decoded(self._tail)), True)
        events = list(self._last_events())
        done = self._sse and b"[DONE]" in self._tail[-64:]
        closed = done or (bool(events) and _closes(events[-1]))
        totals = _merge(events, closed)
        if totals.tokens is None and totals.complete:
            # The client did not ask for usage: one event a token, less the few that carry none.
            return Totals(tokens=max(1, self.events - 3), complete=True)
        return totals

    def _last_events(self) -> Iterator[Event]:
        before, *last = bytes(self._tail).rsplit(b"\n", LAST_LINES)
        first = before.split(b"\n", FIRST_LINES)[:FIRST_LINES]
        for line in (*first, *last):
            if self._ndjson:
                yield from _decoded(line)
            elif line.startswith(b"data:"):
                yield from _decoded(line[5:])


def _decoded(text: bytes | bytearray) -> Iterator[Event]:
    """Yield the event that a text is, if it is one."""
    try:
        yield EVENT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return


def _closes(event: Event) -> bool:
    """Whether an event says that the answer is whole (Ollama, llama.cpp, Anthropic, Responses)."""
    return (
        event.done is True
        or event.stop is True
        or event.type in ("message_stop", "response.completed", "response.incomplete", "chat.end")
    )


def _merge(events: list[Event], closed: bool) -> Totals:
    """Return what the events say together; of what several say, the last holds."""
    told: dict[str, Any] = {}
    error = False
    for event in events:
        error = error or bool(event.error) or event.type in ("error", "response.failed")
        told |= {name: value for name, value in _told_by(event).items() if value}
    return Totals(**told, complete=closed and not error, error=error)


def _told_by(event: Event) -> dict[str, int | float | None]:
    response, result = _object(event.response), _object(event.result)
    usage = _object(event.usage or response.get("usage"))
    timings = _object(event.timings)
    stats = _object(event.stats or result.get("stats"))
    return {
        "tokens": _tokens(stats.get("total_output_tokens"), stats.get("predicted_tokens_count"))
        or _tokens(event.tokens_predicted, timings.get("predicted_n"), event.eval_count)
        or _tokens(*(usage.get(f"{name}_tokens") for name in ("completion", "output", "total_output"))),
        "prompt_tokens": _tokens(event.tokens_evaluated, event.prompt_eval_count)
        or _tokens(usage.get("prompt_tokens"), usage.get("input_tokens")),
        "prefilled_tokens": _tokens(timings.get("prompt_n"), event.prompt_eval_count),
        "decode_s": _seconds(timings.get("predicted_ms"), MS_PER_S)
        or _seconds(event.eval_duration, NS_PER_S),
        "prefill_s": _seconds(timings.get("prompt_ms"), MS_PER_S)
        or _seconds(event.prompt_eval_duration, NS_PER_S),
        "load_s": _seconds(event.load_duration, NS_PER_S),
    }


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tokens(*values: object) -> int | None:
    """Return the first of the values that is a number of tokens, and not none."""
    return next((tokens for value in values if (tokens := number(value, MOST_TOKENS))), None)


def _seconds(value: object, unit: float) -> float | None:
    if isinstance(value, float) and 0 < value <= LONGEST_S * unit:
        return value / unit
    return None
