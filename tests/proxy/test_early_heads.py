"""What a server may answer reaches a client that has got an early head as it reaches one that has not."""

import asyncio
import gzip
import json
import random
import zlib
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest

from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.heartbeat import ErrorInstead
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.requests import heartbeat
from tests.fakes.raw_http import Message, post, raw_client
from tests.fakes.scripted_upstream import Conversation, scripted
from tests.fakes.serving import serving

Event = dict[str, Any]

SAID = "river resp_1"
SAMPLED = 60  # cases of a route; all of them take minutes
AT_ONCE = 12

ASK = [{"role": "user", "content": "short"}]
RESPONSE: Event = {
    "id": "resp_1",
    "object": "response",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": SAID}]}],
}
MESSAGE: Event = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "stop_reason": "end_turn",
    "usage": {"output_tokens": 1},
}
BLOCK = {"type": "text", "text": SAID}


class Spoken(NamedTuple):
    """How a route is asked, and what a server answers: whole, and as the events of a stream."""

    asked: Event
    whole: Event
    events: list[Event] = []  # noqa: RUF012 - never changed; none: the answer is never streamed


def choice(**content: Any) -> Event:
    return {"id": "c", "choices": [{"index": 0} | content]}


SPOKEN = {
    "/v1/chat/completions": Spoken(
        {"messages": ASK},
        choice(message={"role": "assistant", "content": SAID}),
        [choice(delta={"content": "river"}), choice(delta={"content": " resp_1"})],
    ),
    "/v1/completions": Spoken({"prompt": "short"}, choice(text=SAID), [choice(text=SAID)]),
    "/v1/responses": Spoken(
        {"input": "short", "store": False},
        RESPONSE,
        [
            {"type": "response.created", "sequence_number": 0, "response": RESPONSE | {"output": []}},
            {"type": "response.output_text.delta", "sequence_number": 1, "delta": SAID},
            {"type": "response.completed", "sequence_number": 2, "response": RESPONSE},
        ],
    ),
    "/v1/messages": Spoken(
        {"messages": ASK, "max_tokens": 5},
        MESSAGE | {"content": [BLOCK]},
        [
            {"type": "message_start", "message": MESSAGE | {"content": []}},
            {"type": "content_block_start", "index": 0, "content_block": BLOCK | {"text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": SAID}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ],
    ),
    "/api/chat": Spoken(
        {"messages": ASK},
        {"message": {"role": "assistant", "content": SAID}, "done": True},
        [{"message": {"content": "river"}, "done": False}, {"message": {"content": " resp_1"}, "done": True}],
    ),
    "/api/generate": Spoken(
        {"prompt": "short"}, {"response": SAID, "done": True}, [{"response": SAID, "done": True}]
    ),
    "/completion": Spoken(
        {"prompt": "short"}, {"content": SAID, "stop": True}, [{"content": SAID, "stop": True}]
    ),
    "/infill": Spoken(
        {"input_prefix": "short", "input_suffix": ""},
        {"content": SAID, "stop": True},
        [{"content": SAID, "stop": True}],
    ),
    "/v1/embeddings": Spoken({"input": "short"}, {"data": [{"index": 0, "embedding": [0.5]}]}),
    "/api/embed": Spoken({"input": "short"}, {"embeddings": [[0.5]]}),
    "/rerank": Spoken({"query": "short", "documents": ["a"]}, {"results": [{"index": 0}]}),
    "/api/v1/chat": Spoken({"input": "short", "store": False}, {"output": [BLOCK]}),
}
BY_LINES = ("/api/chat", "/api/generate")
ROUTES = [(path, stream) for path in SPOKEN for stream in (False, True) if SPOKEN[path].events or not stream]


class Case(NamedTuple):
    """An answer of a server. `body` names one of `written`."""

    body: str
    status: int
    label: str
    coding: str
    length: str
    early: bool


ANSWERS = [*product(("whole", "stream", "several lines", "page"), (200, 201)), ("empty", 204)]
ERRORS = [*product(("error", "page", "empty"), (400, 404, 429, 500, 503))]
LABELS = (
    "",
    "application/json",
    "application/json; charset=utf-8",
    "text/event-stream",
    "application/x-ndjson",
    "application/octet-stream",
    "text/html; charset=utf-8",
)
CODED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": lambda body: gzip.compress(body, mtime=0),
    "deflate": zlib.compress,
    "Deflate": lambda body: zlib.compress(body)[2:-4],  # as some servers understand it
}
LENGTHS = ("length", "chunks", "close")
CASES = [
    Case(body, status, label, coding, length, early)
    for (body, status), label, coding, length, early in product(
        [*ANSWERS, *ERRORS], LABELS, CODED, LENGTHS, (True, False)
    )
]


