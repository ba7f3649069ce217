"""What `serve` finds out in idle time: in virtual time, before servers that continue and that cost money."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.client import Client
from clairvoyant_cli.backends.discovery import locate_server
from clairvoyant_cli.backends.kinds.ollama import Ollama
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.calibrate.run import calibrate
from clairvoyant_cli.calibrate.self_test import IDLE_S, PIECE_S, SelfTest, Storage
from clairvoyant_cli.calibrate.session import Session
from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.state.snapshot import Snapshot
from profiles.database import reading
from profiles.host import this_host
from profiles.ledger import Ledger
from profiles.records import Profile
from profiles.store import every
from tests.fakes.calibrating import SMALL
from tests.fakes.remembered import PROFILE, keep
from tests.fakes.replay_backend import Engine, Replay, Speed
from tests.fakes.serving import ByFirstWord, secret, serving

MODEL = "replay:latest"
LONG_S = 600.0


@dataclass
class Kept:
    """A storage in memory."""

    states: dict[str, bytes] = field(default_factory=dict)
    profiles: list[Profile] = field(default_factory=list)

    def load(self, name: str) -> bytes | None:
        return self.states.get(name)

    def save(self, name: str, state: bytes) -> None:
        self.states[name] = state

    def keep(self, profile: Profile) -> None:
        self.profiles.append(profile)


@pytest.fixture(autouse=True)
def plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have mains power, and nothing else on this machine that is taken for the server."""
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)


@asynccontextmanager
async def simulated(
    *, loaded: bool = True, decode: float = 50.0, stride: int = 1
) -> AsyncIterator[tuple[Engine, str]]:
    """Run a server of one slot. A whole proof takes less processor time with a larger stride."""
    engine = Engine(speed=Speed(1000.0, decode), answer_tokens=lambda prompt, rng: 300, stride=stride)
    app = Replay(engine)
    if loaded:
        app.loaded.add(MODEL)
    async with serve_app(app.app) as url:
        yield engine, url


@asynccontextmanager
async def self_tested(url: str, storage: Storage, **settings: Any) -> AsyncIterator[Daemon]:
    """Run the proxy with a self-test before a server."""
    if "backends" in settings:
        settings["backends"] = (replace(settings["backends"], url=url),)
    backend = None if "backends" in settings else url
    clock = asyncio.get_running_loop().time
    run = lambda daemon: SelfTest(daemon, storage).run()  # noqa: E731
    async with serving(backend, clock=clock, self_test=run, **settings) as daemon:
        yield daemon


@asynccontextmanager
async def proxied(
    storage: Storage, *, loaded: bool = True, decode: float = 50.0, stride: int = 1, **settings: Any
) -> AsyncIterator[tuple[Daemon, Engine]]:
    """Run the proxy with a self-test before such a server."""
    async with (
        simulated(loaded=loaded, decode=decode, stride=stride) as (engine, url),
        self_tested(url, storage, **settings) as daemon,
    ):
        yield daemon, engine


