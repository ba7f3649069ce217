"""Reads an answer as it passes: its totals (tokens, speeds, whether it is complete) and the end of its text.

Rule 1: watching never changes, delays or holds back a byte.
Rule 2: a chunk costs one regular expression; JSON is parsed once, after the end, in at most 5 ms for 2 MB.
Rule 3: only the tail with the totals is kept, until the request ends.
Rule 4: impossible numbers are dropped, so the others may be stored, added and divided.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.answer_events import (
    CALLS_TOOL,
    END_OF_THINKING,
    LONGEST_IDLE,
    TEXTS,
    Earlier,
    Kind,
    ending_of,
    kinds_of,
    texts_of,
)
from clairvoyant_cli.protocols.lenient_json import Object, number, object_in, object_of

SHOWN_CHARS = 2000
UNREAD_BYTES = 64 * 1024  # of the stream that are kept before they are read: 1 ms for some 400 events


class AnswerText:
    """Collects a stream, and reads its text when somebody asks. Thinking and tool calls are marked."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._text = ""
        self._kind = Kind.TEXT

    def feed(self, data: bytes) -> None:
        self._unread += data
        if len(self._unread) > UNREAD_BYTES:
            self.read()

    def read(self) -> str:
        """Return the last `SHOWN_CHARS` of the text so far."""
        whole = self._unread.rfind(b"\n") + 1
        said = [self._text]
        for line in bytes(self._unread[:whole]).split(b"\n"):
            for kind, quoted in texts_of(line).items():
                if kind is not self._kind:
                    said.append(f"\n[{kind}]\n")
                    self._kind = kind
                text = quoted.decode("utf-8", "replace")
                try:
                    said.append(str(json.loads(f'"{text}"', strict=False)))
                except ValueError:
                    said.append(text)
        del self._unread[: whole or max(0, len(self._unread) - UNREAD_BYTES)]
        self._text = "".join(said)[-SHOWN_CHARS:]
        # The halves of a character may come in two events.
        return self._text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def go_back_to(self, text: str) -> None:
        """The answer was cut or broke off, and goes on after `text`."""
        self._unread.clear()
        self._text, self._kind = text[-SHOWN_CHARS:], Kind.TEXT


TAIL_BYTES = 64 * 1024  # kept of a stream's end: a Responses stream repeats the answer in its last event
WHOLE_BYTES = 2 * 1024 * 1024  # the longest unstreamed answer that is read: longer ones are embeddings
LAST_LINES = 64  # of a stream's tail that are read: totals come last
FIRST_LINES = 8  # Anthropic counts the prompt in its first event

MAX_TOKENS = 1 << 31  # limits on believable totals
LONGEST_S = 7 * 86_400.0
NS_PER_S = 1e9
MS_PER_S = 1e3

NAMES: dict[str, tuple[str, ...]] = {
    # LM Studio's `stats`, llama.cpp's own and its `timings`, Ollama's, then all kinds of `usage`.
    "tokens": (
        *("total_output_tokens", "predicted_tokens_count", "tokens_predicted", "predicted_n", "eval_count"),
        *("completion_tokens", "output_tokens"),
    ),
    "prompt_tokens": ("tokens_evaluated", "prompt_eval_count", "prompt_tokens"),
    "read_tokens": ("prompt_n",),
    "decode_s": ("predicted_ms", "eval_duration"),
    "prefill_s": ("prompt_ms", "prompt_eval_duration"),
    "load_s": ("load_duration",),
}
"""The servers' names of each of the `Totals`. The first that is not 0 counts."""

CACHED_TOKENS = (
    *("cache_n", "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"),
    "prompt_eval_cached_count",
)
"""The same for the prompt's tokens from the cache, of which a 0 counts, too."""

APART = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""The parts of a prompt that Anthropic counts apart. Responses has the first alone, for the whole."""

HOLDERS = {"usage", "timings", "stats"}  # members of an event that have totals
WRAPPERS = ("message", "response", "result")
"""Members in which Anthropic's first event, the last of Responses, and LM Studio have theirs."""

