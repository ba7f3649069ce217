"""A backend that goes away, comes back, or is not ready yet: who waits, and who is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from clairvoyant_cli.http import upstream as upstream_module
from clairvoyant_cli.proxy.composition import Daemon
from tests.fakes.llamacpp_server import free_port
from tests.fakes.raw_http import RawClient, get, post, raw_client
from tests.fakes.scripted_upstream import Conversation, always, answer, scripted
from tests.fakes.serving import asked, between, serving, until

DONE = b'{"usage": {"completion_tokens": 3}}'
LOADING = b'{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}'
NOT_YET = answer(LOADING, status="503 Service Unavailable")


def asks(word: str) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": word}]}
    return post("/v1/chat/completions", json.dumps(body).encode())


class Server:
    """A server on a port of its own that can be stopped and started; `seen` are the words it was asked.

    `loads` is what it says of itself; what it is asked it answers all the same, but for the words `not_yet`.
    """

    def __init__(self) -> None:
        self.loads = False
        self.not_yet: set[str] = set()
        self.port = free_port()
        self.seen: list[str] = []
        self.held = asyncio.Event()
        self.release = asyncio.Event()
        self._running: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._running = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop listening and drop every connection, as a killed process does."""
        if self._running is not None:
            self._running.close()
        for talk in list(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            await self._talk(Conversation(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._talks.discard(task)

    async def _talk(self, it: Conversation) -> None:
        while True:
            request = await it.request()
            if b"clairvoyant" in (request.value("user-agent") or b""):
                it.send(NOT_YET if self.loads else answer(b"{}", status="404 Not Found"))
                continue
            word = json.loads(request.body)["messages"][0]["content"]
            self.seen.append(word)
            if word == "hold":
                self.held.set()
                await self.release.wait()
            it.send(NOT_YET if word in self.not_yet else answer(DONE))


@asynccontextmanager
async def before_a_server(**settings: Any) -> AsyncIterator[tuple[Server, Daemon]]:
    server = Server()
    await server.start()
    try:
        async with serving(server.base_url, **settings) as daemon:
            await until(daemon, lambda s: s.backends[0].state == "up")
            yield server, daemon
    finally:
        await server.stop()


def clients(daemon: Daemon, *words: str) -> AbstractAsyncContextManager[list[RawClient]]:
    """Clients that have asked, each one word, and are all in the queue or beyond."""
    return asked(daemon, *map(asks, words))


async def test_queued_and_running_requests_survive_a_restart_of_the_server() -> None:
    async with before_a_server(slots=1) as (server, daemon), clients(daemon, "hold", "one", "two") as asked:
        await server.held.wait()
        await server.stop()
        state = await until(daemon, lambda s: s.backends[0].state == "down" and not s.running)
        assert len(state.queue) == 3
        server.release.set()
        await server.start()
        daemon.pool.first.probe_due.set()
        assert [(await each.response(b"POST")).status for each in asked] == [200, 200, 200]
        assert sorted(server.seen) == ["hold", "hold", "one", "two"]
        assert daemon.snapshot().counters.repeats == 1


@pytest.mark.parametrize(("max_wait", "within_s"), [(None, 60.0), (20.0, 20.0)])
async def test_in_an_outage_it_is_said_when_a_request_will_be_refused(
    max_wait: float | None, within_s: float
) -> None:
    async with before_a_server(slots=1, outage_grace=60.0, max_wait=max_wait) as (server, daemon):
        await server.stop()
        daemon.pool.first.probe_due.set()
        state = await until(daemon, lambda s: s.backends[0].state == "down")
        assert "new requests wait up to " in state.verdict.text
        async with clients(daemon, "late") as [late]:
            state = daemon.snapshot()
            [row] = state.queue
            assert (row.eta_s, row.eta_high_s, row.ahead, row.cause) == (None, None, None, "down")
            assert row.refused_in_s == pytest.approx(state.waiting.refused_in_s, abs=1.0)
            assert state.waiting.stranded == 1
            assert state.waiting.refused_in_s is not None
            assert within_s - 15.0 < state.waiting.refused_in_s <= within_s
            assert "does not answer, 1 waiting; refused in" in state.verdict.text
            assert state.slots == (0, 0)
            await server.start()
            daemon.pool.first.probe_due.set()
            assert (await late.response(b"POST")).status == 200
        state = await until(daemon, lambda s: s.counters.completed == 1)
        assert (state.waiting.stranded, state.waiting.refused_in_s, state.slots) == (0, None, (0, 1))
        assert state.backends[0].kept_for_s is None


async def test_no_request_waits_longer_than_the_grace() -> None:
    async with (
        before_a_server(slots=1, outage_grace=0.05) as (server, daemon),
        clients(daemon, "hold", "one", "two") as asked,
    ):
        await server.held.wait()
        await server.stop()
        for each in asked[1:]:
            got = await each.response(b"POST")
            assert (got.status, got.value("retry-after")) == (503, b"5")
            assert "is not reachable" in json.loads(got.body)["error"]["message"]
        # From then on each is told at once, and nothing is left behind.
        async with raw_client(daemon.base_url) as late:
            assert (await late.ask(asks("late"))).status == 503
        state = await until(daemon, lambda s: not s.queue and not s.running)
        assert state.counters.completed == 0
        assert state.backends[0].kept_for_s == 0.0
        assert state.verdict.text == f"{state.backends[0].name} does not answer: new requests are refused"
        # And the time starts again once it has been back.
        await server.start()
        daemon.pool.first.probe_due.set()
        await until(daemon, lambda s: s.backends[0].state == "up")
        async with raw_client(daemon.base_url) as later:
            assert (await later.ask(asks("later"))).status == 200


async def test_a_server_that_was_never_there_is_not_waited_for() -> None:
    async with serving(f"http://127.0.0.1:{free_port()}") as daemon, raw_client(daemon.base_url) as client:
        for _ in range(2):
            got = await client.ask(asks("hello"))
            assert (got.status, got.value("retry-after")) == (503, b"2")


# -- a server that loads its model -----------------------------------------------------------------------


BUSY = b'{"detail":{"error":"text_generation_busy","message":"SimpleEngine serialized route is busy"}}'


class Loading:
    """Answers like llama.cpp while it loads: 503 to everything, until `ready`."""

    def __init__(self, says: bytes = LOADING, head: str = "503 Service Unavailable") -> None:
        self.ready, self.says, self.head = False, says, head
        self.asked = 0

    async def script(self, it: Conversation) -> None:
        while True:
            await it.request()
            self.asked += 1
            it.send(answer(DONE) if self.ready else answer(self.says, status=self.head))


@pytest.fixture
def trials_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that loads is tried again at once, not each second."""
    monkeypatch.setattr("clairvoyant_cli.proxy.servers.lifecycle.DOWN_EVERY_S", 0.01)
    monkeypatch.setattr("clairvoyant_cli.proxy.servers.lifecycle.UP_EVERY_S", 0.01)
    monkeypatch.setattr(upstream_module, "MIN_IDLE_S", 0.0)


@pytest.mark.usefixtures("trials_at_once")
@pytest.mark.parametrize(
    ("says", "head"),
    [
        (LOADING, "503 Service Unavailable"),
        (BUSY, "503 Service Unavailable"),
        (b"data: %b\n\ndata: [DONE]\n\n" % BUSY, "200 OK\r\nContent-Type: text/event-stream"),
    ],
)
async def test_not_yet_is_heard_by_us_alone_and_the_request_is_sent_again(says: bytes, head: str) -> None:
    loading = Loading(says, head)
    async with (
        scripted(loading.script) as upstream,
        serving(upstream.base_url, slots=1) as daemon,
        clients(daemon, "one", "two", "three") as asked,
    ):
        await until(daemon, lambda s: s.backends[0].state == "loading" and loading.asked > 0)
        loading.ready = True
        assert [(await each.response(b"POST")).status for each in asked] == [200] * 3
        state = await until(daemon, lambda s: s.counters.completed == 3)
        assert (state.counters.upstream_error, state.queue, state.running) == (0, (), ())


async def test_another_503_is_the_backends_own_word() -> None:
    overloaded = answer(b'{"error": "overloaded"}', status="503 Service Unavailable")
    async with between(always(overloaded), slots=1) as (daemon, client):
        got = await client.ask(asks("one"))
        assert (got.status, got.body) == (503, b'{"error": "overloaded"}')
        assert daemon.snapshot().backends[0].state != "loading"


async def test_not_yet_is_passed_on_when_the_request_cannot_be_sent_again() -> None:
    """Its body was too long to be held."""
    loading = Loading()
    async with between(loading.script, slots=1, body_limit_mib=1, body_budget_bytes=2**20) as (_, client):
        got = await client.ask(asks("x" * 2**21))
        assert (got.status, got.body) == (503, LOADING)


@pytest.mark.usefixtures("trials_at_once")
async def test_not_yet_is_the_last_word_once_the_grace_is_over() -> None:
    async with before_a_server(slots=1) as (server, daemon):
        server.loads, server.not_yet = True, {"hold"}
        daemon.pool.first.probe_due.set()
        await until(daemon, lambda s: s.backends[0].state == "loading")
        async with clients(daemon, "hold") as [client]:
            await server.held.wait()
            daemon.pool.first.health._expire()  # by itself it might before the client has asked
            server.release.set()
            got = await client.response(b"POST")
            assert (got.status, b"not reachable" in got.body) == (503, True)
            assert not daemon.snapshot().queue


@pytest.mark.usefixtures("trials_at_once")
async def test_a_server_that_serves_although_it_says_it_loads_is_found_out() -> None:
    async with before_a_server(slots=1, outage_grace=0.05) as (server, daemon):
        server.loads = True
        daemon.pool.first.probe_due.set()
        await until(daemon, lambda _: daemon.pool.first.health.given_up)
        async with clients(daemon, "one") as [client]:
            assert (await client.response(b"POST")).status == 200


# -- shutting down -------------------------------------------------------------------------------


async def test_nothing_new_is_begun_while_the_daemon_shuts_down() -> None:
    async with before_a_server(slots=1) as (server, daemon), clients(daemon, "hold") as [client]:
        daemon.drain()
        for raw in (get("/v1/models"), asks("late")):
            async with raw_client(daemon.base_url) as late:
                assert (await late.ask(raw)).status == 503
        async with raw_client(daemon.base_url) as operator:
            got = await operator.ask(post("/_clairvoyant/actions/resume", b"{}", host="localhost"))
            assert (got.status, b"shutting down" in got.body) == (409, True)
        server.release.set()
        assert (await client.response(b"POST")).status == 200


# -- connections that end between two requests ---------------------------------------------------------


async def asked_on_a_stale_connection(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], int]:
    """Ask twice a server that drops the second request of each connection; return statuses and requests."""
    monkeypatch.setattr(upstream_module, "MIN_IDLE_S", 0.0)
    requests = 0

    async def script(it: Conversation) -> None:
        nonlocal requests
        await it.request()
        requests += 1
        it.send(answer())
        await it.request()
        requests += 1

    async with (
        scripted(script) as upstream,
        serving(upstream.base_url) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        return [(await client.ask(raw)).status for _ in range(2)], requests


async def test_what_is_idempotent_is_sent_again_on_a_fresh_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statuses, requests = await asked_on_a_stale_connection(get("/x"), monkeypatch)
    assert (statuses, requests) == ([200, 200], 3)


async def test_what_is_not_idempotent_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = post("/v1/responses", b'{"model": "m", "input": "hello"}')
    kept = post("/v1/chat/completions", b'{"messages": []}', "X-Conversation-Id: 1")
    server_tools = [
        post(path, json.dumps({"model": "m", "store": False, "messages": [], "input": "x"} | asked).encode())
        for path, asked in (
            ("/v1/responses", {"background": True}),
            ("/v1/responses", {"tools": [{"type": "function"}, {"type": "mcp", "server_url": "http://x"}]}),
            ("/api/v1/chat", {"integrations": ["mcp/files"]}),
            ("/v1/messages", {"mcp_servers": [{"url": "http://x"}]}),
            ("/v1/chat/completions", {"web_search_options": {"search_context_size": "low"}}),
            ("/v1/chat/completions", {"web_search_options": {}}),
            ("/v1/chat/completions", {"store": True}),
        )
    ]
    unread = post("/v1/chat/completions", b"{")
    for raw in (post("/x", b"{}"), get("/x", method="DELETE"), stored, kept, unread, *server_tools):
        statuses, requests = await asked_on_a_stale_connection(raw, monkeypatch)
        assert (statuses, requests) == ([200, 502], 2)


async def test_generating_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    not_stored = post("/v1/responses", b'{"model": "m", "input": "hello", "store": false}')
    for raw in (asks("hello"), not_stored):
        statuses, requests = await asked_on_a_stale_connection(raw, monkeypatch)
        assert (statuses, requests) == ([200, 200], 3)
