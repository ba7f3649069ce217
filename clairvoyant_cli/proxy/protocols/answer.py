"""What an answer tells while it passes: how many tokens, at what speeds, and whether it is whole.

Rule 1: watching never changes, delays or holds back a byte.
Rule 2: per chunk it costs one `bytes.count`; the JSON is read once, after the end has been passed on.
Rule 3: no text is kept beyond the tail that carries the totals, and that is dropped with the request.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from clairvoyant_cli.http.framing import ResponseHead

TAIL_BYTES = 64 * 1024
"""How much of a stream's end is kept: a Responses stream repeats the whole answer in its last event."""

WHOLE_BYTES = 8 * 1024 * 1024
"""How much of an unstreamed answer is kept; of a longer one the totals are sought in its tail."""

NS_PER_S = 1e9
MS_PER_S = 1e3


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
            self.events += data.count(b"\n\n") or data.count(b"\r\n\r\n")
        elif self._ndjson:
            self.events += data.count(b"\n")
        tail = self._tail
        tail += data
        limit = TAIL_BYTES if self.streaming else WHOLE_BYTES
        if len(tail) > 2 * limit:
            del tail[:-limit]

    def totals(self) -> Totals:
        """Return what the answer said of itself; call once it has ended. Never raises: a shape that is not
        known says nothing.
        """
        if not self.readable or not self._ok:
            return Totals()
        try:
            return self._totals()
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError):
            return Totals()

    def _totals(self) -> Totals:
        if not self.streaming:
            return _merge([_decoded(bytes(self._tail))], True)
        events = list(self._events())
        done = self._sse and b"[DONE]" in self._tail[-64:]
        closed = done or (bool(events) and _closes(events[-1]))
        totals = _merge(events, closed)
        if totals.tokens is None and totals.complete:
            # The client did not ask for usage: one event a token, less the few that carry none.
            return Totals(tokens=max(1, self.events - 3), complete=True)
        return totals

    def _events(self) -> Iterator[dict[str, Any]]:
        pattern = rb"^data: ?(\{.*)$" if self._sse else rb"^(\{.*)$"
        for match in re.finditer(pattern, self._tail, re.MULTILINE):
            event = _decoded(match[1].rstrip())
            if event:
                yield event


def _decoded(text: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _closes(event: dict[str, Any]) -> bool:
    """Whether an event says that the answer is whole (Ollama, llama.cpp, Anthropic, Responses)."""
    return (
        event.get("done") is True
        or event.get("stop") is True
        or event.get("type") in ("message_stop", "response.completed", "response.incomplete", "chat.end")
    )


def _merge(events: list[dict[str, Any]], closed: bool) -> Totals:
    tokens: int | None = None
    prompt_tokens: int | None = None
    decode_s = prefill_s = load_s = None
    prefilled: int | None = None
    error = False
    for event in events:
        error = error or bool(event.get("error")) or event.get("type") in ("error", "response.failed")
        inner = event.get("response")
        usage = event.get("usage") or (inner.get("usage") if isinstance(inner, dict) else None)
        if isinstance(usage, dict):
            tokens = _int(usage, "completion_tokens", "output_tokens", "total_output_tokens") or tokens
            prompt_tokens = _int(usage, "prompt_tokens", "input_tokens") or prompt_tokens
        if "eval_count" in event or event.get("done") is True:
            tokens = _int(event, "eval_count") or tokens
            prompt_tokens = prefilled = _int(event, "prompt_eval_count")
            decode_s = _seconds(event, "eval_duration", NS_PER_S)
            prefill_s = _seconds(event, "prompt_eval_duration", NS_PER_S)
            load_s = _seconds(event, "load_duration", NS_PER_S)
        timings = event.get("timings")
        if isinstance(timings, dict):
            tokens = _int(timings, "predicted_n") or tokens
            prefilled = _int(timings, "prompt_n")
            decode_s = _seconds(timings, "predicted_ms", MS_PER_S)
            prefill_s = _seconds(timings, "prompt_ms", MS_PER_S)
        tokens = _int(event, "tokens_predicted") or tokens
        prompt_tokens = _int(event, "tokens_evaluated") or prompt_tokens
        result = event.get("result")
        stats = event.get("stats") or (result.get("stats") if isinstance(result, dict) else None)
        if isinstance(stats, dict):  # LM Studio
            tokens = _int(stats, "total_output_tokens", "predicted_tokens_count") or tokens
    whole = closed and not error
    return Totals(tokens, prompt_tokens, decode_s, prefill_s, load_s, prefilled, whole, error)


def _int(data: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = data.get(name)
        if isinstance(value, int):
            return value
    return None


def _seconds(data: dict[str, Any], name: str, unit: float) -> float | None:
    value = data.get(name)
    return value / unit if isinstance(value, int | float) and value > 0 else None
