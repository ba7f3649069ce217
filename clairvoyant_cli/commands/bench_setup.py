"""What `clairvoyant bench` puts together: a backend, one daemon before it, and the loads."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.chat_probe import Clock, client_for
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.commands.setup import database_path, load_predictor
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.research.bench.arms import Arm, Knowledge
from clairvoyant_cli.research.bench.demo_questions import Question
from clairvoyant_cli.research.bench.load import REPLAYED, Asker
from clairvoyant_cli.research.bench.oracle_predictor import OraclePredictor
from clairvoyant_cli.research.bench.plan import (
    Arrival,
    Draw,
    PaperAnswers,
    Plan,
    as_written,
    burst,
    poisson,
    replayed,
    without_repeats,
)
from clairvoyant_cli.research.bench.prompts import SHIPPED, load_prompts
from clairvoyant_cli.research.bench.results import Cell
from clairvoyant_cli.research.bench.session import DaemonWay, Load, solo
from clairvoyant_cli.research.simulator.traces import Trace, read_trace
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES
from clairvoyant_cli.state.actions import AUTO
from clairvoyant_cli.state.client import ControlClient
from predictor.record import LengthClass

if TYPE_CHECKING:
    from clairvoyant_cli.proxy.queue.exchange import End, Exchange
    from clairvoyant_cli.proxy.servers.server import Server
    from clairvoyant_cli.research.bench.simulated_cell import PredictedCost
    from clairvoyant_cli.research.replay import Engine
    from profiles.records import Profile

REPLAY = "replay"
"""The name of the embedded backend, in the place of an LLM server's."""

GAP_S = 0.001
"""Time between two questions of a burst, on the wire."""

VIRTUAL_STRIDE = 100
"""Tokens the simulated backend sends at once in virtual time; first and last keep their times."""

CUTTING_STRIDE = 5
"""The same where answers are cut: what was not sent yet is lost, a tenth of a second at the paper's speed."""

RESUME_S = 0.01
"""What the simulated backend takes to go on with an answer: as llama.cpp and Ollama do where its beginning is
still in the cache."""

SOLO = 3
"""Questions of each class that are asked alone to learn what service takes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a bench was asked to measure; two benches with equal settings measure the same."""

    kind: str
    arms: tuple[str, ...]
    runs: int
    requests: int
    seed: int = 0
    backend: str | None = None
    daemon: str | None = None
    model: str | None = None
    rhos: tuple[float, ...] = ()
    trace: str | None = None
    prompts: str | None = None
    predictor: str | None = None
    slots: int | None = None
    speedup: float = 1.0
    set_lengths: bool = False
    virtual_time: bool = False


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench put together. `about` says what is behind the proxy, for the report; `resume_s` what it takes
    the server to go on with an answer that was cut, in seconds of the model's time: None if nothing proves
    that it does, or another daemon keeps the proof.
    """

    way: DaemonWay
    asker: Asker
    oracle: OraclePredictor | None
    draw: Draw
    about: Mapping[str, str]
    resume_s: float | None
    slots: int
    seconds_per_token: float | None
    pools: Mapping[LengthClass, list[Question]]

    def learn(self, lengths: Mapping[str, int]) -> None:
        """Take note of real lengths, for the arms that may know them."""
        if self.oracle is not None and not self.asker.sets_length:
            self.oracle.lengths.update(lengths)


@dataclass(frozen=True, slots=True)
class Behind:
    """The server the bench is about, or one in its place: then `engine`, whose answers' times are drawn."""

    found: Found
    engine: "Engine | None" = None

    @property
    def drawn(self) -> bool:
        """Whether the answers' times are drawn."""
        return self.engine is not None


