"""The events of streamed answers: what each brings, how they are read and written, and how totals add up.

An event is a JSON object: the `data:` of a server-sent event, or a line of NDJSON. As it passes, a regular
expression tells its kind. It is parsed only where an answer may be cut or has ended.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from clairvoyant_cli.protocols.lenient_json import ABSENT, Object, is_given, object_of, text
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, Shape

AnswerEvent = dict[str, Any]
EVENT_END, LINE_END = re.compile(rb"\r?\n\r?\n"), re.compile(rb"\n")  # of a server-sent event, of NDJSON


class Kind(StrEnum):
    """What an event brings: a part of the answer, its end, or nothing. OTHER are its opening and its totals,
    and its end before it is decoded.
    """

    TEXT = "answer"
    THINKING = "thinking"
    TOOL = "tool call"
    OTHER = "other"
    IDLE = "idle"
    END = "end"
    ERROR = "error"


TEXTS = frozenset((Kind.TEXT, Kind.THINKING, Kind.TOOL))


TEXT_KINDS = {
    b"content": Kind.TEXT,
    b"response": Kind.TEXT,
    b"text": Kind.TEXT,
    b"delta": Kind.TEXT,  # of a Responses stream, unless the event's type says otherwise
    b"thinking": Kind.THINKING,
    b"reasoning": Kind.THINKING,
    b"reasoning_content": Kind.THINKING,
    b"arguments": Kind.TOOL,
    b"partial_json": Kind.TOOL,
}
"""The names under which events of all dialects have their text. Inside a text the quotes are escaped."""

_BRINGS_TEXT = re.compile(rb'"(%b)"\s*:\s*"[^"]' % b"|".join(TEXT_KINDS))
_TEXTS = re.compile(rb'"(%b)"\s*:\s*"((?:[^"\\]|\\.)++)"' % b"|".join(TEXT_KINDS))
_RESPONSES = b'"response.'  # how the types of events begin in a Responses stream
_RESPONSES_TYPE = re.compile(rb'"type"\s*:\s*"response\.([a-z_.]+)"')

ENDING_TYPES = ("message_stop", "response.completed", "response.incomplete", "chat.end")
ERROR_TYPES = ("error", "response.failed")
END_OF_THINKING = re.compile(rb"(?:<|\\u003c)/think(?:>|\\u003e)")
"""The tag at the end of thinking that a server leaves in the text. Go escapes its brackets."""

CALLS_TOOL = re.compile(
    rb'"(?:finish_reason|stop_reason)"\s*:\s*"(?:tool_calls|tool_use|function_call)"'
    rb'|"type"\s*:\s*"function_call"|"tool_calls"\s*:\s*\[\s*\{'
)
"""What an answer contains that calls a tool."""

_NO_EVENT = (b":", b"event:", b"id:", b"retry:")
"""How lines of a stream begin that bring nothing by themselves."""

_PROMPT_PROGRESS = re.compile(rb'"prompt_progress"\s*:\s*\{')  # how much of it llama.cpp has read
LONGEST_IDLE = 4096  # bytes of an event that brings nothing; a longer one brings something before it is whole


def events_in(held: bytearray, data: bytes, end: re.Pattern[bytes] = EVENT_END) -> Iterator[bytes]:
    """Yield the events that are whole once `data` has come, each with its end. The rest stays in `held`."""
    begun, searched = 0, max(0, len(held) - 3)  # the beginning of an end may have come before
    held += data
    while (mark := end.search(held, searched)) is not None:
        yield bytes(held[begun : mark.end()])
        begun = searched = mark.end()
    del held[:begun]


def kinds_of(lines: bytes) -> list[Kind]:
    """Return what each event in some whole lines of a stream brings."""
    kinds = []
    for line in lines.split(b"\n"):
        event = line.removeprefix(b"data:").strip()
        if not event or line.startswith(_NO_EVENT):
            continue
        if _RESPONSES in line:
            kinds.append(next(iter(texts_of(line)), Kind.OTHER))
        elif (found := _BRINGS_TEXT.search(line)) is not None:
            kinds.append(TEXT_KINDS[found[1]])
        else:
            is_idle = _PROMPT_PROGRESS.search(line) or (b'"ping"' in line and _is_ping(event))
            kinds.append(Kind.IDLE if is_idle else Kind.OTHER)
    return kinds


def _is_ping(event: bytes) -> bool:
    """Whether an event is Anthropic's ping, and not one that has another within."""
    members = object_of(event)
    return members is not None and text(members["type"]) == "ping"


