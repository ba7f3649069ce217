"""Who leaves frees a slot, or a place in the queue, once; the next job starts when the slot is free."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.http import upstream as upstream_module
from clairvoyant_cli.http.listener import ClientConnection
from clairvoyant_cli.proxy.access.clients import ClientRules, Clients
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.requests.relay import Relay
from clairvoyant_cli.proxy.requests.serving import SHARED
from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.llamacpp_server import LlamaServer, llama_server
from tests.fakes.raw_http import RawClient, get, post, raw_client
from tests.fakes.replay_backend import Engine, Outcome, Replay, tabled
from tests.fakes.scripted_upstream import Conversation, always, answer, answering, scripted
from tests.fakes.serving import ByFirstWord, replaying, serving, until

# -- on a real llama.cpp server ----------------------------------------------------------------------

LONG_PROMPT = "river stone garden letter " * 900
"""Several batches of 256 tokens: long enough to be left in the prompt phase."""


def ask(prompt: str, tokens: int, *, stream: bool) -> bytes:
    body = {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "max_tokens": tokens}
    return post(
        "/v1/chat/completions",
        json.dumps(body | {"stream": stream, "ignore_eos": True, "cache_prompt": False}).encode(),
    )


async def busy_slots(server: LlamaServer) -> int:
    async with httpx.AsyncClient() as client:
        slots = (await client.get(f"{server.base_url}/slots", timeout=60)).json()
    return sum(slot["is_processing"] for slot in slots)


@pytest.mark.real
@pytest.mark.parametrize(
    ("phase", "stream"),
    [("prefill", True), ("prefill", False), ("decoding", True), ("decoding", False)],
)
async def test_leaving_frees_the_slot_before_the_next_job_starts(
    llama: LlamaServer, phase: str, stream: bool
) -> None:
    prompt = LONG_PROMPT if phase == "prefill" else "0.9 the river"
    async with serving(llama.base_url) as daemon, raw_client(daemon.base_url) as follower:
        async with raw_client(daemon.base_url) as leaver:
            leaver.send(ask(prompt, 7000, stream=stream))
            # An unstreamed answer shows no phase of its own: it counts as in the prompt until the server says
            # how many tokens there are, which may be before this looks.
            seen = {phase} if stream else {"prefill", "decoding"}
            await until(daemon, lambda s: not seen.isdisjoint(r.state for r in s.running))
            if phase == "decoding" and not stream:
                await decoding(llama)
            follower.send(ask("0.1 short", 4, stream=False))
            await until(daemon, lambda s: len(s.queue) == 1)
        # The slot is held while the server still works: nothing is sent to it in the meantime.
        left = await until(daemon, lambda s: s.counters.client_cancelled == 1)
        assert [r.state for r in left.running][:1] in (["releasing"], ["prefill"], ["connecting"])
        assert (await follower.response(b"POST")).status == 200
        assert await busy_slots(llama) == 0
        last = daemon.snapshot()
    assert (last.counters.client_cancelled, last.counters.completed) == (1, 1)
    assert (last.running, last.queue) == ((), ())


async def decoding(server: LlamaServer) -> None:
    """Return once the server has decoded something; its /slots are asked only this once or twice."""
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            [slot] = (await client.get(f"{server.base_url}/slots")).json()
            if slot["is_processing"] and slot["next_token"][0]["n_decoded"] > 2:
                return


@pytest.mark.real
async def test_two_slots_and_the_one_that_is_left(tiny_model: Path) -> None:
    """K is read from the server; while one of two slots drains, the other keeps working."""
    with llama_server(tiny_model, slots=2) as server:
        async with serving(server.base_url) as daemon, AsyncExitStack() as stack:
            assert daemon.pool.first.slots == 2
            clients = [await stack.enter_async_context(raw_client(daemon.base_url)) for _ in range(4)]
            clients[0].send(ask("0.5 stays", 1000, stream=True))
            clients[1].send(ask("0.5 leaves", 7000, stream=True))
            await until(daemon, lambda s: [r.state for r in s.running] == ["decoding"] * 2)
            clients[2].send(ask("0.1 next", 4, stream=False))
            clients[3].send(ask("0.2 after", 4, stream=False))
            await until(daemon, lambda s: len(s.queue) == 2)
            clients[1].leave()
            for client in (clients[2], clients[3], clients[0]):
                assert (await client.response(b"POST")).whole
            last = daemon.snapshot()
            assert (last.counters.completed, last.counters.client_cancelled) == (3, 1)
            assert await busy_slots(server) == 0


# -- on the replay backend, whose journal knows the order --------------------------------------------

LENGTHS = tabled({"0.9 endless": 100_000, "0.5 endless": 100_000, "0.1 short": 3})


def chat(prompt: str, *, stream: bool = True) -> bytes:
    body = {"model": "replay", "stream": stream, "messages": [{"role": "user", "content": prompt}]}
    return post("/api/chat", json.dumps(body).encode())


@dataclass
class Bench:
    """A daemon before a replay backend, and as many clients as a test wants."""

    daemon: Daemon
    engine: Engine
    stack: AsyncExitStack
    clients: list[RawClient] = field(default_factory=list)

    async def send(self, raw: bytes) -> RawClient:
        """Send a request from a new client and return once the daemon has it."""
        before = self.daemon.snapshot().counters.submitted
        client = await self.stack.enter_async_context(raw_client(self.daemon.base_url))
        client.send(raw)
        await until(self.daemon, lambda s: s.counters.submitted == before + 1)
        return client

    async def act(self, action: str, **arguments: object) -> None:
        async with ControlClient(self.daemon.base_url) as control:
            await control.act(action, arguments)

    async def state(self, holds: Callable[[Snapshot], bool]) -> Snapshot:
        return await until(self.daemon, holds)


@pytest.fixture(params=[1, 2])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    slots = request.param
    backend = Replay(Engine(slots=slots, answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with replaying(backend, slots=slots) as daemon, AsyncExitStack() as stack:
        yield Bench(daemon, backend.engine, stack)
        backend.engine.thaw()
        await until(daemon, lambda s: not s.running and not s.queue)
        counts = daemon.snapshot().counters
        assert (
            counts.submitted
            == counts.completed + counts.client_cancelled + counts.upstream_error + counts.operator_cancelled
        )
        await backend.engine.wait_until(lambda c: c.ended == c.arrived)
        assert not daemon.dispatcher.scheduler.running


@pytest.mark.parametrize("stream", [True, False])
async def test_replay_leaving_at_every_stage(bench: Bench, stream: bool) -> None:
    engine, slots = bench.engine, bench.daemon.pool.first.slots
    running = [await bench.send(chat("0.9 endless", stream=stream)) for _ in range(slots)]
    await engine.wait_until(lambda c: c.started == slots)
    waiting = [await bench.send(chat("0.1 short")) for _ in range(2)]
    waiting[0].leave()
    await bench.state(lambda s: s.counters.client_cancelled == 1)
    assert engine.counts.started == slots
    running[0].leave()
    await engine.wait_until(lambda c: c.started == slots + 1 and c.cancelled == 1)
    engine.thaw()
    assert (await waiting[1].response(b"POST")).whole
    for client in running[1:]:
        client.leave()
    await bench.state(lambda s: s.counters.client_cancelled == slots + 1 and not s.running)
    ended = [service.outcome for service in engine.journal]
    assert ended.count(Outcome.CANCELLED) == slots
    assert ended.count(Outcome.COMPLETED) == 1
    most = max(_overlap(engine))
    assert most <= slots, "more requests were sent than there are slots"


def _overlap(engine: Engine) -> list[int]:
    spans = [(s.arrived_s, s.ended_s or float("inf")) for s in engine.journal]
    return [sum(start <= at < end for start, end in spans) for at, _ in spans]


async def test_operator_cancels_a_waiting_request(bench: Bench) -> None:
    slots = bench.daemon.pool.first.slots
    running = [await bench.send(chat("0.9 endless")) for _ in range(slots)]
    waiting = await bench.send(chat("0.1 short"))
    [queued] = bench.daemon.snapshot().queue
    await bench.act("cancel", id=queued.id)
    got = await waiting.response(b"POST")
    assert got.status == 499
    assert json.loads(got.body) == {"error": "request canceled by the operator"}
    state = bench.daemon.snapshot()
    assert (state.recent[-1].outcome, state.counters.client_cancelled) == ("operator_cancelled", 0)
    assert bench.engine.counts.arrived <= slots
    for client in running:
        client.leave()


@pytest.mark.parametrize("stream", [True, False])
async def test_operator_cancels_a_running_request(bench: Bench, stream: bool) -> None:
    slots = bench.daemon.pool.first.slots
    running = [await bench.send(chat("0.9 endless", stream=stream)) for _ in range(slots)]
    await bench.engine.wait_until(lambda c: c.started == slots)
    waiting = await bench.send(chat("0.1 short"))
    await bench.act("cancel", id=bench.daemon.snapshot().running[0].id)
    await bench.engine.wait_until(lambda c: c.started == slots + 1 and c.cancelled == 1)
    assert (await running[0].response(b"POST")).status == 499
    bench.engine.thaw()
    assert (await waiting.response(b"POST")).status == 200
    for client in running[1:]:
        client.leave()


async def test_operator_cancels_an_answer_that_has_begun(bench: Bench) -> None:
    bench.engine.thaw()
    client = await bench.send(chat("0.9 endless"))
    await bench.state(lambda s: bool(s.running) and s.running[0].state == "decoding")
    await bench.act("cancel", id=bench.daemon.snapshot().running[0].id)
    got = await client.response(b"POST")
    assert (got.status, got.whole) == (200, False)


async def test_operator_cancels_at_the_very_moment_of_the_grant(bench: Bench) -> None:
    """Between the scheduler's decision and the task's next step a request is neither waiting nor sent."""
    slots = bench.daemon.pool.first.slots
    dispatcher = bench.daemon.dispatcher
    running = [await bench.send(chat("0.9 endless")) for _ in range(slots)]
    waiting = await bench.send(chat("0.1 short"))
    [queued] = bench.daemon.snapshot().queue
    dispatcher.scheduler.fleet.set_slots(bench.daemon.pool.first.name, slots + 1)
    dispatcher.pump()
    assert dispatcher.live[queued.id].attempt is not None
    assert dispatcher.cancel(queued.id)
    assert (await waiting.response(b"POST")).status == 499
    await bench.state(lambda s: len(s.running) == slots)
    for client in running:
        client.leave()


async def test_a_client_that_leaves_at_the_very_moment_of_the_grant(bench: Bench) -> None:
    slots = bench.daemon.pool.first.slots
    dispatcher = bench.daemon.dispatcher
    running = [await bench.send(chat("0.9 endless")) for _ in range(slots)]
    await bench.send(chat("0.1 short"))
    [queued] = bench.daemon.snapshot().queue
    exchange = dispatcher.live[queued.id]
    assert exchange.task is not None
    dispatcher.scheduler.fleet.set_slots(bench.daemon.pool.first.name, slots + 1)
    dispatcher.pump()
    exchange.task.cancel()
    await bench.state(lambda s: s.counters.client_cancelled == 1 and len(s.running) == slots)
    assert bench.engine.counts.arrived <= slots
    for client in running:
        client.leave()


# -- the release itself ------------------------------------------------------------------------------


async def test_a_backend_that_never_notices_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that keeps its half of the connection open gets its time, and the slot is free after that."""
    monkeypatch.setattr("clairvoyant_cli.proxy.requests.serving.HANG_UP_TIMEOUT_S", 0.05)
    arrived, cut = asyncio.Event(), asyncio.Event()

    async def script(it: Conversation) -> None:
        request = await it.request()
        if b"deaf" not in request.body:
            it.send(answer(b'{"done": true}'))
            return
        arrived.set()
        await it.left()
        while not it.writer.transport.is_closing():
            it.send(b"x")  # deaf: it goes on as if somebody listened
            await asyncio.sleep(0.01)
        cut.set()

    async with scripted(script) as upstream, serving(upstream.base_url) as daemon:
        async with raw_client(daemon.base_url) as leaver:
            leaver.send(chat("deaf"))
            await arrived.wait()
        async with raw_client(daemon.base_url) as client:
            assert (await client.ask(chat("0.1 short"))).status == 200
        async with asyncio.timeout(10):
            await cut.wait()


