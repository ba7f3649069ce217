"""Clients that stall, dribble, flood or leave behind something unread: nobody else pays for them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from clairvoyant_cli.http import limits as patience_module
from clairvoyant_cli.http import listener as listener_module
from clairvoyant_cli.http.limits import DELAYING_BYTES_PER_S, Patience
from clairvoyant_cli.proxy import daemon as daemon_module
from clairvoyant_cli.proxy.composition import Daemon
from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.scripted_upstream import Conversation, Script, answer, scripted, silent
from tests.fakes.serving import serving, until

DONE = b'{"usage": {"completion_tokens": 3}}'
CHAT = post("/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user", "content": "river"}]}')
BIG = bytes(3 * 2**20)


async def answering(it: Conversation) -> None:
    while True:
        request = await it.request()
        it.send(answer(BIG) if request.target == b"/big" else answer(DONE))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock by which clients are judged ticks faster, so that nobody need wait for it."""
    for module in (patience_module, daemon_module):
        monkeypatch.setattr(module, "TICK_S", 0.02)
    monkeypatch.setattr("clairvoyant_cli.proxy.composition.DRAINING_TIMEOUT_S", 0.1)
    monkeypatch.setattr(listener_module, "DELAYING_TIMEOUT_S", 0.1)
    monkeypatch.setattr(listener_module, "LINGER_S", 0.1)


@asynccontextmanager
async def before(script: Script = answering, **settings: Any) -> AsyncIterator[Daemon]:
    """A daemon before a scripted backend, whose clients' patience is short."""
    async with (
        scripted(script) as upstream,
        serving(upstream.base_url, **({"client_timeout": 0.2, "slots": 1} | settings)) as daemon,
    ):
        yield daemon


@asynccontextmanager
async def deaf_client(daemon: Daemon, raw: bytes) -> AsyncIterator[None]:
    """A client that asks and then never reads."""
    parts = urlsplit(daemon.base_url)
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    deaf.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(deaf, (parts.hostname, parts.port))
        await loop.sock_sendall(deaf, raw)
        yield
    finally:
        deaf.close()


def nobody_left(daemon: Daemon) -> bool:
    return not daemon.connections.every


HALVES = {
    "head": b"POST /x HTTP/1.1\r\nHo",
    "passed on": b"POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nab",
    "scheduled": b"POST /api/chat HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nab",
    "chunked": b"POST /api/chat HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
    "control": b"POST /_clairvoyant/actions/pause HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
}


@pytest.mark.parametrize("raw", HALVES.values(), ids=HALVES)
async def test_half_a_request_is_not_waited_for_without_end(raw: bytes) -> None:
    async with before() as daemon, raw_client(daemon.base_url) as client:
        client.send(raw)
        got = await client.response(b"POST")
        assert (got.status, got.value("connection")) == (408, b"close")
        await until(daemon, lambda s: nobody_left(daemon) and not s.running and not s.queue)


@pytest.mark.parametrize("half", ["head", "passed on"])
async def test_what_came_while_the_process_was_stopped_is_read_before_its_client_is_given_up(
    half: str,
) -> None:
    async with before(client_timeout=60) as daemon:
        parts = urlsplit(daemon.base_url)
        with socket.create_connection((parts.hostname, parts.port)) as client:
            client.setblocking(False)
            client.send(HALVES[half])
            await until(daemon, lambda s: bool(daemon.connections.every))
            [connection] = daemon.connections.every
            assert isinstance(connection, listener_module.ClientConnection)
            await until(daemon, lambda s: connection._waits_for() is not None)
            client.send({"head": b"st: t\r\nContent-Length: 0\r\n\r\n", "passed on": b"cdefghi"}[half])
            for _ in range(3):
                connection.tick(1000.0)  # nothing of the loop runs in between
            got = await asyncio.get_running_loop().sock_recv(client, 100)
        assert got.startswith(b"HTTP/1.1 200 ")


