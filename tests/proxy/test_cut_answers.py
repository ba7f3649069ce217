"""A long answer is cut for a short one and goes on: its client reads what it would have read uncut."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.kinds.ollama import Ollama
from clairvoyant_cli.protocols.model_settings import ModelSettings
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.requests import heartbeat
from clairvoyant_cli.state.snapshot import Snapshot
from profiles.records import Continuation, Served
from tests.fakes.raw_http import RawClient, post, raw_client
from tests.fakes.remembered import PROFILE
from tests.fakes.replay_backend import DEFAULT_MODEL, Engine, Replay, Speed
from tests.fakes.serving import believe, serving, until

TOKENS = 300
SPEED = Speed(prefill_tokens_per_s=10_000.0, decode_tokens_per_s=400.0)
LONG, SHORT = "0.9 Tell me everything", "0.0 Hi"

ROUTES: dict[str, dict[str, Any]] = {
    "/api/chat": {"options": {"num_predict": TOKENS}},
    "/v1/chat/completions": {"max_tokens": TOKENS, "stream_options": {"include_usage": True}},
    "/v1/completions": {"max_tokens": TOKENS, "stream_options": {"include_usage": True}},
    "/api/generate": {"raw": True, "options": {"num_predict": TOKENS}},
}
PROOF = Continuation("raw", 24, 24, resume_s=0.001, repeats=12, exact_repeats=12)
NEVER_THE_SAME = {"created_at", "created", "total_duration", "eval_duration", "prompt_eval_duration"}


def body(path: str, prompt: str, *, stream: bool, tokens: int = TOKENS, **more: Any) -> bytes:
    asked: dict[str, Any] = {"model": "replay", "stream": stream} | ROUTES[path] | more
    if not stream:
        asked.pop("stream_options", None)
    if "options" in asked:
        asked["options"] = asked["options"] | {"num_predict": tokens}
    else:
        asked["max_tokens"] = tokens
    if "chat" in path:
        asked["messages"] = [{"role": "user", "content": prompt}]
    else:
        asked["prompt"] = prompt
    return post(path, json.dumps(asked).encode())


@dataclass(slots=True)
class Server:
    """A server of one slot that can be stopped and started again, with other models maybe."""

    engine: Engine = field(default_factory=lambda: Engine(speed=SPEED, seed=1, answer_tokens=thousand))
    url: str = ""
    _running: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self, model: str = DEFAULT_MODEL) -> None:
        app = Replay(self.engine, (model,)).app
        port = int(self.url.rpartition(":")[2] or 0)
        self.url = await self._running.enter_async_context(serve_app(app, port))

    async def stop(self) -> None:
        await self._running.aclose()


def thousand(prompt: str, rng: object) -> int:
    return 1000


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def in_virtual_time(**arguments: Any) -> None:
        run_virtually(test(**arguments))

    return in_virtual_time


@asynccontextmanager
async def preempting(
    way: str = "raw", server: Server | None = None, **settings: Any
) -> AsyncIterator[tuple[Daemon, Engine]]:
    """Run the proxy before one slot, of which it is proved that it goes on in a way."""
    server = server or Server()
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        clock = asyncio.get_running_loop().time
        settings.setdefault("policy", "boost")
        daemon = await stack.enter_async_context(serving(server.url, clock=clock, **settings))
        await until(daemon, lambda s: s.backends[0].state == "up")
        known = daemon.pool.first
        served = Served(known.adapter.name, "replay", version=known.status.version)
        await believe(known, replace(PROFILE, served=served, continuations=(replace(PROOF, way=way),)))
        known.speeds.decode_tokens_per_s = 400.0
        yield daemon, server.engine


async def cut_once(daemon: Daemon, client: RawClient, path: str, **asked: Any) -> bytes:
    """Ask for a long answer, cut it for a short one, and return all of it."""
    client.send(body(path, LONG, **asked))
    await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 5)
    async with raw_client(daemon.base_url) as other:
        short = await other.ask(body("/api/chat", SHORT, stream=False, tokens=5))
        assert short.status == 200
    answer = await client.response()
    assert answer.status == 200
    return answer.body


def objects(text: bytes) -> list[Any]:
    """Return what a stream brings, without what differs between any two runs."""
    held = [line.removeprefix(b"data: ") for line in text.splitlines() if line.strip()]
    return [line.decode() if line == b"[DONE]" else _same(json.loads(line)) for line in held]


def _same(event: Any) -> Any:
    return {name: value for name, value in event.items() if name not in NEVER_THE_SAME}


@virtually
async def test_an_answer_in_two_parts_is_one_in_all_that_is_told_of_it() -> None:
    path = "/v1/chat/completions"
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        uncut = await client.ask(body(path, LONG, stream=True))
        cut = await cut_once(daemon, client, path, stream=True)
        state = daemon.snapshot()
    assert objects(cut) == objects(uncut.body)
    assert (state.counters.cuts, state.counters.resumes, state.counters.completed) == (1, 1, 3)
    assert [each.cuts for each in state.recent] == [0, 0, 1]
    assert [len(each.parts) for each in state.recent] == [0, 0, 2]
    assert state.recent[-1].tokens == TOKENS
    assert state.recent[1].sojourn_s < state.recent[2].sojourn_s / 2


@pytest.mark.parametrize("path", ROUTES)
async def test_a_stream_that_waits_to_go_on_brings_empty_events(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "SUSPENDED_EVERY_S", 0.001)
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        uncut = objects((await client.ask(body(path, LONG, stream=True))).body)
        cut = objects(await cut_once(daemon, client, path, stream=True))
    assert len(cut) > len(uncut)
    assert [each for each in cut if each in uncut] == uncut, "nothing is missing, and in order"
    assert all(is_empty(each) for each in cut if each not in uncut)


def is_empty(event: Any) -> bool:
    if "choices" in event:
        choice = event["choices"][0]
        return not (choice.get("text") or choice.get("delta", {}).get("content"))
    return not (event.get("response") or event.get("message", {}).get("content"))


@virtually
async def test_one_that_was_granted_a_moment_ago_is_cut_once_it_runs() -> None:
    """Whether it may be cut is known as it is sent; looked at before, it is neither cut nor spared."""
    async with (
        preempting() as (daemon, _),
        raw_client(daemon.base_url) as first,
        raw_client(daemon.base_url) as other,
    ):
        scheduler, now = daemon.dispatcher.scheduler, daemon.journal.clock
        scheduler.pause()
        other.send(body("/api/chat", SHORT, stream=False, tokens=5))
        [short] = (await until(daemon, lambda s: len(s.queue) == 1)).queue
        scheduler.hold(short.id, now())
        first.send(body("/api/chat", LONG, stream=True))
        await until(daemon, lambda s: len(s.queue) == 2)
        scheduler.resume()
        daemon.dispatcher.moved()
        scheduler.release(short.id, now())
        daemon.preemption.decide()
        assert (await other.response()).status == 200
        assert daemon.snapshot().counters.cuts == 1
        assert (await first.response()).status == 200


@virtually
async def test_what_could_be_told_is_not_cut() -> None:
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        client.send(body("/api/chat", LONG, stream=True, format="json"))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 5)
        async with raw_client(daemon.base_url) as other:
            other.send(body("/api/chat", SHORT, stream=False, tokens=5))
            state = await until(daemon, lambda s: len(s.queue) == 1)
            assert state.running[0].uncut == "format"
            await other.response()
        assert (await client.response()).status == 200
        assert daemon.snapshot().counters.cuts == 0


@pytest.mark.parametrize(("temperature", "cuts"), [(0, 0), (0.7, 1)])
@virtually
async def test_who_wants_the_same_each_time_is_not_cut_where_it_would_be_read_in_other_tokens(
    temperature: float, cuts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_about: list[str] = []

    async def otherwise(self: Ollama, ask: object, asked: object, pieces: Sequence[str]) -> bool:
        asked_about.append("".join(pieces))
        return False

    monkeypatch.setattr(Ollama, "reads_as_written", otherwise)
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        options = {"temperature": temperature, "num_predict": TOKENS}
        answer = await cut_once(daemon, client, "/api/chat", stream=True, options=options)
        state = daemon.snapshot()
    assert state.counters.cuts == cuts
    said = "".join(json.loads(line)["message"]["content"] for line in answer.splitlines())
    assert len(asked_about) == 1 - cuts
    assert all(each and said.startswith(each) for each in asked_about)


@pytest.mark.parametrize("settings", [{"preempt": "off"}, {"policy": "sjf"}])
@virtually
async def test_switched_off_nothing_is_touched(settings: dict[str, Any]) -> None:
    async with preempting(**settings) as (daemon, _), raw_client(daemon.base_url) as client:
        async with raw_client(daemon.pool.first.upstream.url) as direct:
            theirs = await direct.ask(body("/api/chat", LONG, stream=True))
        ours = await cut_once(daemon, client, "/api/chat", stream=True)
        assert daemon.snapshot().counters.cuts == 0
    assert [set(json.loads(line)) for line in ours.splitlines()] == [
        set(json.loads(line)) for line in theirs.body.splitlines()
    ]


def is_suspended(state: Snapshot) -> bool:
    return any(each.cuts for each in state.queue)


@dataclass(frozen=True, slots=True)
class Scene:
    """A long answer that waits to go on, and the short one that has its slot."""

    daemon: Daemon
    engine: Engine
    long: RawClient
    short: RawClient


@asynccontextmanager
async def suspended(way: str = "raw", server: Server | None = None, **settings: Any) -> AsyncIterator[Scene]:
    """Have a long answer suspended for a short one that is frozen in its slot."""
    async with (
        preempting(way, server, **settings) as (daemon, engine),
        raw_client(daemon.base_url) as long,
        raw_client(daemon.base_url) as short,
    ):
        long.send(body("/api/chat", LONG, stream=True))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 5)
        short.send(body("/api/chat", SHORT, stream=False, tokens=5))
        await until(daemon, is_suspended)
        engine.freeze()
        yield Scene(daemon, engine, long, short)
        engine.thaw()


@virtually
async def test_a_server_that_cannot_go_on_is_no_faked_ending() -> None:
    async with suspended() as it:
        it.daemon.pool.first.profiles = ()
        it.engine.thaw()
        assert not (await it.long.response()).whole
        state = await until(it.daemon, lambda s: s.counters.upstream_error == 1)
        assert not state.running


@virtually
async def test_a_server_that_stays_away_is_told_in_the_end() -> None:
    server = Server()
    async with suspended("raw", server, outage_grace=0.1) as it:
        await server.stop()
        assert not (await it.long.response()).whole
        await until(it.daemon, lambda s: s.counters.upstream_error == 1 and not s.queue and not s.running)
        assert it.daemon.snapshot().counters.rejected == 1  # nothing of the short one was sent


@pytest.mark.parametrize("way", ["raw", "prefill"])
@virtually
async def test_a_server_that_comes_back_without_the_model_is_no_faked_ending(way: str) -> None:
    server = Server()
    async with suspended(way, server) as it:
        await server.stop()
        await until(it.daemon, lambda s: s.backends[0].state == "down")
        it.engine.thaw()
        await server.start("another:latest")
        it.daemon.pool.first.probe_due.set()
        assert not (await it.long.response()).whole
        assert (await it.short.response()).status == 404
        await until(it.daemon, lambda s: s.counters.upstream_error == 2 and not s.queue and not s.running)


@pytest.mark.parametrize("fingerprint", ["", "build:1 model:2 template:3 settings:4"])
@virtually
async def test_what_was_measured_of_others_proves_nothing(fingerprint: str) -> None:
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        server = daemon.pool.first
        (profile,) = server.profiles
        proofs = tuple(replace(each, fingerprint=fingerprint) for each in profile.continuations)
        server.profiles = (replace(profile, continuations=proofs),)
        await cut_once(daemon, client, "/api/chat", stream=True)
        assert daemon.snapshot().counters.cuts == 0


@virtually
async def test_a_server_that_is_another_than_was_measured_is_noticed_and_told_once() -> None:
    async with preempting() as (daemon, _):
        server = daemon.pool.first
        assert server.continuation_of("replay") is not None
        server.status.version = "another"
        for _ in range(2):
            await daemon.lifecycle.see_settings(server)
        assert server.continuation_of("replay") is None
        told = [event.text for event in daemon.snapshot().log if "not what was measured" in event.text]
        assert len(told) == 1
        assert "another build" in told[0]
        assert "clairvoyant calibrate" in told[0]


@virtually
async def test_a_server_that_changes_while_it_answers_is_not_cut() -> None:
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        client.send(body("/api/chat", LONG, stream=True))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 5)
        daemon.pool.first.status.version = "another"
        async with raw_client(daemon.base_url) as other:
            other.send(body("/api/chat", SHORT, stream=False, tokens=5))
            state = await until(daemon, lambda s: any(each.uncut for each in s.running))
            assert state.running[0].uncut == "the server is not the one that was measured"
            await other.response()
        assert (await client.response()).status == 200
        assert daemon.snapshot().counters.cuts == 0


@pytest.mark.parametrize(
    ("temperature", "which", "cuts"),
    [(0, "proven", 0), (0, "all", 1), (0.7, "proven", 1), (None, "proven", 1)],
)
@virtually
async def test_where_texts_differ_by_rounding_only_sampled_answers_are_cut(
    temperature: float | None, which: str, cuts: int
) -> None:
    async with preempting(preempt=which) as (daemon, _), raw_client(daemon.base_url) as client:
        server = daemon.pool.first
        (profile,) = server.profiles
        proof = replace(PROOF, exact=10, exact_repeats=6, rounded=14, tie_nats=0.5)
        await believe(server, replace(profile, continuations=(proof,)))
        options = {"num_predict": TOKENS} | ({} if temperature is None else {"temperature": temperature})
        await cut_once(daemon, client, "/api/chat", stream=True, options=options)
        assert daemon.snapshot().counters.cuts == cuts


@pytest.mark.parametrize("way", ["raw", "prefill"])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
@virtually
async def test_the_cap_in_a_modelfile_counts_for_all_parts_together(
    path: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def capped(self: Ollama, ask: object, model: str, version: str) -> ModelSettings:
        return ModelSettings("capped", 4096, {"num_predict": TOKENS})

    monkeypatch.setattr(Ollama, "settings", capped)
    async with preempting(way) as (daemon, _), raw_client(daemon.base_url) as client:
        asked = json.loads(body(path, LONG, stream=True).partition(b"\r\n\r\n")[2])
        asked.pop("max_tokens", None)
        asked.pop("options", None)
        client.send(post(path, json.dumps(asked).encode()))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 5)
        async with raw_client(daemon.base_url) as other:
            await other.ask(body("/api/chat", SHORT, stream=False, tokens=5))
        await client.response()
        state = daemon.snapshot()
    assert state.counters.cuts == 1
    assert state.recent[-1].tokens == TOKENS


@virtually
async def test_a_server_that_would_wake_is_asked_for_its_settings_only_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        server, asked = daemon.pool.first, list[str]()
        found = type(server.adapter).settings

        async def settings(self: Any, ask: Any, model: str, version: str) -> Any:
            asked.append(model)
            return await found(self, ask, model, version)

        monkeypatch.setattr(type(server.adapter), "settings", settings)
        monkeypatch.setattr(type(server.adapter), "SETTINGS_WAKE", True)
        await asyncio.sleep(30.0)
        assert not asked
        server.settings.clear()  # as after a start before a server that sleeps
        await cut_once(daemon, client, "/api/chat", stream=True)
        assert asked
        assert daemon.snapshot().counters.cuts == 1


@virtually
async def test_what_its_server_keeps_running_without_its_client_is_not_cut() -> None:
    async with preempting() as (daemon, _), raw_client(daemon.base_url) as client:
        asked = body("/v1/chat/completions", LONG, stream=True)
        client.send(asked.replace(b"\r\n", b"\r\nX-Conversation-Id: mine\r\n", 1))
        state = await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 5)
        assert state.running[0].uncut == "the server goes on without its client"
        assert (await client.response()).status == 200
