"""What every dialect agrees on: the question asked of the engine, the words back, and their shapes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec

Json = dict[str, Any]


class RefusedError(Exception):
    """The request is not one this server answers; `status` is the HTTP status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Ask:
    """A generation request, read. `prompt` is the last user message, `text_chars` counts all of the text.

    `cap` is the client's limit on the answer in tokens, None where there is none. `said` is how the answer to
    go on with begins, not counted in `text_chars`; of a `plain` prompt, one without turns, it may be the end.
    A `raw` answer has no context.
    """

    model: str
    prompt: str
    text_chars: int
    cap: int | None
    stream: bool
    wants_usage: bool = False
    said: str = ""
    plain: bool = False
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a dialect needs to know of an answer to frame it. Durations are the speed model's, in seconds."""

    id: str
    model: str
    created: datetime
    prompt_tokens: int
    tokens: int
    capped: bool
    prefill_s: float
    decode_s: float
    wants_usage: bool = False
    raw: bool = False


class Dialect(Protocol):
    """One generation route's way of saying things. Frames are complete, ready to send."""

    @property
    def stream_media_type(self) -> str:
        """The media type of a streamed answer."""
        ...

    def read(self, body: Json) -> Ask:
        """Read a request; RefusedError if it cannot be answered."""
        ...

    def opening(self, answer: Answer) -> Iterator[bytes]:
        """Yield the frames before the first token."""
        ...

    def token(self, answer: Answer, word: str) -> bytes:
        """Return the frame of one token."""
        ...

    def closing(self, answer: Answer, text: str) -> Iterator[bytes]:
        """Yield the frames after the last token."""
        ...

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the body of an answer that is not streamed."""
        ...


def encode(value: object) -> bytes:
    """Return compact JSON, as the servers written in Go and C++ send it."""
    return msgspec.json.encode(value)


def sse(value: object, event: str | None = None) -> bytes:
    """Return one server-sent event."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + encode(value) + b"\n\n"


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, or a list of parts some of which hold text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def last_user_text(messages: object) -> tuple[str, int]:
    """Return the last user message and the characters of all messages together."""
    if not isinstance(messages, list):
        raise RefusedError(400, "messages must be a list")
    last, chars = "", 0
    for message in messages:
        if not isinstance(message, Mapping):
            raise RefusedError(400, "every message must be an object")
        text = text_of(message.get("content"))
        chars += len(text)
        if message.get("role", "user") == "user":
            last = text
    return last, chars


def turns_of(messages: object) -> tuple[str, int, str]:
    """Return the last user message, the characters of all messages, and what a last one of the assistant's
    has said already, which is not counted.
    """
    last, chars = last_user_text(messages)
    said = ""
    if isinstance(messages, list) and messages and messages[-1].get("role") == "assistant":
        said = text_of(messages[-1].get("content"))
    return last, chars - len(said), said


def model_of(body: Json) -> str:
    """Return the model a request names; RefusedError 400 if it names none."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RefusedError(400, "model is required")
    return model


def cap_of(*limits: object) -> int | None:
    """Return the first limit given; a negative one means no limit, as in Ollama and llama.cpp."""
    for limit in limits:
        if isinstance(limit, int) and not isinstance(limit, bool):
            return limit if limit >= 0 else None
    return None