KNOWN = frozenset((*(name for names in NAMES.values() for name in names), *CACHED_TOKENS, *APART))
DETAILS = {"prompt_tokens_details", "input_tokens_details"}  # objects, of which the cached tokens count
UNITS = {name: NS_PER_S for name in KNOWN if name.endswith("_duration")} | {
    name: MS_PER_S for name in KNOWN if name.endswith("_ms")
}
"""How many units of a time a second has. All others are numbers of tokens."""

MAY_HAVE_TOTALS = re.compile(
    rb'"(?:error|response\.failed|usage|timings|stats|tokens_predicted|tokens_evaluated|(?:prompt_)?eval_count|'
    rb'load_duration)"'
)
"""What a line with totals or an error contains; most do not. Inside a text the quotes are escaped."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The server's totals of a finished answer; None if not reported."""

    tokens: int | None = None
    prompt_tokens: int | None = None
    decode_s: float | None = None
    prefill_s: float | None = None
    load_s: float | None = None
    read_tokens: int | None = None  # of the prompt, those that were not in the KV cache
    cached_tokens: int | None = None  # of the prompt, those that were
    calls_tool: bool = False
    complete: bool = False  # not for a stream without its closing event, or with an error
    error: bool = False

    def after(self, earlier: Earlier) -> "Totals":
        """Return the totals of the whole answer, if these are of its last part; the prefill is unknown."""
        if not earlier.tokens:
            return self
        return replace(
            self,
            tokens=None if self.tokens is None else self.tokens + earlier.tokens,
            prompt_tokens=None if self.prompt_tokens is None else max(1, self.prompt_tokens - earlier.reread),
            decode_s=None if self.decode_s is None else self.decode_s + earlier.decode_s,
            prefill_s=None,
            read_tokens=None,
        )


class UsageReader:
    """Counts an answer's `events` that bring text as it passes, and their `tokens` by `tokens_an_event`, and
    reads its totals when it is over. `thought` counts the events of its thinking; `on_answer` is called once,
    when the answer after it begins. `shown` collects the text of a stream.
    """

    def __init__(
        self, head: ResponseHead, shown: AnswerText | None = None, tokens_an_event: float = 1.0
    ) -> None:
        content_type = (head.get(b"content-type") or b"").lower()
        self.readable = head.get(b"content-encoding") in (None, b"identity")
        self._sse = b"event-stream" in content_type
        self.streaming = self._sse or b"ndjson" in content_type
        self.is_answer = 200 <= head.status < 300
        self._tail = bytearray()
        self._line = b""
        self.events = self.thought = 0
        self.tokens_an_event = tokens_an_event
        self.on_answer: Callable[[], None] | None = None
        self._shown = shown if self.is_answer else None

    @property
    def tokens(self) -> int:
        return round(self.events * self.tokens_an_event)

    def feed(self, data: bytes) -> bool:
        """Take the next piece; return whether it brings anything. What cannot be read does."""
        if not self.readable:
            return True
        tail = self._tail
        tail += data
        if not self.streaming:
            if len(tail) > WHOLE_BYTES:
                self.readable = False
                tail.clear()
            return not data.isspace()
        if len(tail) > 2 * TAIL_BYTES:
            del tail[:-TAIL_BYTES]
        if self._shown is not None:
            self._shown.feed(data)
        if b"\n" not in data:
            self._line += data if len(self._line) < TAIL_BYTES else b""
            return len(self._line) > LONGEST_IDLE
        lines, _, self._line = (self._line + data).rpartition(b"\n")
        kinds = kinds_of(lines)
        texts = list(filter(TEXTS.__contains__, kinds))
        self.events += len(texts)
        if Kind.THINKING in texts:
            self.thought += texts.count(Kind.THINKING)
        elif b"/think" in lines and END_OF_THINKING.search(lines):
            self.thought = self.events
        elif texts and self.thought and self.on_answer is not None:
            self.on_answer()
            self.on_answer = None
        return len(kinds) > kinds.count(Kind.IDLE)

    @property
    def passed(self) -> bytes:
        """The end of what has passed of a stream."""
        return bytes(self._tail[-TAIL_BYTES:])

    def holds(self, words: bytes) -> bool:
        return words in self._tail

    def totals(self) -> Totals:
        """Return the totals after the end of the answer. Never raises."""
        if not self.readable or not self.is_answer:
            return Totals()
        lines, closed, counted = [bytes(self._tail)], True, 0
        if self.streaming:
            before, *last = lines[0].rsplit(b"\n", LAST_LINES)
            lines = before.split(b"\n", FIRST_LINES)[:FIRST_LINES] + last
            if self._sse:
                lines = [line[5:] for line in lines if line.startswith(b"data:")]
            closed, counted = self._sse and b"[DONE]" in self._tail[-64:], self.tokens
            if not closed:  # the last event may mark the end of the answer
                ends = next(
                    (event for line in reversed(lines) if (event := object_of(line)) is not None), None
                )
                closed = ends is not None and ending_of(ends) is Kind.END
        found = _totals_in(filter(MAY_HAVE_TOTALS.search, lines))
        if counted and closed and not found.get("error"):
            found.setdefault("tokens", counted)  # of a whole answer whose client did not ask for usage
        complete = closed and not found.get("error")
        return Totals(**found, calls_tool=CALLS_TOOL.search(self._tail) is not None, complete=complete)