@asynccontextmanager
async def put_together(settings: Settings, backend_key_file: Path | None = None) -> AsyncIterator[Bench]:
    """Start what the bench needs, and stop it when the block ends."""
    from clairvoyant_cli.proxy.access.keys import read_backend_key

    pools = load_prompts(Path(settings.prompts) if settings.prompts else SHIPPED)
    key = read_backend_key(backend_key_file)
    async with AsyncExitStack() as stack:
        if settings.backend == REPLAY:
            behind = await stack.enter_async_context(_replay(settings))
        elif settings.daemon is not None:
            behind = await _behind_daemon(settings.daemon)
        else:
            behind = await _found(settings, key)
        found = behind.found
        if settings.set_lengths and not (behind.drawn or found.adapter.SETS_LENGTH):
            raise ClairvoyantError(
                f"{found.adapter.title} cannot be told how long to answer; "
                "measure real answers with --real-lengths",
                ExitCode.USAGE,
            )
        direct = await stack.enter_async_context(client_for(found.url, key))
        asker = await _asker(settings, found, key)
        # The paper's service times are drawn by class; everywhere else a prompt has one length.
        paper = PaperAnswers(pools)
        draw = paper if behind.drawn else as_written(pools)
        typical = _typical(paper if behind.drawn else None, pools)
        oracle = None
        if settings.daemon is None:
            oracle = OraclePredictor(
                load_predictor(settings.predictor),
                classes={q.prompt: kind for kind, pool in pools.items() for q in pool},
                typical_tokens=typical,
            )
        ours = _Ours(settings.daemon or "", found.slots or 1)
        if oracle is not None:
            ours = await _daemon(stack, settings, behind, oracle, asker.model, backend_key_file)
        control = await stack.enter_async_context(ControlClient(ours.base_url))
        before = await control.snapshot()
        way = DaemonWay(
            control,
            await stack.enter_async_context(client_for(ours.base_url)),
            direct,
            ours.teach,
            before.tau.tau_s,
            settings.speedup,
            ours.busy_s,
        )
        about = {
            "backend": _title(behind, settings),
            "model": asker.model,
            "slots": str(ours.slots),
            "predictor": before.predictor.name,
        }
        per_token = 1 / paper.tokens_per_s if behind.drawn else None
        try:
            resume_s = None if ours.resume_s is None else ours.resume_s * settings.speedup
            yield Bench(way, asker, oracle, draw, about, resume_s, ours.slots, per_token, pools)
        finally:
            if settings.daemon is not None:
                await control.act("policy", {"policy": before.policy})
                chosen = before.tau.source == "operator"
                await control.act("tau", {"tau_s": (before.tau.tau_s or 0) if chosen else AUTO})


def _typical(
    paper: PaperAnswers | None, pools: Mapping[LengthClass, list[Question]]
) -> dict[LengthClass, float]:
    if paper is None:
        return {kind: fmean(q.tokens for q in pool) for kind, pool in pools.items() if pool}
    rate, service = paper.tokens_per_s, paper.service
    return {
        LengthClass.SHORT: service.short_mean_s * rate,
        LengthClass.LONG: service.long_mean_s * rate,
    }


def _title(behind: Behind, settings: Settings) -> str:
    if behind.drawn:
        pace = "virtual time" if settings.virtual_time else f"{settings.speedup:g} times as fast"
        return f"simulated, the paper's service times, {pace}"
    return f"{behind.found.adapter.name} {behind.found.version}".rstrip()


@asynccontextmanager
async def _replay(settings: Settings) -> AsyncIterator[Behind]:
    from clairvoyant_cli.research.bench.asgi_server import serve_app
    from clairvoyant_cli.research.replay import Engine, Replay, Speed

    speed = Speed(inf, PaperAnswers({}).tokens_per_s * settings.speedup)
    slots = settings.slots or 1
    # Every answer is as long as its request allows: the cap sets the length, and no prediction sees it.
    # Nobody looks at single tokens in virtual time, and each would be an event.
    stride = VIRTUAL_STRIDE if settings.virtual_time else 1
    engine = Engine(slots=slots, speed=speed, stride=stride, answer_tokens=lambda prompt, rng: 1_000_000)
    engine.resume_s = RESUME_S / settings.speedup
    async with serve_app(Replay(engine).app) as url:
        yield Behind(Found(REPLAYED, url, slots=slots), engine)


async def _behind_daemon(url: str) -> Behind:
    async with ControlClient(url) as control:
        backend = (await control.snapshot()).backends[0]
    return Behind(Found(adapter_of(backend.kind), backend.url, "", backend.version, backend.slots))


async def _found(settings: Settings, key: str | None) -> Behind:
    from clairvoyant_cli.backends.discovery import find_backend

    async with Prober(key) as prober:
        found, answering = await find_backend(settings.backend, prober, listen_port=0)
    if not answering:
        raise ClairvoyantError(
            f"no {found.adapter.name} answers at {found.url}; start it, name another with --backend, "
            "or try --backend replay",
            ExitCode.UNREACHABLE,
        )
    return Behind(found)


async def _asker(settings: Settings, found: Found, key: str | None) -> Asker:
    model = settings.model
    if model is None:
        async with Prober(key) as prober:
            offered = await found.adapter.offered_models(prober.asking(found.url, found.prefix))
        if not offered:
            raise ClairvoyantError(
                f"{found.adapter.title} at {found.url} names no model; name one with --model"
            )
        model = offered[0].name
    return Asker(model, found.adapter, settings.set_lengths, found.prefix, _clock_of(settings))


