"""What a client gets while it waits for its answer: events of its own protocol that hold nothing.

Many clients count only such events, not comments or empty lines, and some break at an empty line.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.answer_events import EVENT_END, AnswerEvent, ndjson, sse
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.lenient_json import PLAIN_OBJECT, fitting
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, Shape

EVENT_STREAM = b"text/event-stream"
JSON_LINES = b"application/x-ndjson"
JSON = b"application/json"

OPENING = ("response.created", "response.queued", "response.in_progress")
RESPONSE_ID = re.compile(rb'"response"\s*:\s*\{\s*"id"\s*:\s*"([^"\\]+)"')
MAX_EVENT_BYTES = 4 * 1024 * 1024  # of an event of a Responses stream: some repeat the whole answer
MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Filler:
    """What is sent while a client waits: `first` with the head, then `again` and again."""

    content_type: bytes
    first: bytes
    again: bytes


def filler_of(shape: Shape, model: str, request_id: str, *, streamed: bool) -> Filler | None:
    """Return what an answer of this shape may begin with; None if nothing may come before it."""
    if not streamed:
        return None if shape is Shape.OPAQUE else Filler(JSON, b"\n", b"\n")
    now = datetime.now(UTC)
    empty = {"role": "assistant", "content": ""}
    chunk: AnswerEvent = {"id": f"chatcmpl-{request_id}", "object": "chat.completion.chunk"}
    chunk |= {"created": int(now.timestamp()), "model": model}
    choice = {"index": 0, "finish_reason": None}
    if shape in OLLAMA_SHAPES:
        text = {"response": ""} if shape is Shape.OLLAMA_GENERATE else {"message": empty}
        date = now.isoformat().replace("+00:00", "Z")
        line = ndjson({"model": model, "created_at": date} | text | {"done": False})
        return Filler(JSON_LINES, line, line)
    if shape is Shape.RESPONSES:
        said = _response(model, request_id, int(now.timestamp()))
        created, going_on = _response_event(OPENING[0], said, 0), _response_event(OPENING[-1], said, 1)
        return Filler(EVENT_STREAM, created + going_on, going_on)
    if shape is Shape.MESSAGES:  # pings may come before `message_start`, which has the prompt's tokens
        event = b'event: ping\ndata: {"type": "ping"}\n\n'
    elif shape in (Shape.LLAMACPP_COMPLETION, Shape.INFILL):
        event = sse({"index": 0, "content": "", "tokens": [], "stop": False})
    elif shape is Shape.CHAT:
        event = sse(chunk | {"choices": [choice | {"delta": empty}]})
    elif shape is Shape.COMPLETION:
        of_completion = {"id": f"cmpl-{request_id}", "object": "text_completion"}
        event = sse(chunk | of_completion | {"choices": [choice | {"text": "", "logprobs": None}]})
    else:
        return None
    return Filler(EVENT_STREAM, event, event)


def _response(model: str, request_id: str, now_s: int) -> AnswerEvent:
    return {
        "id": _response_id(request_id),
        "object": "response",
        "created_at": now_s,
        "status": "in_progress",
        "model": model,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _response_id(request_id: str) -> str:
    return f"resp_{request_id}"


def _response_event(kind: str, response: AnswerEvent, number: int) -> bytes:
    event = {"type": kind, "sequence_number": number, "response": response}
    return b"event: %b\n%b" % (kind.encode(), sse(event))


def error_event(body: bytes, shape: Shape, refusal: Refusal, request_id: str, *, streamed: bool) -> bytes:
    if not streamed:
        return body
    if shape in OLLAMA_SHAPES:
        return body + b"\n"
    if shape is Shape.MESSAGES:
        return b"event: error\ndata: %b\n\n" % body
    if shape is Shape.RESPONSES:
        code = "server_is_overloaded" if refusal.busy else "server_error"
        failed = {"status": "failed", "error": {"code": code, "message": refusal.message}}
        return _response_event("response.failed", _response("", request_id, 0) | failed, 2)
    return b"data: %b\n\n" % body


class Joint:
    """Joins a server's answer to what its client has got. Nothing to do if it answers as announced."""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""


class ResponseJoined(Joint):
    """Makes one response of a Responses stream and the opening that its client has got: leaves out the
    server's opening events, and writes our id for the server's in the others. Clients compare the ids.
    """

    def __init__(self, request_id: str) -> None:
        self._ours = _response_id(request_id).encode()
        self._theirs = b""
        self._held = bytearray()
        self._is_opening = True

    def feed(self, data: bytes) -> bytes:
        self._held += data
        out = bytearray()
        while (mark := EVENT_END.search(self._held)) is not None:
            event = bytes(self._held[: mark.end()])
            del self._held[: mark.end()]
            self._is_opening = self._is_opening and any(b'"%b"' % each.encode() in event for each in OPENING)
            if self._is_opening:
                found = RESPONSE_ID.search(event)
                self._theirs = self._theirs or (found[1] if found else b"")
            else:
                out += event.replace(self._theirs, self._ours) if self._theirs else event
        return bytes(out) if len(self._held) <= MAX_EVENT_BYTES else bytes(out) + self.end()

    def end(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held


class ErrorInstead(Joint):
    """Makes one event of an answer that is an error: its status can no longer be told."""

    def __init__(self, status: int, written: Callable[[bytes, Refusal], bytes]) -> None:
        self._status = status
        self._written = written
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        self._held += data[: MAX_ERROR_BYTES - len(self._held)]
        return b""

    def end(self) -> bytes:
        body, message = b"", bytes(self._held).decode("utf-8", "replace").strip()[:500]
        told = fitting(PLAIN_OBJECT, self._held)
        if told is not None and told.get("error"):
            body, error = msgspec.json.encode(told), told["error"]
            message = str(error.get("message") if isinstance(error, dict) else error)
        return self._written(body, Refusal(self._status, message or f"the server answered {self._status}"))


def joint_of(
    shape: Shape,
    head: ResponseHead,
    request_id: str,
    written: Callable[[bytes, Refusal], bytes],
    *,
    streamed: bool,
) -> Joint:
    """Return what joins an answer to a filler. `written` makes an error's last event of its JSON body."""
    kind = (head.get(b"content-type") or b"").lower()
    announced = JSON if not streamed else JSON_LINES if shape in OLLAMA_SHAPES else EVENT_STREAM
    as_announced = kind.startswith(announced) and head.get(b"content-encoding") in (None, b"identity")
    if head.status != 200 or not as_announced:
        return ErrorInstead(head.status, written)
    return ResponseJoined(request_id) if streamed and shape is Shape.RESPONSES else Joint()
