"""Reads an answer as it passes: its totals (tokens, speeds, whether it is complete) and the end of its text.

Rule 1: watching never changes, delays or holds back a byte.
Rule 2: a chunk costs one regular expression; JSON is parsed once, after the end, in at most 5 ms for 2 MB.
Rule 3: only the tail with the totals is kept, until the request ends.
Rule 4: impossible numbers are dropped, so the others may be stored, added and divided.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.lenient_json import (
    Object,
    is_given,
    number,
    object_in,
    object_of,
    scalar,
    text,
)

# The end of a streamed answer's text, whatever the protocol, for operators who may read it.

SHOWN_CHARS = 2000
LOOK_BYTES = 64 * 1024  # of the stream that are kept before they are read: 1 ms for some 400 events
TEXTS = re.compile(
    rb'"(content|response|text|thinking|reasoning|reasoning_content|arguments|partial_json|delta)"'
    rb'\s*:\s*"((?:[^"\\]|\\.)*+)"'
)
"""The text in an event of any protocol, after its name."""
_KINDS = {
    b"thinking": "thinking",
    b"reasoning": "thinking",
    b"reasoning_content": "thinking",
    b"arguments": "tool call",
    b"partial_json": "tool call",
}


class AnswerText:
    """Collects a stream, and reads its text when somebody asks. Thinking and tool calls are marked."""

    def __init__(self) -> None:
        self._fresh = bytearray()
        self._text = ""
        self._kind = "answer"

    def feed(self, data: bytes) -> None:
        self._fresh += data
        if len(self._fresh) > LOOK_BYTES:
            self.read()

    def read(self) -> str:
        """Return the last `SHOWN_CHARS` of the text so far."""
        whole = self._fresh.rfind(b"\n") + 1
        said = [self._text]
        for line in bytes(self._fresh[:whole]).split(b"\n"):
            texts = () if _repeats(line) else TEXTS.findall(line)
            # vLLM sends its reasoning under two names: of one kind the last counts.
            for kind, last in {_kind(name, line): quoted for name, quoted in texts if quoted}.items():
                if kind != self._kind:
                    said.append(f"\n[{kind}]\n")
                    self._kind = kind
                said.append(_unquoted(last))
        del self._fresh[: whole or max(0, len(self._fresh) - LOOK_BYTES)]
        self._text = "".join(said)[-SHOWN_CHARS:]
        # The halves of a character may come in two events.
        return self._text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def go_back_to(self, text: str) -> None:
        """The answer was cut or broke off, and goes on after `text`."""
        self._fresh.clear()
        self._text, self._kind = text[-SHOWN_CHARS:], "answer"


def _repeats(line: bytes) -> bool:
    """Whether an event of a Responses stream repeats the text of earlier ones."""
    of_type = line[: line.find(b",")]
    return b'"response.' in of_type and b'.delta"' not in of_type


def _kind(name: bytes, line: bytes) -> str:
    if name == b"delta":
        of_type = line[: line.find(b",")]
        name = b"reasoning" if b".reasoning" in of_type else b"arguments" if b"arguments" in of_type else name
    return _KINDS.get(name, "answer")


def _unquoted(text: bytes) -> str:
    decoded = text.decode("utf-8", "replace")
    try:
        return str(json.loads(f'"{decoded}"', strict=False))
    except ValueError:
        return decoded


TAIL_BYTES = 64 * 1024  # kept of a stream's end: a Responses stream repeats the answer in its last event
WHOLE_BYTES = 2 * 1024 * 1024  # the longest unstreamed answer that is read: longer ones are embeddings
LAST_LINES = 64  # of a stream's tail that are read: totals come last
FIRST_LINES = 8  # Anthropic counts the prompt in its first event

CALLS_TOOL = re.compile(
    rb'"(?:finish_reason|stop_reason)"\s*:\s*"(?:tool_calls|tool_use|function_call)"'
    rb'|"type"\s*:\s*"function_call"|"tool_calls"\s*:\s*\[\s*\{'
)
"""What an answer contains that calls a tool. Inside its text the quotes are escaped."""
BRINGS_TEXT = re.compile(
    rb'"(content|response|text|thinking|reasoning|reasoning_content|arguments|partial_json|delta)"'
    rb'\s*:\s*"[^"][^\n]*'
)
"""The rest of an event that brings some of the answer: not its opening, its end or its totals."""
THINKING = frozenset((b"thinking", b"reasoning", b"reasoning_content"))
RESPONSES_THINKING = b'"type":"response.reasoning'
END_OF_THINKING = re.compile(rb"(?:<|\\u003c)/think(?:>|\\u003e)")
"""The tag at the end of thinking that a server leaves in the text. Go escapes its brackets."""

MAX_TOKENS = 1 << 31  # limits on believable totals
LONGEST_S = 7 * 86_400.0
NS_PER_S = 1e9
MS_PER_S = 1e3


UNITS: dict[str, float | None] = {
    # Of OpenAI's, Anthropic's and Responses' `usage`.
    "completion_tokens": None,
    "output_tokens": None,
    "prompt_tokens": None,
    "input_tokens": None,
    "cache_read_input_tokens": None,
    "cache_creation_input_tokens": None,
    "prompt_tokens_details": None,
    "input_tokens_details": None,
    # Of llama.cpp's `timings`, and beside them.
    "predicted_n": None,
    "prompt_n": None,
    "cache_n": None,
    "predicted_ms": MS_PER_S,
    "prompt_ms": MS_PER_S,
    "tokens_predicted": None,
    "tokens_evaluated": None,
    # Of LM Studio's `stats`.
    "total_output_tokens": None,
    "predicted_tokens_count": None,
    # Of Ollama's last event.
    "eval_count": None,
    "eval_duration": NS_PER_S,
    "prompt_eval_count": None,
    "prompt_eval_cached_count": None,
    "prompt_eval_duration": NS_PER_S,
    "load_duration": NS_PER_S,
}
"""The servers' names of totals: numbers of tokens, or times and how many of their units a second has."""