def _clock_of(settings: Settings) -> Clock:
    return asyncio.get_running_loop().time if settings.virtual_time else time.monotonic


@dataclass(frozen=True, slots=True)
class _Ours:
    """The daemon that is measured, and what one of our own can be told and asked past its control API."""

    base_url: str
    slots: int
    teach: Callable[[Arm], None] | None = None
    busy_s: Callable[[], float | None] = lambda: None
    resume_s: float | None = None


async def _daemon(
    stack: AsyncExitStack,
    settings: Settings,
    behind: Behind,
    oracle: OraclePredictor,
    model: str,
    backend_key_file: Path | None,
) -> _Ours:
    from clairvoyant_cli.config import ServeConfig
    from clairvoyant_cli.proxy.daemon import running_daemon

    found = behind.found
    config = ServeConfig(
        backend=found.base_url,
        listen="127.0.0.1:0",
        slots=settings.slots,
        queue_capacity=100_000,
        backend_key_file=str(backend_key_file) if backend_key_file else None,
    )
    daemon = await stack.enter_async_context(running_daemon(config, oracle, clock=_clock_of(settings)))
    scheduler = daemon.dispatcher.scheduler
    worker = daemon.pool.first
    worker.profiles = await _profiles(behind, worker, model)
    await worker.see_settings()
    proven = worker.continuation_of(model)
    busy = [0.0]

    def note(exchange: "Exchange", end: "End") -> None:
        busy[0] += exchange.service_s(end.at_s)

    daemon.dispatcher.ended.append(note)

    def teach(arm: Arm) -> None:
        oracle.knowledge, oracle.accuracy = arm.knowledge, arm.accuracy
        if behind.engine is not None and settings.virtual_time:
            behind.engine.stride = CUTTING_STRIDE if arm.interrupts else VIRTUAL_STRIDE
        scheduler.set_policy(POLICIES[arm.policy or DEFAULT_POLICY], daemon.stats.journal.clock())

    resume_s = None if proven is None else proven.proof.resume_s

    def busy_s() -> float | None:
        return None if daemon.pool.stamped else busy[0]  # what is in an engine is not known to run

    return _Ours(daemon.base_url, daemon.pool.at_once, teach, busy_s, resume_s)


async def _profiles(behind: Behind, worker: "Server", model: str) -> "list[Profile]":
    """Return what proves how the server goes on with an answer that was cut."""
    from clairvoyant_cli.research.replay.proof import proven
    from profiles.database import ProfilesError, reading
    from profiles.host import this_host
    from profiles.records import Served, place_of
    from profiles.store import fitting

    found, engine = behind.found, behind.engine
    name, place = found.adapter.name, place_of(found.base_url)
    if engine is not None:
        offered = await found.adapter.offered_models(worker.ask) or ()
        digest = next((each.digest for each in offered if each.name == model), "")
        served = Served(name, model, version=worker.version, digest=digest)
        settings = await found.adapter.settings(worker.ask, model, worker.version)
        fingerprint = "" if settings is None else settings.fingerprint
        return [proven(served, engine.resume_s or 0.0, engine.slots, fingerprint)]
    try:
        with reading(database_path(None)) as connection:
            return fitting(connection, host=this_host().key, backend=name, place=place, now_s=time.time())
    except ProfilesError:
        return []


# -- loads -----------------------------------------------------------------------------------------


async def mean_service_s(bench: Bench, settings: Settings) -> float:
    """Return the mean service time of the questions the bench draws, in seconds of the model's time.

    Known for the simulated backend; elsewhere measured, a few questions of each class asked alone, and scaled
    from the lengths that these came with to those of all.
    """
    if isinstance(bench.draw, PaperAnswers):
        return bench.draw.service.mean_s
    rng = Random(f"{settings.seed}:solo")  # noqa: S311 - repeatable, keeps no secret
    kinds = (LengthClass.SHORT, LengthClass.LONG)
    calls = await solo(
        bench.way.direct,
        bench.asker,
        tuple(Arrival(0.0, bench.draw(kind, rng)) for _ in range(SOLO) for kind in kinds),
    )
    took_s = sum(call.sojourn_s or 0.0 for call in calls)
    tokens = sum(call.question.tokens for call in calls)
    return took_s / tokens * fmean(fmean(q.tokens for q in bench.pools[kind]) for kind in kinds)