def written(path: str, body: str) -> bytes:
    """Return an answer of a route in one of its layouts."""
    whole, events = SPOKEN[path].whole, SPOKEN[path].events or [SPOKEN[path].whole]
    if body == "error":
        told: Any = "no such model" if path in BY_LINES else {"message": "no such model"}
        return json.dumps({"type": "error", "error": told}).encode()
    if body == "page":
        return b"<html>no such model</html>"
    if body == "empty":
        return b""
    if body == "whole":
        return json.dumps(whole).encode()
    if path in BY_LINES:
        return b"".join(json.dumps(each).encode() + b"\n" for each in events)
    text = b": hello\n\n"
    for each in events:
        lines = json.dumps(each, indent=1 if body == "several lines" else None).splitlines()
        text += b"".join(b"data: %b\n" % line.encode() for line in lines) + b"\n"
    return text


def on_wire(case: Case, body: bytes) -> bytes:
    body = CODED[case.coding](body)
    head = f"HTTP/1.1 {case.status} Fine\r\n"
    head += f"Content-Type: {case.label}\r\n" if case.label else ""
    head += f"Content-Encoding: {case.coding.lower()}\r\n" if case.coding else ""
    if case.status == 204:
        return f"{head}\r\n".encode()
    if case.length == "length":
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    if case.length == "close":
        return f"{head}Connection: close\r\n\r\n".encode() + body
    middle = len(body) // 2
    chunks = [b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:middle], body[middle:]) if each]
    return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"".join([*chunks, b"0\r\n\r\n"])


def events_of(body: bytes) -> list[Event]:
    """Return the objects of a whole answer, of a stream of events, or of lines; none of anything else."""
    try:
        return [json.loads(body)]
    except ValueError:
        pass
    found = []
    for block in body.split(b"\n\n"):
        lines = block.splitlines()
        data = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
        texts = [b"\n".join(data)] if data else [each for each in lines if each[:1] not in (b":", b"e")]
        try:
            found += [json.loads(text) for text in texts if text and text != b"[DONE]"]
        except ValueError:
            return []
    return found


def text_of(path: str, event: Event) -> str:
    """Return the text that an event, or a whole answer, brings."""
    if path == "/v1/responses":
        output = (event.get("response") or event).get("output", [])
        return "".join(part["text"] for item in output for part in item["content"])
    if path == "/v1/messages":
        blocks = event.get("content", [event.get("delta", {})])
        return "".join(block.get("text", "") for block in blocks)
    if "choices" in event:
        (one,) = event["choices"]
        return str(one.get("text") or (one.get("message") or one.get("delta") or {}).get("content") or "")
    if "message" in event:
        return str(event["message"]["content"])
    if path in ("/v1/embeddings", "/api/embed", "/rerank", "/api/v1/chat"):
        return json.dumps(event)
    return str(event.get("response", event.get("content", "")))


