"""Too much, too slow, shutting down, not there: what a client is told, in its own dialect."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.protocols.errors import OLLAMA_BUSY
from clairvoyant_cli.proxy.requests.admission import Refused
from clairvoyant_cli.proxy.requests.refusals import DRAINING
from clairvoyant_cli.state.client import ControlClient
from tests.fakes.daemon_parts import asking, daemon_parts
from tests.fakes.daemon_process import DaemonProcess, daemon_process
from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.replay_backend import Engine, Replay, Speed, tabled
from tests.fakes.scripted_upstream import Conversation, scripted
from tests.fakes.serving import occupied, secret, until

LENGTHS = tabled({"endless": 100_000, "short": 3})
ASK = [{"role": "user", "content": "short"}]
ROUTES: dict[str, dict[str, object]] = {
    "/api/chat": {"messages": ASK},
    "/api/generate": {"prompt": "short"},
    "/api/embed": {"input": "short"},
    "/v1/chat/completions": {"messages": ASK},
    "/v1/completions": {"prompt": "short"},
    "/v1/responses": {"input": "short"},
    "/v1/embeddings": {"input": "short"},
    "/v1/messages": {"messages": ASK, "max_tokens": 5},
}


def asks(path: str, content: str = "short", *, key: str = "key-of-ann") -> bytes:
    body = json.dumps({"model": "replay"} | ROUTES[path]).replace('"short"', json.dumps(content))
    return post(path, body.encode(), f"X-Api-Key: {key}")


def message_of(path: str, body: bytes) -> str:
    data = json.loads(body)
    if path.startswith("/api/"):
        assert list(data) == ["error"]
        return str(data["error"])
    if path == "/v1/messages":
        assert data["type"] == "error"
        assert data["error"]["type"] in ("overloaded_error", "rate_limit_error", "api_error")
    else:
        assert set(data["error"]) == {"message", "type", "param", "code"}
    return str(data["error"]["message"])


async def test_a_full_queue_refuses_in_the_words_of_the_route() -> None:
    async with (
        occupied(queue_capacity=1) as (daemon, engine),
        raw_client(daemon.base_url) as waiting,
        raw_client(daemon.base_url) as client,
    ):
        waiting.send(asks("/api/embed"))  # nothing that comes later goes before it
        await until(daemon, lambda s: len(s.queue) == 1)
        for path in ROUTES:
            got = await client.ask(asks(path))
            assert got.status == 503
            assert int(got.value("retry-after") or b"") >= 1
            assert message_of(path, got.body) == (
                OLLAMA_BUSY if path.startswith("/api/") else "clairvoyant: the queue is full"
            )
        # What is not scheduled is not refused.
        assert (await client.ask(get("/api/tags"))).status == 200
        counts = daemon.snapshot().counters
        assert (counts.rejected, counts.submitted) == (len(ROUTES), len(ROUTES) + 2)
        engine.thaw()
        assert engine.counts.arrived == 1


@pytest.mark.parametrize("path", [path for path in ROUTES if "embed" not in path])
async def test_who_gives_way_in_a_full_queue_is_told_in_the_words_of_the_route(
    path: str, tmp_path: Path
) -> None:
    keys = secret(tmp_path / "keys", "ann:key-of-ann\nben:key-of-ben\n")
    async with (
        occupied("X-Api-Key: key-of-ann", queue_capacity=2, api_key_file=keys) as (daemon, engine),
        raw_client(daemon.base_url) as first,
        raw_client(daemon.base_url) as second,
        raw_client(daemon.base_url) as other,
    ):
        first.send(asks("/v1/embeddings"))
        await until(daemon, lambda s: len(s.queue) == 1)
        second.send(asks(path))
        await until(daemon, lambda s: len(s.queue) == 2)
        other.send(asks("/v1/embeddings", key="key-of-ben"))
        got = await second.response(b"POST")
        assert (got.status, got.framing, got.whole) == (503, "length", True)
        assert int(got.value("retry-after") or b"") >= 1
        assert message_of(path, got.body) == (
            OLLAMA_BUSY if path.startswith("/api/") else "clairvoyant: the queue is full"
        )
        state = await until(daemon, lambda s: s.counters.rejected == 1)
        assert {each.client for each in state.queue} == {"ann", "ben"}
        assert [each.outcome for each in state.recent] == ["rejected"]
        assert engine.counts.arrived == 1


async def test_request_past_the_longest_wait_is_refused() -> None:
    async with occupied(max_wait=0.05) as (daemon, engine), raw_client(daemon.base_url) as client:
        for path in ROUTES:
            got = await client.ask(asks(path))
            assert got.status == 503
            assert int(got.value("retry-after") or b"") >= 1
            assert got.value("x-clairvoyant-request-id")
            assert message_of(path, got.body)
        state = daemon.snapshot()
        assert (state.counters.timeout, state.queue, len(state.running)) == (len(ROUTES), (), 1)
        assert engine.counts.arrived == 1


# -- shutting down, as a process -----------------------------------------------------------------


@asynccontextmanager
async def process_before(engine: Engine, home: Path) -> AsyncIterator[DaemonProcess]:
    async with serve_app(Replay(engine).app) as url, AsyncExitStack() as stack:
        started = await asyncio.to_thread(stack.enter_context, daemon_process(url, home=home))
        yield started
        if started.process.poll() is None:
            os.kill(started.pid, signal.SIGKILL)
        await asyncio.to_thread(started.wait)


async def queue_of(daemon: DaemonProcess, waiting: int) -> None:
    async with asyncio.timeout(15), ControlClient(daemon.base_url) as control:
        async for state in control.stream():
            if len(state.queue) == waiting and state.running:
                return


@pytest.mark.posix
async def test_sigterm_finishes_what_runs_and_refuses_the_rest(tmp_path: Path) -> None:
    engine = Engine(answer_tokens=tabled({"endless": 40}), speed=Speed(decode_tokens_per_s=1000))
    engine.freeze()
    async with process_before(engine, tmp_path) as daemon, AsyncExitStack() as stack:
        running, waiting, late = [
            await stack.enter_async_context(raw_client(daemon.base_url)) for _ in range(3)
        ]
        assert (await late.ask(get("/api/version"))).status == 200
        running.send(asks("/api/chat", "endless"))
        await engine.wait_until(lambda c: c.started == 1)
        waiting.send(asks("/v1/messages"))
        await queue_of(daemon, 1)
        daemon.signal(signal.SIGTERM)
        refused = await waiting.response(b"POST")
        assert (refused.status, refused.value("retry-after")) == (503, b"5")
        assert "shutting down" in message_of("/v1/messages", refused.body)
        assert refused.value("connection") == b"close"
        async with raw_client(daemon.base_url) as new:
            assert (await new.ask(asks("/api/chat"))).status == 503
        engine.thaw()
        got = await running.response(b"POST")
        assert got.whole
        assert json.loads(got.body.splitlines()[-1])["eval_count"] == 40
        assert await asyncio.to_thread(daemon.wait) == 0
    assert not list((tmp_path / "clairvoyant").glob("daemon-*.json"))
    assert any("stopping: 1 queued request rejected; waiting up to" in line for line in daemon.lines)


@pytest.mark.posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_stops_at_once(tmp_path: Path, number: signal.Signals) -> None:
    engine = Engine(answer_tokens=LENGTHS)
    engine.freeze()
    async with process_before(engine, tmp_path) as daemon, raw_client(daemon.base_url) as client:
        client.send(asks("/api/chat", "endless"))
        await engine.wait_until(lambda c: c.started == 1)
        async with raw_client(daemon.base_url) as waiting:
            waiting.send(asks("/api/chat"))
            await queue_of(daemon, 1)
            daemon.signal(number)
            assert (await waiting.response(b"POST")).status == 503
        daemon.signal(number)
        assert await asyncio.to_thread(daemon.wait, 4) == 0
        assert await client.rest() == b""
        await engine.wait_until(lambda c: c.cancelled == 1)
    assert not [line for line in daemon.lines if "rror" in line or "Traceback" in line]
    ends = [line.split(" model=")[0].split()[-2:] for line in daemon.lines if " model=" in line]
    assert ends == [["503", "rejected"], ["503", "rejected"]]  # nobody's client left


@pytest.mark.posix
async def test_a_second_signal_does_not_wait_for_a_deaf_backend(tmp_path: Path) -> None:
    """A backend that does not notice that its clients left gets no time of ours."""
    arrived = asyncio.Event()

    async def deaf(it: Conversation) -> None:
        await it.request()
        arrived.set()
        await it.left()
        await asyncio.Event().wait()

    async with scripted(deaf) as upstream, AsyncExitStack() as stack:
        daemon = await asyncio.to_thread(
            stack.enter_context, daemon_process(upstream.base_url, home=tmp_path)
        )
        async with raw_client(daemon.base_url) as client:
            client.send(asks("/v1/chat/completions"))
            await arrived.wait()
            daemon.signal(signal.SIGTERM)
            daemon.signal(signal.SIGINT)
            assert await asyncio.to_thread(daemon.wait, 4) == 0


@pytest.mark.posix
async def test_idle_daemon_stops_at_once_with_clients_connected(tmp_path: Path) -> None:
    async with process_before(Engine(), tmp_path) as daemon, httpx.AsyncClient() as client:
        words = list((tmp_path / "clairvoyant").glob("daemon-*.json"))
        assert [oct(word.stat().st_mode & 0o777) for word in words] == ["0o600"]
        assert json.loads(words[0].read_bytes())["url"] == daemon.base_url
        async with client.stream("GET", f"{daemon.base_url}/_clairvoyant/events"):
            daemon.signal(signal.SIGTERM)
            assert await asyncio.to_thread(daemon.wait, 10) == 0


async def test_a_refusal_at_arrival_is_counted_and_recorded_as_one_of_a_queued_request() -> None:
    parts = daemon_parts(capacity=1)
    parts.queued("0.1 runs")
    parts.queued("0.1 waits")
    for draining in (False, True):
        parts.operation.draining = draining
        refused = parts.ask("0.1 comes too late")
        assert isinstance(refused, Refused)
        with suppress(AttributeError):  # of a connection that is none
            parts.refusals.send(asking(), refused.route, refused.refusal)
    state = parts.snapshot()
    assert [each.remark for each in state.recent] == ["the queue is full", DRAINING.reason]
    assert (state.counters.submitted, state.counters.rejected) == (4, 2)
    metrics = b"".join(parts.metrics.render(state)).decode()
    assert 'clairvoyant_refusals_total{reason="queue_full"} 1.0' in metrics
    assert 'clairvoyant_refusals_total{reason="draining"} 1.0' in metrics
    assert 'clairvoyant_requests_total{code="503",endpoint="/api/chat",outcome="rejected"} 2.0' in metrics