@pytest.mark.posix
@pytest.mark.parametrize(
    "raw", [get("/big"), get("/big", "Connection: close"), get("/_clairvoyant/events", host="localhost")]
)
async def test_an_answer_nobody_reads_is_given_up(raw: bytes) -> None:
    async with before() as daemon, deaf_client(daemon, raw):
        await until(daemon, lambda _: len(daemon.connections.every) == 1)
        await until(daemon, lambda _: nobody_left(daemon))


async def test_a_stalled_body_does_not_keep_the_slot_from_others() -> None:
    """It was too long to be held, so the slot was granted before all of it had come."""
    async with (
        before(client_timeout=60.0, body_limit_mib=1, body_budget_bytes=2**20) as daemon,
        raw_client(daemon.base_url) as stalling,
        raw_client(daemon.base_url) as waiting,
    ):
        stalling.send(post("/api/chat", BIG)[:-1])
        await until(daemon, lambda s: len(s.running) == 1)
        waiting.send(CHAT)
        assert (await waiting.response(b"POST")).status == 200
        assert (await stalling.response(b"POST")).status == 408


async def test_a_slot_is_given_when_the_body_is_there() -> None:
    async with (
        before(client_timeout=60.0, body_limit_mib=1) as daemon,
        raw_client(daemon.base_url) as slow,
        raw_client(daemon.base_url) as quick,
    ):
        request = post("/api/chat", BIG)
        slow.send(request[:-1])
        await until(daemon, lambda _: daemon.connections.body_bytes > 2**21)
        assert (await quick.ask(CHAT)).status == 200
        assert not daemon.snapshot().running
        slow.send(request[-1:])
        assert (await slow.response(b"POST")).status == 200


async def test_unfinished_uploads_keep_no_slot_from_others() -> None:
    async with before(client_timeout=60.0, body_budget_bytes=2**20) as daemon, AsyncExitStack() as crowd:
        for _ in range(6):
            client = await crowd.enter_async_context(raw_client(daemon.base_url))
            client.send(post("/api/chat", BIG[:400_000])[:-1])
        await until(daemon, lambda _: [len(each) for each in daemon.connections.waiting.values()] == [4])
        quick = await crowd.enter_async_context(raw_client(daemon.base_url))
        assert (await quick.ask(CHAT)).status == 200
        assert daemon.snapshot().counters.submitted == 1


@pytest.mark.parametrize(("bytes_per_s", "lasts"), [(50_000, False), (200_000, True)])
def test_who_delays_others_has_to_send_fast(bytes_per_s: int, lasts: bool) -> None:
    patience = Patience()
    moved = range(0, 30 * bytes_per_s, bytes_per_s)
    kept = [patience.lasts("body", each, 10.0, 1.0, bytes_per_s=DELAYING_BYTES_PER_S) for each in moved]
    assert all(kept) is lasts


# -- shutting down -------------------------------------------------------------------------------


async def gone_down(daemon: Daemon) -> None:
    daemon.drain()
    async with asyncio.timeout(10):
        await daemon.run_until_stopped()


@pytest.mark.parametrize("raw", HALVES.values(), ids=HALVES)
async def test_half_a_request_does_not_hold_up_a_drain(raw: bytes) -> None:
    async with before(client_timeout=60.0) as daemon, raw_client(daemon.base_url) as client:
        client.send(raw)
        await until(daemon, lambda _: any(not each.idle for each in daemon.connections.every))
        await gone_down(daemon)


async def test_a_dashboard_that_has_stopped_reading_does_not_hold_up_a_drain() -> None:
    async with (
        before(client_timeout=60.0) as daemon,
        deaf_client(daemon, get("/_clairvoyant/events", host="localhost")),
    ):
        await until(daemon, lambda _: any(not each.idle for each in daemon.connections.every))
        await gone_down(daemon)


async def test_a_drain_has_a_deadline() -> None:
    async with before(silent, drain_timeout=0.05) as daemon, raw_client(daemon.base_url) as client:
        client.send(CHAT)
        await until(daemon, lambda s: len(s.running) == 1)
        await gone_down(daemon)
        told = [event.text for event in daemon.snapshot().log]
        assert any("1 running request did not end within 0.05 s: stopping now" in text for text in told), told


# -- leaving behind what is not read -----------------------------------------------------------------------