async def warm_up(bench: Bench, arm: Arm) -> None:
    """Ask a question of each class: then the model is loaded, and the daemon knows the backend's speed."""
    rng = Random(0)  # noqa: S311 - repeatable, keeps no secret
    plan = tuple(Arrival(0.0, bench.draw(kind, rng)) for kind in (LengthClass.SHORT, LengthClass.LONG))
    plain = replace(arm, knowledge=Knowledge.PREDICTED)
    await solo(await bench.way.take(plain), bench.asker, plan)


def loads_of(bench: Bench, settings: Settings, service_s: float) -> list[Load]:
    """Return the loads of a bench; `service_s` is the mean service time of one question."""
    if settings.kind == "burst":
        return [Load("burst", partial(_burst, bench, settings))]
    if settings.kind in ("poisson", "sweep"):
        rates = {rho: rho * bench.slots / service_s for rho in settings.rhos}
        return [Load(f"rho {rho:g}", partial(_poisson, bench, settings, rate)) for rho, rate in rates.items()]
    assert settings.trace is not None  # noqa: S101 - the command demands one
    recorded = read_trace(Path(settings.trace), settings.requests)
    per_token = bench.seconds_per_token
    if per_token is None:
        per_token = service_s / fmean(fmean(q.tokens for q in pool) for pool in bench.pools.values() if pool)
    work_s = float(recorded.tokens.sum()) * per_token
    span_s = max(float(recorded.arrival_s[-1]), 1e-6)
    stretches = {f"trace at rho {rho:g}": work_s / (rho * bench.slots * span_s) for rho in settings.rhos}
    return [
        Load(name, partial(_trace, bench, settings, recorded, stretch))
        for name, stretch in (stretches or {"trace": 1.0}).items()
    ]


def simulated_cells(
    bench: Bench, cells: Sequence[Cell], loads: Sequence[Load], arms: Sequence[Arm], service_s: float
) -> list[Cell]:
    """Return what the simulator makes of each cell; none where the predictor is somebody else's."""
    from clairvoyant_cli.research.bench.simulated_cell import simulated

    if bench.oracle is None:
        return []
    per_token = bench.seconds_per_token
    if per_token is None:
        per_token = service_s / fmean(a.tokens for cell in cells for a in cell.answers if a.tokens)
    plans = {(load.name, cell.run): load.plan(cell.run) for load in loads for cell in cells}
    by_name = {arm.name: arm for arm in arms}
    return [
        simulated(
            cell,
            arm,
            _predicted(bench, arm, plans[cell.load, cell.run]),
            seconds_per_token=per_token,
            slots=bench.slots,
            tau_s=(bench.way.tau_s or 0) * bench.way.speedup if arm.tau_s is None else arm.tau_s,
            resume_s=bench.resume_s,
        )
        for cell in cells
        if (arm := by_name[cell.arm]).policy is not None
    ]


def _predicted(bench: Bench, arm: Arm, plan: Plan) -> "list[PredictedCost]":
    from clairvoyant_cli.backends.speeds import Speeds
    from clairvoyant_cli.protocols.request_parsing import parse_body
    from clairvoyant_cli.research.bench.simulated_cell import PredictedCost

    assert bench.oracle is not None  # noqa: S101 - the caller looked
    bench.oracle.knowledge, bench.oracle.accuracy = arm.knowledge, arm.accuracy
    asker = bench.asker
    route = asker.adapter.route_of(b"POST", asker.adapter.chat_path)
    predictions = []
    for arrival in plan:
        question = arrival.question
        parsed = parse_body(msgspec.json.encode(asker.body(question)), route, asker.adapter)
        assert parsed.view is not None  # noqa: S101 - the bench writes bodies that can be read
        prefill_s = Speeds().seconds(parsed.prompt_tokens, 0.0)
        predictions.append(PredictedCost(bench.oracle.predict(parsed.view), prefill_s))
    return predictions


def _burst(bench: Bench, settings: Settings, run: int) -> Plan:
    draw = without_repeats(bench.draw, bench.pools)
    gap_s = GAP_S * settings.speedup
    return burst(settings.requests, gap_s, draw, _seeded(settings, "burst", run))


def _poisson(bench: Bench, settings: Settings, rate_per_s: float, run: int) -> Plan:
    draw = without_repeats(bench.draw, bench.pools)
    return poisson(settings.requests, rate_per_s, draw, _seeded(settings, "poisson", run))


def _trace(bench: Bench, settings: Settings, recorded: Trace, stretch: float, run: int) -> Plan:
    draw = without_repeats(bench.draw, bench.pools)
    return replayed(recorded, draw, stretch, _seeded(settings, "trace", run))


def _seeded(settings: Settings, name: str, run: int) -> Random:
    return Random(f"{settings.seed}:{name}:{run}")  # noqa: S311 - repeatable, keeps no secret