def texts_of(line: bytes) -> dict[Kind, bytes]:
    """Return the texts that an event brings, as they are quoted. Of one kind the last counts: vLLM sends its
    reasoning under two names.
    """
    found = _RESPONSES_TYPE.search(line) if _RESPONSES in line else None
    if found is None:
        return {TEXT_KINDS[name]: quoted for name, quoted in _TEXTS.findall(line)}
    texts = _TEXTS.findall(line) if found[1].endswith(b".delta") else ()
    if not texts:
        return {}  # it repeats the text of earlier events, or has none
    kind = Kind.TOOL if b"arguments" in found[1] else Kind.TEXT
    kind = Kind.THINKING if found[1].startswith(b"reasoning") else kind
    return {kind: texts[-1][1]}


def ending_of(event: Object) -> Kind | None:
    """Return END or ERROR for an event that ends an answer, else None."""
    event_type = text(event.get("type", ABSENT))
    if event_type in ERROR_TYPES or is_given(event.get("error", ABSENT)):
        return Kind.ERROR
    is_done = b"true" in (bytes(event.get("done", ABSENT)), bytes(event.get("stop", ABSENT)))
    return Kind.END if is_done or event_type in ENDING_TYPES else None


@dataclass(frozen=True, slots=True)
class Said:
    """What an event of an answer that may be cut brings: text, the finish reason, totals, or the end.

    `plain` is False for what a continuation cannot reproduce: thinking, tool calls, several choices.
    """

    text: str = ""
    reason: str | None = None
    totals: bool = False
    closes: bool = False
    plain: bool = True


NOTHING = Said()  # a comment, or an empty line
CLOSES = Said(closes=True)
STRANGE = Said(plain=False)

CUTTABLE = frozenset((Shape.OLLAMA_CHAT, Shape.OLLAMA_GENERATE, Shape.CHAT, Shape.COMPLETION))
"""The routes with answers that may be cut."""

ENDS = (None, "stop", "length")
"""Why an answer that is text alone ends. Ollama's `load` and `unload` are no answers."""

_MESSAGE = {Shape.OLLAMA_CHAT: "message", Shape.CHAT: "delta"}  # the object that has the text
_TEXT = {Shape.OLLAMA_GENERATE: "response", Shape.COMPLETION: "text"}  # its name; that of a chat is `content`


def read_event(shape: Shape, event: AnswerEvent) -> Said:
    """Parse an event of a route whose answers may be cut."""
    is_ollama, choice = shape in OLLAMA_SHAPES, event
    if not is_ollama:
        choices = event.get("choices")
        if choices == [] and "error" not in event:
            return Said(totals="usage" in event)
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else {}
    index = choice.get("index") if isinstance(choice, dict) else None
    if (index != 0 and not is_ollama) or "error" in event or choice.get("logprobs") is not None:
        return STRANGE
    said = choice.get(_MESSAGE[shape]) if shape in _MESSAGE else choice
    is_chat = said is not choice
    if not isinstance(said, dict) or (is_chat and any(said[n] for n in said.keys() - {"role", "content"})):
        return STRANGE  # thinking, a tool's call, a refusal
    if shape is Shape.OLLAMA_GENERATE and ("thinking" in event or "context" in event):
        return STRANGE
    held = said.get("content" if is_chat else _TEXT[shape])
    reason, totals = choice.get("finish_reason"), "timings" in event
    if is_ollama:
        totals = event.get("done") is True
        reason = (event.get("done_reason") or "stop") if totals else None
    if not isinstance(held, str if is_ollama else str | None) or reason not in ENDS:
        return STRANGE
    return Said(held or "", reason, totals=totals)


def with_text(shape: Shape, event: AnswerEvent, text: str) -> AnswerEvent:
    """Return an event like another one, with this text."""
    held = {_TEXT.get(shape, "content"): text}
    if shape in OLLAMA_SHAPES:
        return event | ({"message": event["message"] | held} if shape in _MESSAGE else held)
    choice = event["choices"][0]
    return event | {"choices": [choice | ({"delta": choice["delta"] | held} if shape in _MESSAGE else held)]}