async def test_an_answer_that_its_server_does_not_stop_keeps_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clairvoyant_cli.proxy.requests.serving.HANG_UP_TIMEOUT_S", 0.05)
    monkeypatch.setattr(Adapter, "RUNS_ON_S", 60.0)
    arrived, order = asyncio.Event(), list[str]()

    async def script(it: Conversation) -> None:
        request = await it.request()
        if b"deaf" in request.body:
            arrived.set()
            await it.left()
            await asyncio.sleep(0.2)  # it writes the answer before it looks for its client
            order.append("ended")
            return
        order.append("next")
        it.send(answer(b'{"done": true}'))

    async with scripted(script) as upstream, serving(upstream.base_url) as daemon:
        async with raw_client(daemon.base_url) as leaver:
            leaver.send(chat("deaf"))
            await arrived.wait()
        async with raw_client(daemon.base_url) as client:
            assert (await client.ask(chat("0.1 short"))).status == 200
    assert order == ["ended", "next"]


@pytest.mark.parametrize("raw", [chat("0.1 short"), get("/api/version")], ids=["scheduled", "passed"])
@pytest.mark.parametrize("first", ["leaving", "ending"])
async def test_leaving_with_the_last_byte_spares_the_connection(
    raw: bytes, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upstream connection is back in the pool, or serves another request, when the task is cancelled."""
    monkeypatch.setattr(upstream_module, "MIN_IDLE_S", 0.0)  # each request may have the last one's connection
    end = Relay.end

    def end_and_leave(relay: Relay, trailers: list[tuple[bytes, bytes]]) -> None:
        assert isinstance(relay._client, ClientConnection)
        task = relay._client._task
        assert task is not None
        if first == "leaving":
            task.cancel()
        end(relay, trailers)
        task.cancel()

    async with scripted(always(answer(b'{"done": true}'))) as upstream, serving(upstream.base_url) as daemon:
        with monkeypatch.context() as leaving:
            leaving.setattr(Relay, "end", end_and_leave)
            async with raw_client(daemon.base_url) as client:
                assert (await client.ask(raw)).whole
        async with raw_client(daemon.base_url) as client:
            for _ in range(3):
                assert (await client.ask(raw)).status == 200
        assert upstream.connections == 1
        counts = daemon.snapshot().counters
        assert counts.submitted == counts.completed
        assert not daemon.dispatcher.scheduler.running


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b""], ids=["has heard all", "left half-way"])
async def test_a_client_that_leaves_with_the_last_event_was_answered(last: bytes) -> None:
    """OpenAI's SDK closes the connection at `[DONE]`, and the end of the message may still be on its way."""
    event = b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\n'
    body = post("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}')

    async def script(it: Conversation) -> None:
        await it.request()
        it.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        it.send(b"%x\r\n%b\r\n" % (len(event + last), event + last))
        await it.left()

    predictor = ByFirstWord()
    async with scripted(script) as upstream, serving(upstream.base_url, predictor) as daemon:
        async with raw_client(daemon.base_url) as client:
            client.send(body)
            await client.receive(last or event)
        state = await until(daemon, lambda s: s.counters.submitted == 1 and not s.running)
        assert (state.counters.completed, state.counters.client_cancelled) == ((1, 0) if last else (0, 1))
    assert predictor.learned == ([7] if last else [])


# -- beside another program --------------------------------------------------------------------------

LEAVES = post("/v1/chat/completions", b'{"messages": [], "stream": true}', "Accept-Encoding: identity")
FOLLOWS = post("/v1/chat/completions", b'{"messages": []}', "Accept-Encoding: identity")
PROPS = json.dumps({"total_slots": 1, "build_info": "b1"}).encode()
BEGUN = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"a\r\ndata: {}\n\n\r\n"
)


def beside_others(slots: bytes) -> Callable[[str], list[bytes]]:
    """A llama.cpp with this list of slots: its first answer goes on until its client leaves."""
    answers = iter([[BEGUN]])

    def script(path: str) -> list[bytes]:
        if path.endswith("/completions"):
            return next(answers, [answer(b"{}")])
        known = {"/props": PROPS, "/health": b"{}"}
        return [slots] if path == "/slots" else [answer(known[path])] if path in known else []

    return script


async def test_one_cancel_beside_another_program_locks_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clairvoyant_cli.proxy.requests.serving.LEAST_STOP_S", 0.05)
    busy = answer(b'[{"is_processing": true, "id_task": 5}]')
    async with answering(beside_others(busy)) as url, serving(url) as daemon:
        await until(daemon, lambda s: s.backends[0].state == "up")
        async with raw_client(daemon.base_url) as leaver:
            leaver.send(LEAVES)
            await leaver.receive(b"data: {}")
        async with raw_client(daemon.base_url) as client, asyncio.timeout(3):
            assert (await client.ask(FOLLOWS)).status == 200
        state = daemon.snapshot()
        assert SHARED in state.backends[0].detail
        assert [event.text for event in state.log].count(f"llamacpp: {SHARED}") == 1


async def test_a_daemon_told_to_end_does_not_wait_for_slots() -> None:
    async with answering(beside_others(b"")) as url, serving(url) as daemon:
        await until(daemon, lambda s: s.backends[0].state == "up")
        async with raw_client(daemon.base_url) as leaver:
            leaver.send(LEAVES)
            await leaver.receive(b"data: {}")
        await until(daemon, lambda s: [each.state for each in s.running] == ["releasing"])
        daemon.drain()
        async with asyncio.timeout(2):
            await daemon.run_until_stopped()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("by_client", [True, False])
async def test_an_answer_that_takes_too_long_is_ended(stream: bool, by_client: bool) -> None:
    backend = Replay(Engine(answer_tokens=tabled({"endless": 100_000})))
    async with (
        replaying(backend, max_answer_s=60.0 if by_client else 0.3) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        if by_client:
            daemon.access.clients = Clients(defaults=ClientRules(max_answer_s=0.3))
        asked = {"model": "replay", "messages": [{"role": "user", "content": "endless"}], "stream": stream}
        got = await client.ask(post("/v1/chat/completions", json.dumps(asked).encode()))
        if stream:
            assert (got.status, got.whole) == (200, False)
        else:
            assert (got.status, got.value("x-should-retry")) == (504, b"false")
        state = await until(daemon, lambda s: not s.running)
        assert [(each.outcome, each.status) for each in state.recent] == [("timeout", got.status)]
