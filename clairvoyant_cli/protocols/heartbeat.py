"""What a client gets while it waits for its answer: events of its own protocol that hold nothing.

Many clients count only such events, not comments or empty lines, and some break at an empty line.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols.answer_events import AnswerEvent, ending_of, events_in, ndjson, sse
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    PLAIN_OBJECT,
    entries,
    fitting,
    is_given,
    object_in,
    object_of,
)
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, Shape

EVENT_STREAM = b"text/event-stream"
JSON_LINES = b"application/x-ndjson"
JSON = b"application/json"

OPENING = ("response.created", "response.queued", "response.in_progress")
OPENED = (OPENING[0], OPENING[-1])  # what a waiting client gets of them, numbered 0 and 1
EVENT_DATA = re.compile(rb"^data: ?([^\r\n]*)", re.MULTILINE)
DONE = b"data: [DONE]\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
CODINGS = (b"gzip", b"x-gzip", b"deflate")
GZIP, ZLIB = b"\x1f\x8b", 8  # how their data begin: with these bytes, or with this in four bits
TELLING_BYTES = 8  # from so many, compressed data do not look like text
PLAIN = re.compile(rb"[\t\r\n -~]*")
MAX_EVENT_BYTES = 4 * 1024 * 1024  # of an event of a Responses stream: some repeat the whole answer
MAX_ERROR_BYTES = 64 * 1024
MAX_WHOLE_BYTES = 64 * 1024 * 1024  # of an answer that comes whole where a stream was asked for


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
    chunk: AnswerEvent = {"id": _chunk_id(shape, request_id), "object": "chat.completion.chunk"}
    chunk |= {"created": int(now.timestamp()), "model": model}
    choice = {"index": 0, "finish_reason": None}
    if shape in OLLAMA_SHAPES:
        message = {"role": "assistant", "content": ""}
        text = {"response": ""} if shape is Shape.OLLAMA_GENERATE else {"message": message}
        date = now.isoformat().replace("+00:00", "Z")
        line = ndjson({"model": model, "created_at": date} | text | {"done": False})
        return Filler(JSON_LINES, line, line)
    if shape is Shape.RESPONSES:
        said = _response(model, request_id, int(now.timestamp()))
        created, going_on = (_response_event(kind, said, i) for i, kind in enumerate(OPENED))
        return Filler(EVENT_STREAM, created + going_on, going_on)
    if shape is Shape.MESSAGES:  # pings may come before `message_start`, which has the prompt's tokens
        event = PING
    elif shape in (Shape.LLAMACPP_COMPLETION, Shape.INFILL):
        event = sse({"index": 0, "content": "", "tokens": [], "stop": False})
    elif shape is Shape.CHAT:
        # Without the role, which the server's first event has: SDKs join the texts of all deltas.
        event = sse(chunk | {"choices": [choice | {"delta": {"content": ""}}]})
    elif shape is Shape.COMPLETION:
        of_completion = {"object": "text_completion"}
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


def _chunk_id(shape: Shape, request_id: str) -> str:
    return f"{'chatcmpl' if shape is Shape.CHAT else 'cmpl'}-{request_id}"


def _response_id(request_id: str) -> str:
    return f"resp_{request_id}"


def _response_event(kind: str, response: AnswerEvent, number: int) -> bytes:
    event = {"type": kind, "sequence_number": number, "response": response}
    return b"event: %b\n%b" % (kind.encode(), sse(event))


def blank_after(shape: Shape, passed: bytes) -> bytes:
    """Return an event like the last of what has passed of a stream, without text; b"" if the stream is not
    between two events of its answer, or if nothing may come there.
    """
    line = passed.rstrip().rpartition(b"\n")[2]
    if shape not in OLLAMA_SHAPES and not (passed.endswith((b"\n\n", b"\r\n\r\n")) and line[:5] == b"data:"):
        return b""
    line = line.removeprefix(b"data:") if passed.endswith(b"\n") else b""
    last = object_of(line)
    if last is None or ending_of(last) is not None:
        return b""
    if shape is Shape.MESSAGES:
        return PING
    if shape in OLLAMA_SHAPES:
        text = {"message": {"role": "assistant", "content": ""}} if "message" in last else {"response": ""}
        return ndjson({name: last[name] for name in ("model", "created_at")} | text | {"done": False})
    choice = object_in(next(iter(entries(last["choices"]) or ()), ABSENT))
    if shape not in (Shape.CHAT, Shape.COMPLETION) or not choice or is_given(choice["finish_reason"]):
        return b""
    # An empty text would make one of a content that is null beside a tool's call.
    nothing: AnswerEvent = {"delta": {}} if shape is Shape.CHAT else {"text": "", "logprobs": None}
    empty = {"index": choice.get("index", 0)} | nothing | {"finish_reason": None}
    named = ("id", "object", "created", "model", "system_fingerprint")
    return sse({name: last[name] for name in named if name in last} | {"choices": [empty]})


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
        return _response_event("response.failed", _response("", request_id, 0) | failed, len(OPENED))
    return b"data: %b\n\n" % body


class Joint:
    """Joins a server's answer to what its client has got. Nothing to do if it answers as announced.

    `breaks_off`: the answer is an error that only a message without its end can tell.
    """

    breaks_off = False

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""


class EventsJoined(Joint):
    """Changes the events of a stream one by one."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        out = b"".join(map(self._joined, events_in(self._held, data)))
        return out if len(self._held) <= MAX_EVENT_BYTES else out + self.end()

    def _joined(self, event: bytes) -> bytes:
        raise NotImplementedError

    def end(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held


class ChunksJoined(EventsJoined):
    """Writes the id that its client has got in place of the server's, in all chunks of a stream."""

    def __init__(self, ours: str) -> None:
        super().__init__()
        self._ours = rb'\1"%b"' % ours.encode()

    def _joined(self, event: bytes) -> bytes:
        chunk = fitting(PLAIN_OBJECT, b"\n".join(each[1] for each in EVENT_DATA.finditer(event)))
        if chunk is None or not isinstance(chunk.get("id"), str):
            return event
        theirs = re.escape(msgspec.json.encode(chunk["id"]))
        return re.sub(rb'("id"\s*:\s*)%b' % theirs, self._ours, event)


class ResponseJoined(EventsJoined):
    """Makes one response of a Responses stream and the opening that its client has got: leaves out the
    server's opening events, and in the others writes our id for the server's and goes on with the numbers.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__()
        self._ours = _response_id(request_id)
        self._theirs: Any = None
        self._ahead: int | None = None  # how much higher our sequence numbers are

    def _joined(self, event: bytes) -> bytes:
        found = list(EVENT_DATA.finditer(event))
        said = fitting(PLAIN_OBJECT, b"\n".join(line[1] for line in found))
        if said is None or not isinstance(said.get("type"), str):
            return event  # a comment, or the end
        response = said.get("response")
        if self._theirs is None and isinstance(response, dict):
            self._theirs = response.get("id")
        if self._ahead is None and said["type"] in OPENING:
            return b""
        number = said.get("sequence_number")
        if isinstance(number, int):
            if self._ahead is None:
                self._ahead = max(0, len(OPENED) - number)
            said["sequence_number"] = number + self._ahead
        self._ahead = self._ahead or 0
        if isinstance(response, dict) and response.get("id") == self._theirs:
            said["response"] = response | {"id": self._ours}
        if "response_id" in said and said["response_id"] == self._theirs:
            said["response_id"] = self._ours
        return event[: found[0].start(1)] + msgspec.json.encode(said) + event[found[-1].end(1) :]


class EventsOfWhole(Joint):
    """Makes events of an answer that comes whole although its client has got the beginning of a stream."""

    def __init__(self, shape: Shape, events: Joint, written: Callable[[bytes, Refusal], bytes]) -> None:
        self._shape = shape
        self._events = events
        self._written = written
        self._held: bytearray | None = bytearray()  # None: it is a stream

    def feed(self, data: bytes) -> bytes:
        if self._held is None:
            return self._events.feed(data)
        self._held += data
        begun = self._held.lstrip()
        if not begun or (begun.startswith(b"{") and len(begun) <= MAX_WHOLE_BYTES):
            return b""
        held, self._held = bytes(self._held), None
        return self._events.feed(held)

    def end(self) -> bytes:
        whole = fitting(PLAIN_OBJECT, self._held) if self._held else None
        if whole is None:
            return self._events.feed(bytes(self._held or b"")) + self._events.end()
        if whole.get("error"):
            return self._written(bytes(self._held or b""), Refusal(500, "the server answered with an error"))
        return self._events.feed(events_of_whole(whole, self._shape)) + self._events.end()


def events_of_whole(whole: AnswerEvent, shape: Shape) -> bytes:
    """Return a whole answer as the events of a stream of its route."""
    if shape is Shape.RESPONSES:
        event = {"type": "response.completed", "sequence_number": len(OPENED), "response": whole}
        return b"event: response.completed\n" + sse(event)
    if shape is Shape.MESSAGES:
        return b"".join(
            b"event: %b\n%b" % (event["type"].encode(), sse(event)) for event in _of_message(whole)
        )
    if shape is not Shape.CHAT:
        return sse(whole) + (DONE if shape is Shape.COMPLETION else b"")
    choices = [
        {"delta": choice.get("message")} | {name: choice[name] for name in choice if name != "message"}
        for choice in whole.get("choices") or ()
        if isinstance(choice, dict)
    ]
    return sse(whole | {"object": "chat.completion.chunk", "choices": choices}) + DONE


def _of_message(whole: AnswerEvent) -> Iterator[AnswerEvent]:
    """Yield the events of a message of Anthropic's API."""
    yield {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}
    for index, block in enumerate(whole.get("content") or ()):
        name = "text" if "text" in block else "thinking" if "thinking" in block else "input"
        brought = block.get(name)
        delta = {"type": f"{name}_delta", name: brought}
        if name == "input":
            delta = {"type": "input_json_delta", "partial_json": msgspec.json.encode(brought).decode()}
        empty = {} if name == "input" else ""
        yield {"type": "content_block_start", "index": index, "content_block": block | {name: empty}}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {name: whole.get(name) for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ended, "usage": whole.get("usage") or {}}
    yield {"type": "message_stop"}


class Decoded(Joint):
    """Decodes an answer that a server compressed although it was asked not to. One that is only labelled so
    passes as it is.
    """

    def __init__(self, joint: Joint) -> None:
        self._joint = joint
        self._first: bytes | None = b""  # what has come, until it is enough to tell the coding
        self._decoder: zlib._Decompress | None = None

    def feed(self, data: bytes) -> bytes:
        if self._first is not None:
            self._first += data
            return self._begin() if len(self._first) >= TELLING_BYTES else b""
        return self._joint.feed(self._decoded(data))

    def _begin(self) -> bytes:
        data, self._first = self._first or b"", None
        has_head = data[:2] == GZIP or (data[0] & 15 == ZLIB and int.from_bytes(data[:2]) % 31 == 0)
        if has_head or not PLAIN.fullmatch(data[:TELLING_BYTES]):
            # Without a head it is what some servers call deflate.
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32 if has_head else -zlib.MAX_WBITS)
        return self._joint.feed(self._decoded(data))

    def _decoded(self, data: bytes) -> bytes:
        try:
            return data if self._decoder is None else self._decoder.decompress(data)
        except zlib.error:
            self._decoder = None
            return data

    def end(self) -> bytes:
        begun = self._begin() if self._first else b""
        rest = b"" if self._decoder is None else self._decoder.flush()
        last = begun + self._joint.feed(rest) + self._joint.end()
        self.breaks_off = self._joint.breaks_off
        return last