def without_role(event: AnswerEvent) -> AnswerEvent:
    """Return an event of a chat without the role that its first one has."""
    choices = event.get("choices")
    if not choices or "role" not in choices[0].get("delta", ()):
        return event
    delta = {name: value for name, value in choices[0]["delta"].items() if name != "role"}
    return event | {"choices": [choices[0] | {"delta": delta}]}


def unstreamed(shape: Shape, ended: AnswerEvent, totals: AnswerEvent, text: str) -> AnswerEvent:
    """Return the unstreamed answer, made of the events that end a stream and have its totals."""
    counts = {name: totals[name] for name in ("usage", "timings") if name in totals}
    whole = with_text(shape, ended, text) | counts
    if shape is Shape.CHAT:
        message = {"role": "assistant", "content": text}
        named = whole["choices"][0].items()  # in the server's order of names
        choice = dict(("message", message) if name == "delta" else (name, value) for name, value in named)
        whole |= {"choices": [choice], "object": "chat.completion"}
    return whole


def sse(event: AnswerEvent) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(event)


def ndjson(event: AnswerEvent) -> bytes:
    return msgspec.json.encode(event) + b"\n"


# Sums the totals of a continued answer: the server counted only its last part, and the rest as prompt.

NS = 1e9
MS = 1e3
COUNTED = ("prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True)
class Earlier:
    """The parts before: their tokens, and their durations as measured here.

    As prompt they have `reread` tokens: a model may split words differently than the tokeniser.
    """

    tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    reread: int = 0


def summed(event: AnswerEvent, earlier: Earlier) -> AnswerEvent:
    """Return an event with the totals of the whole answer in place of those of its last part."""
    changed: AnswerEvent = {}
    usage, timings = event.get("usage"), event.get("timings")
    # Ollama's completions have a usage of zeros in every event.
    if isinstance(usage, dict) and any(_number(usage, n) > 0 for n in COUNTED):
        changed["usage"] = summed_usage(usage, earlier)
    if isinstance(timings, dict):
        changed["timings"] = _timings(timings, earlier)
    if event.get("done") is True:
        changed |= _ollama(event, earlier)
    return event | changed if changed else event


def summed_usage(usage: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
    """Return OpenAI's `usage` of the whole answer."""
    completion = _number(usage, "completion_tokens") + earlier.tokens
    prompt = max(0, _number(usage, "prompt_tokens") - earlier.reread)
    changed: dict[str, Any] = {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
    }
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and "cached_tokens" in details:
        cached = min(_number(details, "cached_tokens"), prompt)
        changed["prompt_tokens_details"] = details | {"cached_tokens": cached}
    return usage | changed


def _timings(timings: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
    """Return llama.cpp's times; `prompt_n` stays what was evaluated in the end, most of it being cached."""
    tokens = _number(timings, "predicted_n") + earlier.tokens
    decode_ms = _milliseconds(timings, "predicted_ms") + earlier.decode_s * MS
    prompt_n = max(1, _number(timings, "prompt_n"))
    prompt_ms = _milliseconds(timings, "prompt_ms") + earlier.prefill_s * MS
    changed: dict[str, Any] = {
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n,
        "prompt_per_second": prompt_n / prompt_ms * MS if prompt_ms else 0.0,
        "predicted_n": tokens,
        "predicted_ms": decode_ms,
        "predicted_per_token_ms": decode_ms / max(1, tokens),
        "predicted_per_second": tokens / decode_ms * MS if decode_ms else 0.0,
    }
    if "cache_n" in timings:
        changed["cache_n"] = max(0, _number(timings, "cache_n") - earlier.reread)
    return timings | changed


def _ollama(event: AnswerEvent, earlier: Earlier) -> AnswerEvent:
    prefill_ns, decode_ns = round(earlier.prefill_s * NS), round(earlier.decode_s * NS)
    added = {
        "eval_count": earlier.tokens,
        "eval_duration": decode_ns,
        "prompt_eval_duration": prefill_ns,
        "total_duration": round((earlier.prefill_s + earlier.decode_s) * NS),
    }
    changed = {name: _number(event, name) + more for name, more in added.items()}
    if "prompt_eval_count" in event:
        changed["prompt_eval_count"] = max(1, _number(event, "prompt_eval_count") - earlier.reread)
    return changed


def _number(held: dict[str, Any], name: str) -> int:
    value = held.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _milliseconds(held: dict[str, Any], name: str) -> float:
    value = held.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