def totals_in_event(line: bytes) -> Totals:
    """Return the totals in one event of a stream, mostly none."""
    return Totals(**_totals_in([line]))


def _totals_in(lines: Iterable[bytes]) -> dict[str, Any]:
    """Return the `Totals` in several events; later ones win."""
    totals: dict[str, Any] = {}
    for line in lines:
        event = object_of(line) or Object()
        if ending_of(event) is Kind.ERROR:
            totals["error"] = True
        totals |= _totals_of(_numbers_in(event))
    prompt, cached = totals.get("prompt_tokens"), totals.get("cached_tokens")
    if prompt and cached is not None:
        totals.setdefault("read_tokens", max(1, prompt - cached))
    elif cached is not None and "read_tokens" in totals:
        totals["prompt_tokens"] = cached + totals["read_tokens"]
    return totals


def _numbers_in(event: Object) -> dict[str, int | float]:
    """Return the `KNOWN` numbers in an event: tokens, and seconds above 0."""
    held = Object(event)  # Ollama's numbers are flat
    for holder in (*map(object_in, filter(None, map(event.get, WRAPPERS))), event):
        for name in holder.keys() & HOLDERS:
            held |= object_in(holder[name])
    for details in DETAILS & held.keys():
        held[details] = object_in(held[details])["cached_tokens"]
    numbers: dict[str, int | float] = {}
    for name in KNOWN & held.keys():
        value, unit = number(held[name]), UNITS.get(name)
        if value is None:
            continue
        if unit is not None and 0 < value <= LONGEST_S * unit:
            numbers[name] = value / unit
        elif unit is None and 0 <= value <= MAX_TOKENS and value.is_integer():
            numbers[name] = int(value)
    return numbers


def _totals_of(counts: dict[str, int | float]) -> dict[str, int | float]:
    """Return the `Totals` that are in the numbers of an event."""
    found: dict[str, int | float] = {}
    for total, names in NAMES.items():
        for name in names:
            if counts.get(name):
                found[total] = counts[name]
                break
    if prompt := sum(map(counts.get, APART, repeat(0))):
        found.setdefault("prompt_tokens", prompt)
    if read := counts.get("prompt_eval_count"):
        # Recent versions of Ollama count cached tokens as read, too.
        found.setdefault("read_tokens", max(1, read - counts.get("prompt_eval_cached_count", 0)))
    for name in CACHED_TOKENS:
        if name in counts:
            found.setdefault("cached_tokens", counts[name])
    return found