BEHIND = {
    "a request": get("/next"),
    "a long body": b"POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: 9000000\r\n\r\n" + BIG,
    "many requests": get("/next") * 20_000,
}


@asynccontextmanager
async def occupied() -> AsyncIterator[Daemon]:
    async with before(silent, client_timeout=60.0) as daemon, raw_client(daemon.base_url) as holder:
        holder.send(CHAT)
        await until(daemon, lambda s: len(s.running) == 1)
        yield daemon


@pytest.mark.parametrize("tail", BEHIND.values(), ids=BEHIND)
async def test_disconnect_of_a_queued_client_is_noticed_behind_pipelined_bytes(tail: bytes) -> None:
    async with occupied() as daemon:
        async with raw_client(daemon.base_url) as leaver:
            leaver.send(CHAT)
            await until(daemon, lambda s: len(s.queue) == 1)
            leaver.send(tail)
            leaver.writer.close()  # an orderly end, behind all that was sent
            await until(daemon, lambda s: not s.queue)
        assert daemon.snapshot().counters.client_cancelled == 1


async def test_too_much_pipelined_behind_a_queued_request_is_refused() -> None:
    release = asyncio.Event()

    async def once(it: Conversation) -> None:
        await it.request()
        await release.wait()
        it.send(answer(DONE))

    async with before(once, client_timeout=60.0) as daemon, raw_client(daemon.base_url) as client:
        client.send(CHAT, get("/next") * 5000)
        await until(daemon, lambda _: daemon_has_dropped(daemon))
        release.set()
        got = await client.response(b"POST")
        assert (got.status, got.value("connection")) == (200, b"close")
        assert await client.rest() == b""
        assert daemon.snapshot().counters.passed_through == 0


def daemon_has_dropped(daemon: Daemon) -> bool:
    """Whether the one client's requests behind the first have been given up."""
    return any(getattr(each, "_dropped_bytes", None) is not None for each in daemon.connections.every)


# -- how much there may be ---------------------------------------------------------------------------------


async def test_an_upload_beyond_the_budget_waits_unread_for_room() -> None:
    seen: list[bytes] = []
    release = asyncio.Event()

    async def collecting(it: Conversation) -> None:
        while True:
            seen.append((await it.request()).body)
            await release.wait()
            it.send(answer(DONE))

    def ask(size: int) -> bytes:
        content = {"model": "m", "messages": [{"role": "user", "content": "x" * size}]}
        return post("/v1/chat/completions", json.dumps(content).encode())

    sizes = (10, 400_000, 400_000, 400_000)
    async with before(collecting, body_budget_bytes=2**20, client_timeout=60.0) as daemon:
        bodies = [ask(size) for size in sizes]
        clients = [raw_client(daemon.base_url) for _ in sizes]
        async with AsyncExitStack() as crowd:
            asking = [await crowd.enter_async_context(client) for client in clients]
            for client, body in zip(asking, bodies, strict=True):
                client.send(body)
            await until(daemon, lambda s: s.counters.submitted == 3 and bool(daemon.connections.waiting))
            assert [each.predicted.source for each in daemon.snapshot().queue] == ["first-word"] * 2
            assert daemon.connections.body_bytes < 2**20
            release.set()
            assert [(await each.response(b"POST")).status for each in asking] == [200] * 4
        assert sorted(seen) == sorted(body.split(b"\r\n\r\n", 1)[1] for body in bodies)
        await until(daemon, lambda _: daemon.connections.body_bytes == 0)


async def test_a_crowd_of_silent_connections_leaves_room_for_who_asks() -> None:
    async with before(max_connections=3, client_timeout=60.0) as daemon, AsyncExitStack() as crowd:
        regular = await crowd.enter_async_context(raw_client(daemon.base_url))
        assert (await regular.ask(get("/x"))).status == 200
        for _ in range(6):
            await crowd.enter_async_context(raw_client(daemon.base_url))
        await until(daemon, lambda _: len(daemon.connections.every) == 3)
        newcomer = await crowd.enter_async_context(raw_client(daemon.base_url))
        assert (await newcomer.ask(CHAT)).status == 200
        assert (await regular.ask(get("/_clairvoyant/health", host="localhost"))).status == 200
