"""How connections end, on either side and at any moment: nothing is owed afterwards, and nothing is kept."""

import asyncio
import logging
import socket
import struct
from contextlib import AsyncExitStack

import pytest

from clairvoyant_cli.http import limits, listener, request
from clairvoyant_cli.http import limits as patience
from clairvoyant_cli.http.framing import CHUNKS_AT_ONCE
from clairvoyant_cli.proxy.composition import Daemon
from predictor.record import Prediction, PromptView
from predictor.semantic.opinion import EncoderEstimate
from tests.fakes.raw_http import RawClient, get, post, raw_client
from tests.fakes.scripted_upstream import Conversation, always, answer, scripted, silent
from tests.fakes.serving import ByFirstWord, between, serving, until

CHAT = "/v1/chat/completions"
CHUNKED = b"POST %b HTTP/1.1\r\nHost: tests\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_CHUNK = b"zz\r\n"


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look after connections often, so that no test waits for it."""
    monkeypatch.setattr(patience, "TICK_S", 0.01)
    monkeypatch.setattr("clairvoyant_cli.proxy.daemon.TICK_S", 0.01)
    monkeypatch.setattr(listener, "LINGER_S", 0.1)


def reset(client: RawClient) -> None:
    client.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    client.writer.transport.abort()


def half_closed(connection: object) -> bool:
    return bool(getattr(connection, "_half_closed", False))


async def emptied(daemon: Daemon) -> None:
    table = daemon.connections
    await until(daemon, lambda _: not table.every and table.body_bytes == 0)


# -- what cannot be read -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/x", CHAT])
async def test_a_body_that_cannot_be_read_is_refused_also_if_it_comes_with_its_head(path: str) -> None:
    raw = CHUNKED % path.encode() + b"%x\r\n" % 100_000 + bytes(100_000) + b"\r\n" + NO_CHUNK
    async with scripted(always()) as upstream, serving(upstream.base_url) as daemon:
        for before in (b"", get("/first")):
            async with raw_client(daemon.base_url) as client:
                client.send(before + raw)
                if before:
                    assert (await client.response()).status == 200
                got = await client.response()
                assert (got.status, await client.rest()) == (400, b"")
        await emptied(daemon)


async def test_a_client_that_resets_behind_its_request_leaves_nothing() -> None:
    async with scripted(silent) as upstream, serving(upstream.base_url) as daemon:
        for path in ("/x", CHAT):
            async with raw_client(daemon.base_url) as client:
                client.send(post(path, bytes(200_000)))
                await client.writer.drain()
                reset(client)
        await emptied(daemon)


# -- bodies in crumbs --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/x", CHAT])
@pytest.mark.parametrize("count", [CHUNKS_AT_ONCE + 1, 20_000])
async def test_a_body_of_tiny_chunks_is_a_body(path: str, count: int) -> None:
    body: list[bytes] = []

    async def script(it: Conversation) -> None:
        body.append((await it.request()).body)
        it.send(answer())

    async with between(script) as (_, client):
        crumbs = b"1\r\n{\r\n" + b"1\r\n \r\n" * count + b"1\r\n}\r\n0\r\n\r\n"
        assert (await client.ask(CHUNKED % path.encode() + crumbs)).status == 200
    assert body == [b"{" + b" " * count + b"}"]


async def test_bodies_in_crumbs_that_come_at_once_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr(limits, "perf_counter", lambda: next(clock) * limits.TURN_S)
    async with scripted(always()) as upstream, serving(upstream.base_url) as daemon:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_crumbs(daemon)) for _ in range(8)]
        assert [each.result() for each in asked] == [200] * 8


async def test_the_answers_of_a_crowd_are_predicted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr(limits, "perf_counter", lambda: next(clock) * limits.TURN_S)
    turn = 0
    predicted_in: list[int] = []

    async def count() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    class Predicting(ByFirstWord):
        def predict(self, view: PromptView, opinion: EncoderEstimate | None = None) -> Prediction:
            predicted_in.append(turn)
            return super().predict(view)

    async with (
        scripted(always()) as upstream,
        serving(upstream.base_url, Predicting(), slots=1) as daemon,
        AsyncExitStack() as stack,
    ):
        crowd = [await stack.enter_async_context(raw_client(daemon.base_url)) for _ in range(8)]
        counting = asyncio.create_task(count())
        for client in crowd:
            client.send(post(CHAT, b'{"messages": [{"role": "user", "content": "river"}]}'))
        assert [(await client.response(b"POST")).status for client in crowd] == [200] * 8
        counting.cancel()
    assert len(set(predicted_in)) == 8


async def test_of_a_crowd_that_no_queue_holds_the_rest_is_not_even_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(10**9))
    monkeypatch.setattr(limits, "perf_counter", lambda: next(clock) * limits.TURN_S)
    predicting = ByFirstWord()

    async with (
        scripted(silent) as upstream,
        serving(upstream.base_url, predicting, slots=1, queue_capacity=3) as daemon,
        AsyncExitStack() as stack,
    ):
        crowd = [await stack.enter_async_context(raw_client(daemon.base_url)) for _ in range(40)]
        for client in crowd:
            client.send(post(CHAT, b'{"messages": [{"role": "user", "content": "river"}]}'))
        await until(daemon, lambda s: (s.counters.rejected, len(s.running), len(s.queue)) == (36, 1, 3))
        assert len(predicting.seen) < 40


async def _crumbs(daemon: Daemon) -> int:
    async with raw_client(daemon.base_url) as client:
        got = await client.ask(CHUNKED % b"/x" + b"1\r\n \r\n" * 3 * CHUNKS_AT_ONCE + b"0\r\n\r\n")
        return got.status


async def test_a_backend_that_does_not_read_stops_a_body_of_crumbs_too() -> None:
    async def script(it: Conversation) -> None:
        it.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    crumbs = (b"14\r\n" + bytes(20) + b"\r\n") * 20_000
    async with between(script, raw=True, read_ahead_bytes=65536) as (_, client):
        client.send(CHUNKED % b"/x")
        # The kernel's buffers on both sides, and little of ours.
        assert await sent_until_it_stops(client, crumbs, 64 * 2**20) < 64 * 2**20
        client.leave()


async def sent_until_it_stops(client: RawClient, piece: bytes, most: int) -> int:
    """Send until nobody takes any more, or `most` bytes; return how many that were."""
    client.writer.transport.set_write_buffer_limits(high=0)
    taken = 0
    while taken < most:
        client.send(piece)
        try:
            async with asyncio.timeout(0.5):
                await client.writer.drain()
        except TimeoutError:
            break
        taken += len(piece)
    return taken


# -- after the end -----------------------------------------------------------------------------------


async def test_nothing_is_done_behind_an_answer_that_was_cut() -> None:
    seen: list[bytes] = []

    async def script(it: Conversation) -> None:
        seen.append((await it.request()).target)
        it.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")

    async with between(script) as (daemon, client):
        client.send(get("/cut"), post(CHAT, b'{"messages": []}'))
        got = await client.response()
        assert (got.body, got.whole, await client.rest()) == (b"abc", False, b"")
        await emptied(daemon)
    assert seen == [b"/cut"]


async def test_an_upload_that_goes_on_behind_a_refusal_is_of_no_interest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with between(always()) as (daemon, client):
        head = CHUNKED.replace(b"Host: tests", b"Host: tests\r\nOrigin: https://evil.example") % CHAT.encode()
        client.send(head, b"1\r\n \r\n" * 3 * CHUNKS_AT_ONCE, NO_CHUNK)
        assert (await client.response()).status == 403
        client.leave()
        await emptied(daemon)
    assert not [each for each in caplog.records if each.exc_info]


async def test_a_backend_that_answers_early_and_reads_no_more_keeps_no_connection() -> None:
    full, gone = asyncio.Event(), asyncio.Event()

    async def script(it: Conversation) -> None:
        it.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await full.wait()
        it.send(answer(status="413 Too Large"))
        await asyncio.Event().wait()

    async with (
        scripted(script, raw=True, read_ahead_bytes=65536) as upstream,
        serving(upstream.base_url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        opened = daemon.pool.first.upstream.connect

        async def connect(*, fresh: bool = False) -> object:
            connection = await opened(fresh=fresh)
            connection.closed.add_done_callback(lambda _: gone.set())
            return connection

        daemon.pool.first.upstream.connect = connect  # type: ignore[method-assign, assignment]
        client.send(post("/upload", b"", f"Content-Length: {2**30}").replace(b"Content-Length: 0\r\n", b""))
        await sent_until_it_stops(client, bytes(2**20), 2**30)
        full.set()
        assert (await client.response(b"POST")).status == 413
        async with asyncio.timeout(10):
            await gone.wait()


# -- order of closing ---------------------------------------------------------------------------------


async def test_a_client_that_waits_for_a_continue_that_never_comes_gets_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request, "CONTINUE_S", 0.01)

    async def script(it: Conversation) -> None:  # as Python's http.server does, which speaks HTTP/1.0
        head = await it.reader.readuntil(b"\r\n\r\n")
        assert b"100-continue" in head
        assert await it.reader.readexactly(2) == b"{}"
        it.send(answer())

    async with between(script, raw=True) as (_, client):
        client.send(post("/x", b"{}", "Expect: 100-continue").removesuffix(b"{}"))
        assert (await client.response()).status == 100
        client.send(b"{}")
        assert (await client.response()).status == 200


@pytest.mark.posix
async def test_a_client_that_ends_its_side_and_goes_away_is_noticed() -> None:
    async with between(silent) as (daemon, client):
        client.send(get("/long"))
        client.writer.write_eof()
        await until(daemon, lambda s: s.counters.passed_through == 1)
        reset(client)
        await emptied(daemon)


async def test_a_crowd_that_leaves_at_once_leaves_in_turns_and_reaches_no_backend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "LEAVING_S", 2 * limits.TURN_S)  # one in a turn
    asked = 0

    async def script(it: Conversation) -> None:
        nonlocal asked
        await it.request()
        asked += 1
        await it.left()

    async with scripted(script) as upstream, serving(upstream.base_url, slots=1) as daemon:
        async with AsyncExitStack() as stack:
            crowd = [await stack.enter_async_context(raw_client(daemon.base_url)) for _ in range(20)]
            for client in crowd:
                client.send(post(CHAT, b'{"messages": ["river"]}'))
            await until(daemon, lambda s: s.counters.submitted == 20 and asked == 1)
            for client in crowd:
                reset(client)
            state = await until(daemon, lambda s: s.counters.client_cancelled == 20)
        assert (state.queue, asked) == ((), 1)


# -- tunnels -----------------------------------------------------------------------------------------

UPGRADE = get("/socket", "Connection: Upgrade", "Upgrade: websocket")
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


async def test_a_tunnel_ends_with_its_backend() -> None:
    async def script(it: Conversation) -> None:
        await it.request()
        it.send(SWITCHED, b"hello")

    async with between(script) as (daemon, client):
        client.send(UPGRADE)
        assert (await client.response()).status == 101
        assert await client.rest() == b"hello"
        await emptied(daemon)


async def test_a_tunnel_holds_up_a_shutdown_only_while_it_carries_something(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(listener, "TUNNEL_QUIET_S", 3600.0)

    async def script(it: Conversation) -> None:
        await it.request()
        it.send(SWITCHED, b"hello")
        await it.left()

    async with between(script) as (daemon, client):
        client.send(UPGRADE)
        assert (await client.response()).status == 101
        stopped = daemon.control._stopped
        daemon.drain()
        stopping = asyncio.create_task(daemon.run_until_stopped())
        await until(daemon, lambda _: stopped.is_set())
        assert not stopping.done()
        monkeypatch.setattr(listener, "TUNNEL_QUIET_S", 0.0)
        await asyncio.wait_for(stopping, 5.0)
    assert "for 1 open WebSocket; repeat" in caplog.text
    assert "closing 1 open tunnel" in caplog.text


async def test_a_client_that_ended_its_side_gets_no_tunnel() -> None:
    ended = asyncio.Event()
    asked = asyncio.Event()

    async def script(it: Conversation) -> None:
        await it.request()
        asked.set()
        await ended.wait()
        it.send(SWITCHED)
        await it.left()

    async with between(script) as (daemon, client):
        client.send(UPGRADE)
        await asked.wait()
        client.writer.write_eof()
        await until(daemon, lambda _: any(half_closed(each) for each in daemon.connections.every))
        ended.set()
        await emptied(daemon)


# -- no room -----------------------------------------------------------------------------------------


async def test_who_is_refused_for_lack_of_room_is_not_kept() -> None:
    async def goes_on(client: RawClient) -> None:
        while True:
            client.send(b"x")
            await client.writer.drain()
            await asyncio.sleep(0)

    async with between(silent, max_connections=1) as (daemon, busy):
        busy.send(get("/long"))
        await until(daemon, lambda s: s.counters.passed_through == 1)
        async with raw_client(daemon.base_url) as refused:
            assert (await refused.response()).status == 503
            # Once our side has gone altogether, what it sends is met by a reset.
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(goes_on(refused), 10)