async def until(holds: Callable[[], object], within_s: float = LONG_S) -> None:
    """Return once `holds`, TimeoutError if it never does."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 - states change without an event
            await asyncio.sleep(0.05)  # of virtual time


def said(daemon: Daemon) -> str:
    return daemon.snapshot().backends[0].self_test


async def asked(daemon: Daemon, prompt: str = "Hello", tokens: int = 10) -> None:
    body = {"model": "replay", "messages": [{"role": "user", "content": prompt}], "stream": False}
    async with httpx.AsyncClient(base_url=daemon.base_url, timeout=LONG_S, trust_env=False) as http:
        answer = await http.post("/api/chat", json=body | {"options": {"num_predict": tokens}})
    assert answer.status_code == 200


def test_self_test_proves_an_idle_server_and_records_no_request() -> None:
    storage, predictor = Kept(), ByFirstWord()

    async def prove() -> tuple[Snapshot, set[str]]:
        seen = set[str]()
        async with proxied(storage, predictor=predictor, stride=5) as (daemon, _):
            async with asyncio.timeout(LONG_S):
                while not any("can be preempted:" in each.text for each in daemon.journal.events):
                    seen.add(said(daemon))
                    await asyncio.sleep(0.5)
            return daemon.snapshot(), seen

    state, seen = run_virtually(prove())
    [profile] = storage.profiles
    assert profile.continuation is not None
    assert (profile.name, profile.plan, profile.mu_short_s) == ("replay@ollama", "self-test", None)
    assert profile.decode_tokens_per_s == pytest.approx(50.0, rel=0.1)
    assert profile.prefill_tokens_per_s == pytest.approx(1000.0, rel=0.1)
    assert "self-test: 8 of 24 tried, goes on when idle" in seen
    assert state.counters.submitted == state.counters.passed_through == 0
    assert not state.recent
    assert not predictor.seen
    assert any("finding out in idle time" in event.text for event in state.log)
    assert any("can be preempted: 24 of 24 continuations matched" in event.text for event in state.log)


def test_first_answer_after_the_proof_is_cut(tmp_path: Path) -> None:
    async def run() -> int:
        ledger = Ledger(tmp_path / "c.db")
        try:
            async with proxied(ledger, decode=100.0, stride=5, persistence=ledger) as (daemon, _):
                await until(lambda: any("can be preempted:" in event.text for event in daemon.journal.events))
                async with asyncio.TaskGroup() as group:
                    group.create_task(asked(daemon, "0.9 tell me a long story", 300))
                    await until(lambda: any(each.tokens for each in daemon.dispatcher.live.values()))
                    group.create_task(asked(daemon, "0.0 say yes", 5))
                return daemon.snapshot().counters.cuts
        finally:
            ledger.close()

    assert run_virtually(run()) == 1


def test_client_request_ends_the_self_test_at_once() -> None:
    async def interrupt() -> tuple[float, float]:
        async with proxied(Kept()) as (daemon, engine):
            # An answer of the test is being written.
            await until(lambda: engine.journal and engine.journal[-1].tokens > 3 and "of 24" in said(daemon))
            before = engine.journal[-1]
            await asked(daemon)
            assert before.outcome == "cancelled"
            number = len(engine.journal) - 1
            mine = engine.journal[number]
            await until(lambda: len(engine.journal) > number + 1)
            assert mine.started_s is not None
            assert mine.ended_s is not None
            return mine.started_s - mine.arrived_s, engine.journal[number + 1].arrived_s - mine.ended_s

    waited_s, idle_s = run_virtually(interrupt())
    assert waited_s < 0.1  # two tokens take 0.04 s, the whole answer would have taken a second
    assert idle_s >= IDLE_S


def test_requests_of_the_self_test_take_at_most_two_seconds() -> None:
    async def run() -> Engine:
        async with proxied(Kept(), decode=12.0) as (daemon, engine):
            await until(lambda: "8 of" in said(daemon))
            return engine

    engine = run_virtually(run())
    assert max((each.ended_s or 0.0) - each.arrived_s for each in engine.journal[:-1]) <= 2.1


def test_self_test_skips_a_server_that_is_too_slow() -> None:
    async def run() -> int:
        async with proxied(Kept(), decode=3.0) as (daemon, engine):
            await until(lambda: any("needs more than 2 s" in each.text for each in daemon.journal.events))
            asked_before = len(engine.journal)
            await asyncio.sleep(LONG_S)
            return len(engine.journal) - asked_before

    assert run_virtually(run()) <= 2


def test_the_self_test_goes_on_where_calibrate_stopped() -> None:
    async def run() -> tuple[int, str]:
        async with simulated(stride=5) as (_, url):
            async with Prober() as prober:
                found, _ = await locate_server(url, prober)
            clock = asyncio.get_running_loop().time
            async with Client(found, clock=clock) as client:
                session = Session(client, replace(SMALL, cut_s=15.0), lambda step: None)
                outcome = await calibrate(session, None, PROFILE.host, "test")
            assert outcome.profile.continuation is None
            assert outcome.progress is not None
            storage = Kept(dict([outcome.progress]))
            async with self_tested(url, storage) as daemon:
                await until(lambda: "tried" in said(daemon))
                return outcome.profile.continuations[0].trials, said(daemon)

    trials, first = run_virtually(run())
    assert trials > 0
    assert f": {trials} of " in first


@pytest.mark.parametrize(
    "settings",
    [
        {"backends": BackendConfig("a", "http://x", kind="other")},
        {"backends": BackendConfig("a", "http://x", key_file="KEY")},
        {"loaded": False},
    ],
    ids=["unknown kind", "API key", "no model loaded"],
)
def test_no_self_test_where_it_may_cost_money_or_load_a_model(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    key = secret(tmp_path / "key", "secret")
    wanted = settings.get("backends")
    if isinstance(wanted, BackendConfig) and wanted.key_file:
        settings = {"backends": replace(wanted, key_file=key)}

    async def run() -> int:
        async with proxied(Kept(), **settings) as (daemon, engine):
            await asyncio.sleep(LONG_S)
            assert said(daemon) == ""
            return len(engine.journal)

    assert run_virtually(run()) == 0


def test_operator_may_allow_the_self_test() -> None:
    async def run() -> None:
        allowed = BackendConfig("a", "http://x", kind="other", self_test=True)
        async with proxied(Kept(), backends=allowed) as (daemon, _):
            await asked(daemon)  # it does not list what is loaded
            await until(lambda: "of 24" in said(daemon))

    run_virtually(run())


def test_self_test_waits_while_on_battery(monkeypatch: pytest.MonkeyPatch) -> None:
    battery = SimpleNamespace(power_plugged=False)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery)

    async def run() -> int:
        async with proxied(Kept()) as (daemon, engine):
            await until(lambda: "mains power" in said(daemon))
            await asyncio.sleep(60.0)
            before = len(engine.journal)
            battery.power_plugged = True
            await until(lambda: engine.journal)
            return before

    assert run_virtually(run()) == 0


def test_it_runs_where_the_system_does_not_show_batteries(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise FileNotFoundError("/sys/class/power_supply")

    monkeypatch.setattr(psutil, "sensors_battery", missing)

    async def run() -> None:
        async with proxied(Kept()) as (_, engine):
            await until(lambda: engine.journal)

    run_virtually(run())


@pytest.mark.parametrize("keeps", [False, True])
def test_a_conversation_that_takes_long_to_read_again_is_not_evicted(keeps: bool) -> None:
    async def run() -> None:
        async with proxied(Kept()) as (daemon, engine):
            await asked(daemon, "word " * 3000)
            with_it = len(engine.journal)
            if keeps:
                [server] = daemon.dispatcher.scheduler.fleet.servers.values()
                server.cache.size = (1.0, inf)  # it was seen to keep what the slots did not
                await until(lambda: len(engine.journal) > with_it)
            else:
                await until(lambda: "evict a session's KV cache" in said(daemon))
                await asyncio.sleep(60.0)
                assert len(engine.journal) == with_it

    run_virtually(run())


def test_proof_is_added_to_the_existing_profile(tmp_path: Path) -> None:
    db = keep(tmp_path / "c.db", (), replace(PROFILE, host=this_host()))
    ledger = Ledger(db)
    try:
        ledger.keep(replace(PROFILE, took_s=5.0))
        ledger.keep(replace(PROFILE, measured_at=PROFILE.measured_at + 1))
    finally:
        ledger.close()
    with reading(db) as connection:
        newest, oldest = every(connection)
    assert (oldest.name, oldest.took_s) == (PROFILE.name, 5.0)
    assert (newest.name, newest.host) == (f"{PROFILE.name}-2", this_host())


@pytest.mark.parametrize("left_s", [1.0, 60.0])
def test_a_model_is_not_kept_loaded_by_the_test(left_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unloads_in_s(self: Any, ask: Any, model: str) -> float:
        return left_s

    monkeypatch.setattr(Ollama, "unloads_in_s", unloads_in_s)
    sent: list[Any] = []
    asked = asyncio.Event()
    build = Client.body

    def body(self: Client, *args: Any, **kwargs: Any) -> Any:
        sent.append(build(self, *args, **kwargs))
        asked.set()
        return sent[-1]

    monkeypatch.setattr(Client, "body", body)

    async def run() -> None:
        async with proxied(Kept()), asyncio.timeout(LONG_S):
            await asyncio.sleep(3 * IDLE_S)
            if left_s > PIECE_S:
                await asked.wait()  # a thread may take real time, in which virtual time passes

    run_virtually(run())
    assert {each["keep_alive"] for each in sent} == ({58} if left_s > PIECE_S else set())
