"""The client's side of the proxy, from clients that behave badly."""

import asyncio
import json
from typing import cast

import pytest

from clairvoyant_cli.http import upstream as upstream_module
from clairvoyant_cli.http.framing import HEAD_LIMIT_BYTES
from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.scripted_upstream import Conversation, always, answer, scripted
from tests.fakes.serving import between, serving, until

CHAT = post("/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user", "content": "river"}]}')


@pytest.mark.parametrize(
    "raw",
    [
        b"river\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: two\r\n\r\n{}",
        b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_request_is_refused_and_nothing_reaches_the_backend(raw: bytes) -> None:
    async with (
        scripted(always()) as upstream,
        serving(upstream.base_url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        client.send(raw)
        got = await client.response()
        assert (got.status, got.value("connection"), got.whole) == (400, b"close", True)
        assert await client.rest() == b""
        assert upstream.connections == 0


async def test_a_head_without_end_is_refused() -> None:
    async with scripted(always()) as upstream, serving(upstream.base_url) as daemon:
        for endless in (b"X-Many: river\r\n", b"x"):
            async with raw_client(daemon.base_url) as client:
                client.send(b"GET / HTTP/1.1\r\nHost: t\r\nX-Long: ", b"y\r\n" if endless != b"x" else b"")
                client.send(endless * (HEAD_LIMIT_BYTES // len(endless) + 1))
                assert (await client.response()).status == 431
        await until(daemon, lambda _: not daemon.connections.every)


async def test_a_long_connection_is_no_long_head() -> None:
    async with between(always()) as (_, client):
        for _ in range(3):
            got = await client.ask(post("/upload", bytes(HEAD_LIMIT_BYTES // 2)))
            assert got.status == 200
            got = await client.ask(get("/", "X-Long: " + "y" * (HEAD_LIMIT_BYTES // 2)))
            assert got.status == 200


async def test_a_client_that_asks_and_ends_its_side_gives_a_scheduled_request_up() -> None:
    async def script(it: Conversation) -> None:
        await it.left()

    async with between(script) as (daemon, client):
        client.send(CHAT)
        client.writer.write_eof()
        state = await until(daemon, lambda s: s.counters.client_cancelled == 1 and not s.running)
        assert state.counters.submitted == 1


async def test_a_client_that_asks_and_ends_its_side_gets_any_other_answer() -> None:
    async with between(always()) as (_, client):
        client.send(get("/plain"))
        client.writer.write_eof()
        assert (await client.response()).status == 200
        assert await client.rest() == b""


async def test_the_leaving_of_a_client_that_pipelined_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "MIN_IDLE_S", 0.0)  # the script answers twice on one connection
    started = asyncio.Event()

    async def script(it: Conversation) -> None:
        await it.request()
        it.send(answer(b"first"))
        await it.request()
        started.set()
        await it.left()

    async with scripted(script) as upstream, serving(upstream.base_url) as daemon:
        async with raw_client(daemon.base_url) as client:
            client.send(CHAT, CHAT)
            assert (await client.response(b"POST")).body == b"first"
            await started.wait()
        state = await until(daemon, lambda s: s.counters.client_cancelled == 1 and not s.running)
        assert state.counters.completed == 1


async def test_pipelined_answers_do_not_pile_up_before_a_client_that_does_not_read() -> None:
    """A slow reader holds the second answer's upstream back, too, not only the first's."""
    size, piece, answers = 8 * 2**20, bytes(65536), 4
    sent = 0

    async def script(it: Conversation) -> None:
        nonlocal sent
        it.writer.transport.set_write_buffer_limits(high=len(piece))
        while True:
            await it.request()
            it.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(0, size, len(piece)):
                it.send(piece)
                sent += len(piece)
                await it.writer.drain()

    async with between(script) as (daemon, client):
        cast(asyncio.ReadTransport, client.writer.transport).pause_reading()
        client.send(get("/big") * answers)
        # The daemon is idle once it has answered a request that came after all it could do.
        before = -1
        while before != sent:
            before = sent
            for _ in range(20):
                async with raw_client(daemon.base_url) as other:
                    await other.ask(get("/_clairvoyant/health", host="localhost"))
        held = sum(each.unsent for each in daemon.connections.every)
        assert held < 2 * 2**20
        cast(asyncio.ReadTransport, client.writer.transport).resume_reading()
        for _ in range(answers):
            assert len((await client.response()).body) == size


async def test_a_request_behind_an_answer_that_ended_the_connection_is_not_served() -> None:
    """The answer came before the body was there; what follows the body must not be taken up."""

    async def script(it: Conversation) -> None:
        await it.request()
        it.send(answer())

    async with (
        scripted(script) as upstream,
        serving(upstream.base_url, slots=1, body_limit_mib=1, body_budget_bytes=2**20) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        daemon.dispatcher.scheduler.capacity = 0  # it is refused before its body is there
        size = 3 * 2**20  # beyond what is read for a prediction
        client.send(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        client.send(bytes(2**20 + 300_000))
        got = await client.response(b"POST")
        assert (got.status, got.value("connection")) == (503, b"close")
        client.send(bytes(size - 2**20 - 300_000), get("/after"))
        assert await client.rest() == b""
        assert upstream.connections == 0
        assert json.loads(got.body)["error"]["message"].startswith("clairvoyant")