def meaning(path: str, status: int, body: bytes) -> tuple[str, str]:
    """Return what a client makes of an answer: its text, or the words of its error."""
    said = events_of(body.strip())
    for event in said:
        error = event.get("error") or (event.get("response") or {} if path == "/v1/responses" else {}).get(
            "error"
        )
        if error:
            return "error", error if isinstance(error, str) else error["message"]
    if not 200 <= status < 300 or (body.strip() and not said):
        return "error", body.decode().strip()
    return "text", "".join(text_of(path, event) for event in said)


@pytest.mark.parametrize(("path", "stream"), ROUTES)
async def test_every_answer_means_the_same_behind_an_early_head(
    path: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layout, status, label, coding and length."""
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.02)
    begun = {number: asyncio.Event() for number in range(len(CASES))}

    async def serve(talk: Conversation) -> None:
        while True:
            request = await talk.request()
            number = int(request.value("x-case") or b"")
            assert not CASES[number].early or request.value("accept-encoding") == b"identity"
            await begun[number].wait()
            talk.send(on_wire(CASES[number], written(path, CASES[number].body)))
            if CASES[number].length == "close" and CASES[number].status != 204:
                return

    async def ask(number: int, daemon: Daemon) -> Message:
        asked = json.dumps({"model": "m", "stream": stream} | SPOKEN[path].asked).encode()
        async with raw_client(daemon.base_url) as client:
            client.send(post(path, asked, f"X-Case: {number}", "Accept-Encoding: gzip"))
            if CASES[number].early:
                async with asyncio.timeout(30):
                    while not client.reader._buffer:  # type: ignore[attr-defined]
                        await client.reader._wait_for_data("early")  # type: ignore[attr-defined]
            begun[number].set()
            return await client.response(b"POST")

    async with (
        scripted(serve) as up,
        serving(up.base_url, keep_alive="0.01", slots=AT_ONCE) as early,
        serving(up.base_url, keep_alive="off", slots=AT_ONCE) as late,
    ):
        room = asyncio.Semaphore(AT_ONCE)

        async def check(number: int) -> None:
            case, sent = CASES[number], written(path, CASES[number].body)
            async with room:
                got = await ask(number, early if case.early else late)
            if not case.early:
                assert got.whole, case
                body = CODED[case.coding](sent) if case.status != 204 else b""
                assert (got.status, got.body) == (case.status, body), case
                return
            assert got.status == 200
            kind, words = meaning(path, 200, got.body)
            assert got.whole is (stream or kind == "text"), "an error that is not streamed breaks off"
            if case.status == 204:
                assert (kind, "204" in words) == ("error", True), (case, got)
                return
            wanted, text = meaning(path, case.status, sent)
            same = words == text if kind == "text" else text in words
            assert kind == wanted, (case, got)
            assert same, (case, got)
            assert kind == "text" or events_of(got.body.strip()), (case, got)
            if path == "/v1/responses" and stream and kind == "text":
                _is_one_response(events_of(got.body))

        numbers = random.Random(path).sample(range(len(CASES)), SAMPLED)
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(check(number))
        asked = [CASES[number] for number in numbers if CASES[number].early]
        counted = early.snapshot().counters
        assert counted.submitted == len(asked), "nothing is sent twice"
        assert counted.completed == sum(case.status < 300 for case in asked)


def _is_one_response(events: list[Event]) -> None:
    assert [each["type"] for each in events].count("response.created") == 1
    assert len({each["response"]["id"] for each in events if "response" in each}) == 1
    numbers = [each["sequence_number"] for each in events]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": "model not found"}', b'{"error":"model not found"}'),
        (b'{"error": {"message": "bad request", "code": 7}}', b"400 bad request"),
    ],
)
def test_an_error_that_ollamas_clients_cannot_read_is_told_in_their_form(body: bytes, told: bytes) -> None:
    def written(body: bytes, refusal: Refusal) -> bytes:
        return body or f"{refusal.status} {refusal.message}".encode()

    joint = ErrorInstead(400, Shape.OLLAMA_CHAT, written, streamed=True)
    joint.feed(body)
    assert joint.end() == told
