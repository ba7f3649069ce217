"""The events of streamed answers, route by route: how they are parsed and written.

An event is a JSON object: the `data:` of a server-sent event, or a line of NDJSON.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from clairvoyant_cli.protocols.routes import Shape

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
        choice = {name: value for name, value in whole["choices"][0].items() if name != "delta"}
        choice["message"] = {"role": "assistant", "content": text}
        whole |= {"choices": [choice], "object": "chat.completion"}
    return whole


def sse(event: AnswerEvent) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(event)


def ndjson(event: AnswerEvent) -> bytes:
    return msgspec.json.encode(event) + b"\n"