TOKENS = (
    *("total_output_tokens", "predicted_tokens_count", "tokens_predicted", "predicted_n", "eval_count"),
    *("completion_tokens", "output_tokens"),
)
CACHED_TOKENS = (
    *("cache_n", "prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"),
    "prompt_eval_cached_count",
)
DETAILS = {"prompt_tokens_details", "input_tokens_details"}  # objects, of which the cached tokens count
TELLS = re.compile(
    rb'"(?:error|response\.failed|usage|timings|stats|tokens_predicted|tokens_evaluated|(?:prompt_)?eval_count|'
    rb'load_duration)"'
)
"""What a line contains that tells totals or an error; most do not. Inside a text the quotes are escaped."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The server's totals of a finished answer; None if not reported."""

    tokens: int | None = None
    prompt_tokens: int | None = None
    decode_s: float | None = None
    prefill_s: float | None = None
    load_s: float | None = None
    prefilled_tokens: int | None = None
    cached_tokens: int | None = None
    calls_tool: bool = False
    complete: bool = False  # not for a stream without its closing event, or with an error
    error: bool = False


class UsageReader:
    """Counts an answer's `events` that bring text as it passes, which tell its `tokens` by `tokens_an_event`,
    and reads its totals when it is over. `thought` counts the events of its thinking; `on_answer` is called
    once, when the answer after it begins. `shown` collects the text of a stream.
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

    def feed(self, data: bytes) -> None:
        if not self.readable:
            return
        tail = self._tail
        tail += data
        if self.streaming:
            if b"\n" in data:
                lines, _, rest = (self._line + data).rpartition(b"\n")
                self._count(lines, BRINGS_TEXT.findall(lines))
                self._line = rest
            elif len(self._line) < TAIL_BYTES:
                self._line += data
            if len(tail) > 2 * TAIL_BYTES:
                del tail[:-TAIL_BYTES]
            if self._shown is not None:
                self._shown.feed(data)
        elif len(tail) > WHOLE_BYTES:
            self.readable = False
            tail.clear()

    def _count(self, lines: bytes, brought: list[bytes]) -> None:
        self.events += len(brought)
        thought = sum(map(THINKING.__contains__, brought)) or lines.count(RESPONSES_THINKING)
        if thought:
            self.thought += min(thought, len(brought))
        elif b"/think" in lines and END_OF_THINKING.search(lines):
            self.thought = self.events
        elif brought and self.thought and self.on_answer is not None:
            self.on_answer()
            self.on_answer = None

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
        lines = self._last_lines() if self.streaming else [bytes(self._tail)]
        closed = not self.streaming or (self._sse and b"[DONE]" in self._tail[-64:]) or _closed_by(lines)
        counted = self.tokens if self.streaming else 0
        telling = filter(TELLS.search, lines)
        return _totals_in(telling, closed, counted, calls_tool=CALLS_TOOL.search(self._tail) is not None)

    def _last_lines(self) -> list[bytes]:
        before, *last = bytes(self._tail).rsplit(b"\n", LAST_LINES)
        lines = before.split(b"\n", FIRST_LINES)[:FIRST_LINES] + last
        return [line[5:] for line in lines if line.startswith(b"data:")] if self._sse else lines


def is_comment(data: bytes) -> bool:
    """Whether a piece of a stream is a comment of server-sent events: a server that is still reading."""
    return data[:1] == b":" and b"data:" not in data


def told_by_line(line: bytes) -> Totals:
    """Return the totals in one event of a stream, mostly none."""
    return _totals_in([line], closed=False)


def _closed_by(lines: list[bytes]) -> bool:
    """Whether the last event marks the end of the answer (Ollama, llama.cpp, Anthropic, Responses)."""
    event = next((event for line in reversed(lines) if (event := object_of(line)) is not None), Object())
    return (
        scalar(event["done"]) is True
        or scalar(event["stop"]) is True
        or text(event["type"]) in ("message_stop", "response.completed", "response.incomplete", "chat.end")
    )


def _totals_in(lines: Iterable[bytes], closed: bool, counted: int = 0, *, calls_tool: bool = False) -> Totals:
    """Return the totals of several events; later ones win. The tokens of a whole answer whose client did not
    ask for usage are those `counted`.
    """
    told: dict[str, Any] = {}
    error = False
    for line in lines:
        event = object_of(line) or Object()
        error = error or is_given(event["error"]) or text(event["type"]) in ("error", "response.failed")
        told |= _totals_of(_numbers(event))
    prompt, cached = told.get("prompt_tokens"), told.get("cached_tokens")
    if prompt and cached is not None:
        told.setdefault("prefilled_tokens", max(1, prompt - cached))
    elif cached is not None and "prefilled_tokens" in told:
        told["prompt_tokens"] = cached + told["prefilled_tokens"]
    if counted and closed and not error:
        told.setdefault("tokens", counted)
    return Totals(**told, calls_tool=calls_tool, complete=closed and not error, error=error)


def _numbers(event: Object) -> dict[str, int | float]:
    """Return the numbers in `UNITS` that an event tells: tokens, and seconds above 0."""
    # Anthropic's first event has the usage in its message; Ollama's numbers are flat.
    usage = object_in(event["usage"]) or object_in(object_in(event["response"])["usage"])
    usage = usage or object_in(object_in(event["message"])["usage"])
    held = event | usage | object_in(event["timings"])
    if "stats" in event or "result" in event:
        held |= object_in(event["stats"]) or object_in(object_in(event["result"])["stats"])
    for details in DETAILS & held.keys():
        held[details] = object_in(held[details])["cached_tokens"]
    told: dict[str, int | float] = {}
    for name in UNITS.keys() & held.keys():
        value, unit = number(held[name]), UNITS[name]
        if value is None:
            continue
        if unit is not None and 0 < value <= LONGEST_S * unit:
            told[name] = value / unit
        elif unit is None and 0 <= value <= MAX_TOKENS and value.is_integer():
            told[name] = int(value)
    return told


def _totals_of(told: dict[str, int | float]) -> dict[str, int | float]:
    """Return the `Totals` that an event tells by the servers' names."""

    def first(*names: str) -> int | float:
        return next(filter(None, map(told.get, names)), 0)

    cached = [told[name] for name in CACHED_TOKENS if name in told]
    # Anthropic counts cached tokens apart, Responses does not.
    apart = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    read = told.get("prompt_eval_count")
    totals = {
        "tokens": first(*TOKENS),
        "prompt_tokens": first("tokens_evaluated", "prompt_eval_count", "prompt_tokens")
        or sum(told.get(name, 0) for name in apart),
        # Recent versions of Ollama count cached tokens as read, too.
        "prefilled_tokens": told.get("prompt_n")
        or (read and max(1, read - told.get("prompt_eval_cached_count", 0))),
        "decode_s": first("predicted_ms", "eval_duration"),
        "prefill_s": first("prompt_ms", "prompt_eval_duration"),
        "load_s": told.get("load_duration"),
    }
    reported = {name: value for name, value in totals.items() if value}
    return reported | {"cached_tokens": cached[0]} if cached else reported  # of which a 0 says something