class ErrorInstead(Joint):
    """Makes one event of an answer that is an error: its status can no longer be told. Without a stream the
    message breaks off behind it: SDKs take an error with status 200 for an answer.
    """

    def __init__(
        self, status: int, shape: Shape, written: Callable[[bytes, Refusal], bytes], *, streamed: bool
    ) -> None:
        self._status = status
        self.breaks_off = not streamed
        self._shape = shape
        self._written = written
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes:
        self._held += data[: MAX_ERROR_BYTES - len(self._held)]
        return b""

    def end(self) -> bytes:
        body, message = b"", bytes(self._held).decode("utf-8", "replace").strip()[:500]
        error_answer = fitting(PLAIN_OBJECT, self._held)
        if error_answer is not None and error_answer.get("error"):
            error = error_answer["error"]
            is_read = True  # by clients of this protocol
            if self._shape is Shape.MESSAGES:
                is_read = error_answer.get("type") == "error"
            elif self._shape in OLLAMA_SHAPES:
                is_read = isinstance(error, str)
            if is_read:
                body = msgspec.json.encode(error_answer)
            message = str(error.get("message") if isinstance(error, dict) else error)
        return self._written(body, Refusal(self._status, message or f"the server answered {self._status}"))


class PageOrAnswer(Joint):
    """Passes an answer on, unless it is a page, of a login perhaps: `page` makes that an error."""

    def __init__(self, answer: Joint, page: Joint) -> None:
        self._joint = answer
        self._page: Joint | None = page

    def feed(self, data: bytes) -> bytes:
        if self._page is not None and (begun := data.lstrip()):
            self._joint, self._page = self._page if begun.startswith(b"<") else self._joint, None
        return self._joint.feed(data)

    def end(self) -> bytes:
        self.breaks_off = self._joint.breaks_off
        return self._joint.end()


def joint_of(
    shape: Shape,
    head: ResponseHead,
    request_id: str,
    written: Callable[[bytes, Refusal], bytes],
    *,
    streamed: bool,
) -> Joint:
    """Return what joins an answer to a filler, whatever its label. `written` makes an error's last event of
    its JSON body.
    """
    joint: Joint = ErrorInstead(head.status, shape, written, streamed=streamed)
    coding = (head.get(b"content-encoding") or b"identity").lower()
    if 200 <= head.status < 300 and head.status != 204 and coding in (b"identity", *CODINGS):
        answer = Joint()
        if streamed and shape in (Shape.CHAT, Shape.COMPLETION):
            answer = ChunksJoined(_chunk_id(shape, request_id))
        elif streamed and shape is Shape.RESPONSES:
            answer = ResponseJoined(request_id)
        if streamed and shape not in OLLAMA_SHAPES:
            answer = EventsOfWhole(shape, answer, written)
        joint = PageOrAnswer(answer, joint)
    return Decoded(joint) if coding in CODINGS else joint
