"""The events of streamed answers, route by route: how they are parsed and written, and how totals add up.

An event is a JSON object: the `data:` of a server-sent event, or a line of NDJSON.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.usage import Totals

AnswerEvent = dict[str, Any]
EVENT_END = re.compile(rb"\r?\n\r?\n")  # of a server-sent event


@dataclass(frozen=True, slots=True)
class Said:
    """What an event brings: text, the finish reason, totals, or the end of the stream.

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

ENDS = ("stop", "length")
"""Why an answer that is text alone ends. Ollama's `load` and `unload` are no answers."""


@dataclass(frozen=True, slots=True)
class Events:
    """How the events of a route are parsed and written; `sse` or NDJSON.

    `read` parses an event, and `written` returns one like `event` with another text.
    """

    sse: bool
    read: Callable[[AnswerEvent], Said]
    written: Callable[[AnswerEvent, str], AnswerEvent]


def _read_ollama_chat(event: AnswerEvent) -> Said:
    message = event.get("message")
    if not isinstance(message, dict) or any(message[name] for name in message.keys() - {"role", "content"}):
        return STRANGE
    return _ollama_said(event, message.get("content"))


def _read_ollama_generate(event: AnswerEvent) -> Said:
    if "thinking" in event or "context" in event:
        return STRANGE
    return _ollama_said(event, event.get("response"))


def _ollama_said(event: AnswerEvent, text: Any) -> Said:
    if not isinstance(text, str) or "error" in event or "logprobs" in event:
        return STRANGE
    if event.get("done") is not True:
        return Said(text)
    reason = event.get("done_reason") or "stop"
    return Said(text, reason, totals=True) if reason in ENDS else STRANGE


def _with_message(event: AnswerEvent, text: str) -> AnswerEvent:
    return event | {"message": event["message"] | {"content": text}}


def _read_chat(event: AnswerEvent) -> Said:
    choice = _choice(event)
    if choice is None:
        return STRANGE
    if not choice:
        return Said(totals="usage" in event)
    delta = choice.get("delta")
    if not isinstance(delta, dict) or any(delta[name] for name in delta.keys() - {"role", "content"}):
        return STRANGE  # thinking, a tool's call, a refusal
    return _openai_said(event, choice, delta.get("content"))


def _read_completion(event: AnswerEvent) -> Said:
    choice = _choice(event)
    if choice is None:
        return STRANGE
    return _openai_said(event, choice, choice.get("text")) if choice else Said(totals="usage" in event)


def _choice(event: AnswerEvent) -> AnswerEvent | None:
    """Return an event's one choice, nothing if it has none, None if it is no plain event."""
    choices = event.get("choices")
    if "error" in event or not isinstance(choices, list) or len(choices) > 1:
        return None
    if not choices:
        return {}
    choice = choices[0]
    if not isinstance(choice, dict) or choice.get("index") != 0 or choice.get("logprobs") is not None:
        return None
    return choice


def _openai_said(event: AnswerEvent, choice: AnswerEvent, text: Any) -> Said:
    if text is not None and not isinstance(text, str):
        return STRANGE
    reason = choice.get("finish_reason")
    if reason not in (None, *ENDS):
        return STRANGE
    return Said(text or "", reason, totals="timings" in event)


def _with_delta(event: AnswerEvent, text: str) -> AnswerEvent:
    choice = event["choices"][0]
    return event | {"choices": [choice | {"delta": choice["delta"] | {"content": text}}]}


def without_role(event: AnswerEvent) -> AnswerEvent:
    """Return an event of a chat without the role that its first one has."""
    choices = event.get("choices")
    if not choices or "role" not in choices[0].get("delta", ()):
        return event
    delta = {name: value for name, value in choices[0]["delta"].items() if name != "role"}
    return event | {"choices": [choices[0] | {"delta": delta}]}


def _with_text(event: AnswerEvent, text: str) -> AnswerEvent:
    return event | {"choices": [event["choices"][0] | {"text": text}]}


EVENTS: dict[Shape, Events] = {
    Shape.OLLAMA_CHAT: Events(False, _read_ollama_chat, _with_message),
    Shape.OLLAMA_GENERATE: Events(
        False, _read_ollama_generate, lambda event, text: event | {"response": text}
    ),
    Shape.CHAT: Events(True, _read_chat, _with_delta),
    Shape.COMPLETION: Events(True, _read_completion, _with_text),
}


def unstreamed(shape: Shape, ended: AnswerEvent, totals: AnswerEvent, text: str) -> AnswerEvent:
    """Return the unstreamed answer, made of the events that end a stream and have its totals."""
    counts = {name: totals[name] for name in ("usage", "timings") if name in totals}
    whole = EVENTS[shape].written(ended, text) | counts
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
    if _counts(event.get("usage")):
        changed["usage"] = _usage(event["usage"], earlier)
    if isinstance(event.get("timings"), dict):
        changed["timings"] = _timings(event["timings"], earlier)
    if event.get("done") is True:
        changed |= _ollama(event, earlier)
    return event | changed if changed else event


def summed_totals(last: Totals, earlier: Earlier) -> Totals:
    """Return the totals of the whole answer; its prefill speed is unknown."""
    if not earlier.tokens:
        return last
    return replace(
        last,
        tokens=None if last.tokens is None else last.tokens + earlier.tokens,
        prompt_tokens=None if last.prompt_tokens is None else max(1, last.prompt_tokens - earlier.reread),
        decode_s=None if last.decode_s is None else last.decode_s + earlier.decode_s,
        prefill_s=None,
        prefilled_tokens=None,
    )


def openai_usage(event: AnswerEvent, earlier: Earlier) -> AnswerEvent:
    prompt, completion = _number(event, "prompt_eval_count"), _number(event, "eval_count")
    told = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": 0}
    return _usage(told, earlier)


def _usage(usage: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
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


def _counts(usage: Any) -> bool:
    """Whether it is a count: Ollama's completions have one of zeros in every event."""
    told = ("prompt_tokens", "completion_tokens")
    return isinstance(usage, dict) and any(_number(usage, name) > 0 for name in told)


def _timings(timings: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
    """Return llama.cpp's times; `prompt_n` stays what was evaluated in the end, most of it being cached."""
    tokens = _number(timings, "predicted_n") + earlier.tokens
    decode_ms = _seconds(timings, "predicted_ms") + earlier.decode_s * MS
    prompt_n = max(1, _number(timings, "prompt_n"))
    prompt_ms = _seconds(timings, "prompt_ms") + earlier.prefill_s * MS
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
    changed = {
        "eval_count": _number(event, "eval_count") + earlier.tokens,
        "eval_duration": _number(event, "eval_duration") + round(earlier.decode_s * NS),
        "prompt_eval_duration": _number(event, "prompt_eval_duration") + round(earlier.prefill_s * NS),
        "total_duration": _number(event, "total_duration")
        + round((earlier.prefill_s + earlier.decode_s) * NS),
    }
    if "prompt_eval_count" in event:
        changed["prompt_eval_count"] = max(1, _number(event, "prompt_eval_count") - earlier.reread)
    return changed


def _number(held: dict[str, Any], name: str) -> int:
    value = held.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _seconds(held: dict[str, Any], name: str) -> float:
    value = held.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
