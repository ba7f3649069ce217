"""Answers that repeat themselves, and sessions that ask the same again and again."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.protocols.repetition import ends_in_repetition
from clairvoyant_cli.proxy.daemon import Daemon
from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import serving

LOOP = "I will now read the file again. "


def sse(event: dict[str, Any], name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(event)}\n\n".encode()


def chat(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return sse({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


def messages(text: str) -> bytes:
    delta = {"type": "text_delta", "text": text}
    return sse({"type": "content_block_delta", "index": 2, "delta": delta}, "content_block_delta")


EVENTS: dict[str, Callable[[str], bytes]] = {
    "/v1/chat/completions": chat,
    "/v1/completions": lambda text: sse({"id": "c1", "choices": [{"index": 0, "text": text}]}),
    "/v1/messages": messages,
    "/api/chat": lambda text: (
        b"%s\n" % json.dumps({"model": "m", "message": {"role": "assistant", "content": text}}).encode()
    ),
    "/api/generate": lambda text: (
        b"%s\n" % json.dumps({"model": "m", "response": text, "done": False}).encode()
    ),
    "/completion": lambda text: sse({"index": 0, "content": text, "tokens": [1], "stop": False}),
}


class Endless:
    """A server that writes `text` for ever, or `most` events; `left` once its client is gone."""

    def __init__(self, text: Callable[[int], str], most: int = 10**9) -> None:
        self.text, self.most = text, most
        self.left = asyncio.Event()
        self.asked = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        kind = b"application/x-ndjson" if path.startswith("/api/") else b"text/event-stream"
        if scope["method"] != "POST":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        while (await receive()).get("more_body"):
            pass
        self.asked += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        gone = asyncio.ensure_future(receive())
        for number in range(self.most):
            await send(
                {"type": "http.response.body", "body": EVENTS[path](self.text(number)), "more_body": True}
            )
            await asyncio.sleep(0)
            if gone.done():
                break
        gone.cancel()
        await send({"type": "http.response.body", "body": b""})
        self.left.set()


def body(path: str, text: str = "hello") -> bytes:
    asked = {"model": "m", "stream": True, "prompt": text, "max_tokens": 99}
    return post(path, json.dumps(asked | {"messages": [{"role": "user", "content": text}]}).encode())


def warnings(daemon: Daemon, words: str) -> list[str]:
    return [each.text for each in daemon.snapshot().log if words in each.text]


@pytest.mark.parametrize("path", EVENTS)
async def test_an_endless_answer_ends_at_the_bound_as_its_protocol_does(path: str) -> None:
    backend = Endless(lambda number: LOOP[number % 8 * 4 : number % 8 * 4 + 4])
    async with (
        serve_app(backend) as url,
        serving(url, runaway_tokens=2000) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        answer = await client.ask(body(path))
        assert answer.whole
        *_, last = answer.body.strip().split(b"\n")
        events = [
            json.loads(line.removeprefix(b"data: ")) for line in answer.body.split(b"\n") if b"{" in line
        ]
        assert 2000 < len(events) < 4000
        if path == "/v1/messages":
            assert [each["type"] for each in events[-3:]] == [
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
            assert events[-3]["index"] == 2
            assert events[-2]["delta"]["stop_reason"] == "max_tokens"
        elif path.startswith("/v1"):
            assert last == b"data: [DONE]"
            assert events[-1]["choices"][0]["finish_reason"] == "length"
            assert events[-1]["id"] == "c1"
        elif path.startswith("/api"):
            assert (events[-1]["done"], events[-1]["done_reason"]) == (True, "length")
        else:
            assert (events[-1]["stop"], events[-1]["stop_type"]) == (True, "limit")
        await asyncio.wait_for(backend.left.wait(), 10)
        assert len(warnings(daemon, "repeats itself")) == 2
        (ended,) = daemon.snapshot().recent
        assert ended.outcome == "completed"
        assert ended.remark.startswith("its answer repeats itself, ended after 2,")
        assert (await client.ask(body(path, "and again"))).whole  # on the same connection


async def test_without_a_bound_it_is_only_reported() -> None:
    backend = Endless(lambda number: LOOP, most=900)
    async with (
        serve_app(backend) as url,
        serving(url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        answer = await client.ask(body("/v1/chat/completions"))
        assert answer.body == chat(LOOP) * 900
        (line,) = warnings(daemon, "repeats itself")
        assert LOOP not in line


async def test_the_same_prompt_is_refused_after_as_many_answers_in_a_row() -> None:
    backend = Endless(lambda number: "fine", most=3)
    async with (
        serve_app(backend) as url,
        serving(url, repeats=3) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        statuses = [(await client.ask(body("/v1/chat/completions"))).status for _ in range(5)]
        assert statuses == [200, 200, 200, 400, 400]
        refused = await client.ask(body("/v1/chat/completions"))
        assert "answered 3 times in a row (--repeats 3)" in json.loads(refused.body)["error"]["message"]
        assert backend.asked == 3
        assert (await client.ask(body("/v1/chat/completions", "hello, too"))).status == 200


TABLE = "".join(f"| {number} | 0.00 | 0.00 | yes |\n" for number in range(400))
CODE = "".join(f"    case {number}: return table[{number * 7 % 64}];\n" for number in range(400))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOP * 100, True),
        ("\\n" * 2000, True),
        ((LOOP + "Then I look at line 7. ") * 40, True),
        ((LOOP + "x") * 3, False),
        (TABLE, False),
        (CODE, False),
        (LOOP * 100 + "Done.", False),
        ("", False),
    ],
)
def test_only_exact_repetition_counts(text: str, expected: bool) -> None:
    assert ends_in_repetition(text.encode()) is expected
