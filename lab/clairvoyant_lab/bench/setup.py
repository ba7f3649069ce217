"""Sets up a bench (a backend, one daemon before it, the loads) and runs it.

Every arm gets the same questions at the same times, run by run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import NamedTuple

import httpx

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.chat_probe import Clock, client_for
from clairvoyant_cli.backends.discovery import locate_server
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.demo.questions import QUESTIONS
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.access.keys import read_backend_key
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.scheduler.policy import tau_from_setting
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.baselines import ALL_POLICIES
from clairvoyant_lab.bench.arms import Arm, Knowledge, OraclePredictor
from clairvoyant_lab.bench.asker import REPLAYED, SETS_LENGTH, Asker, Call, ask_alone, send_at
from clairvoyant_lab.bench.plan import (
    Draw,
    Load,
    PaperAnswers,
    Plan,
    as_written,
    burst,
    poisson,
    without_repeats,
)
from clairvoyant_lab.bench.prompts import Question, load_prompts
from clairvoyant_lab.bench.summary import Cell
from clairvoyant_lab.proof import proven
from clairvoyant_lab.replay import Engine, Replay, Speed
from predictor.record import LengthClass, Predictor
from profiles.records import Profile, Served

REPLAY = "replay"  # the name of the simulated backend
GAP_S = 0.001  # between two questions of a burst on the wire
VIRTUAL_STRIDE = 100  # tokens that it sends at once in virtual time; the first and last keep their times
CUTTING_STRIDE = 5  # the same where answers are cut, as unsent tokens are lost: 0.1 s at the paper's speed
RESUME_S = 0.01  # that it takes to resume an answer, as llama.cpp and Ollama do from their cache
ALONE = 3  # questions of each class that are asked alone to measure service times
CUTS = ("cuts", "resumes", "tokens read again")
BOTH = (LengthClass.SHORT, LengthClass.LONG)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a bench measures. `speedup` is how much faster than the paper's backend the simulated one is: all
    times are multiplied by it ("seconds of the model's time").
    """

    kind: str
    arms: tuple[str, ...]
    runs: int
    requests: int
    seed: int = 0
    backend: str | None = None
    model: str | None = None
    rhos: tuple[float, ...] = ()
    prompts: str | None = None
    predictor: str | None = None
    slots: int | None = None
    speedup: float = 1.0
    set_lengths: bool = False
    sampled: bool = False
    virtual_time: bool = False


def clock_of(virtual_time: bool) -> Clock:
    return asyncio.get_running_loop().time if virtual_time else time.monotonic


StoredProfiles = Callable[[Found], list[Profile]]
"""Returns the profiles that `clairvoyant calibrate` stored of a backend."""


@dataclass(slots=True)
class Bench:
    """A bench that is ready to run. `about` describes the backend. `resume_s` is what the server takes to
    resume a cut answer, in seconds of the model's time; None if nothing proves that it can.
    """

    settings: Settings
    daemon: Daemon
    oracle: OraclePredictor
    proxied: httpx.AsyncClient
    direct: httpx.AsyncClient
    asker: Asker
    pools: Mapping[LengthClass, list[Question]]
    engine: Engine | None
    resume_s: float | None = None
    about: Mapping[str, str] | None = None
    busy_s: float = 0.0
    own_tau_s: float | None = None

    def __post_init__(self) -> None:
        self.own_tau_s = self.daemon.snapshot().tau.tau_s
        self.daemon.keepers.functions.append(self.ended)

    def ended(self, of: Ended) -> None:
        self.busy_s += of.service_s

    @property
    def draw(self) -> Draw:
        """Draws a question: with the paper's service times on the simulated backend, else as written."""
        return as_written(self.pools) if self.engine is None else PaperAnswers(self.pools)

    def take(self, arm: Arm) -> httpx.AsyncClient:
        """Set the daemon to the arm, and return the client to send its questions with."""
        if arm.policy is None:
            return self.direct
        self.oracle.knowledge, self.oracle.accuracy = arm.knowledge, arm.accuracy
        if self.engine is not None and self.settings.virtual_time:
            self.engine.stride = CUTTING_STRIDE if arm.interrupts else VIRTUAL_STRIDE
        clock = self.daemon.journal.clock
        self.daemon.dispatcher.scheduler.set_policy(ALL_POLICIES[arm.policy], clock())
        tau_s = self.own_tau_s if arm.tau_s is None else arm.tau_s / self.settings.speedup
        self.daemon.operation.choose_tau(tau_from_setting(tau_s))
        return self.proxied

    def counted(self) -> dict[str, float]:
        """Return what the daemon has counted. "busy" is missing where requests queue in the server."""
        state = self.daemon.snapshot()
        counts = state.counters
        found = {
            "tau firings": float(state.tau.firings_total),
            "cuts": float(counts.cuts),
            "resumes": float(counts.resumes),
            "tokens read again": float(counts.recomputed_tokens),
        }
        return found if self.daemon.pool.stamped else found | {"busy": self.busy_s * self.settings.speedup}

    async def warm_up(self, arm: Arm) -> None:
        """Ask a question of each class: it loads the model, and the daemon measures the backend's speed."""
        rng = Random(0)  # noqa: S311 - repeatable, keeps no secret
        client = self.take(replace(arm, knowledge=Knowledge.PREDICTED))
        await ask_alone(client, self.asker, [self.draw(kind, rng) for kind in BOTH])

    async def mean_service_s(self) -> float:
        """Return the mean service time of the questions, in seconds of the model's time.

        It is known for the simulated backend. Elsewhere a few questions of each class are asked alone, and
        their time is scaled to the lengths of all.
        """
        if isinstance(self.draw, PaperAnswers):
            return self.draw.service.mean_s
        rng = Random(f"{self.settings.seed}:solo")  # noqa: S311 - repeatable, keeps no secret
        questions = [self.draw(kind, rng) for _ in range(ALONE) for kind in BOTH]
        calls = await ask_alone(self.direct, self.asker, questions)
        took_s = sum(call.sojourn_s or 0.0 for call in calls)
        tokens = sum(question.tokens for question in questions)
        return took_s / tokens * fmean(fmean(q.tokens for q in self.pools[kind]) for kind in BOTH)

    def loads(self, service_s: float) -> list[Load]:
        """Return the loads; `service_s` is the mean service time of a question."""
        settings = self.settings

        def plan_of(run: int, rho: float | None) -> Plan:
            rng = Random(f"{settings.seed}:{settings.kind}:{run}")  # noqa: S311 - repeatable, keeps no secret
            draw = without_repeats(self.draw, self.pools)
            if rho is None:
                return burst(settings.requests, GAP_S * settings.speedup, draw, rng)
            at_once = settings.slots or self.daemon.pool.at_once
            return poisson(settings.requests, rho * at_once / service_s, draw, rng)

        if settings.kind == "burst":
            return [Load("burst", partial(plan_of, rho=None))]
        return [Load(f"rho {rho:g}", partial(plan_of, rho=rho)) for rho in settings.rhos]


@asynccontextmanager
async def set_up(
    settings: Settings, predictor: Predictor, stored: StoredProfiles, backend_key_file: Path | None = None
) -> AsyncIterator[Bench]:
    """Start the backend, if it is simulated, and the daemon, and stop them when the block ends."""
    pools = load_prompts(Path(settings.prompts) if settings.prompts else QUESTIONS)
    key = read_backend_key(backend_key_file)
    engine: Engine | None = None
    if settings.backend == REPLAY:
        engine = Engine(
            slots=settings.slots or 1,
            speed=Speed(inf, PaperAnswers({}).tokens_per_s * settings.speedup),
            stride=VIRTUAL_STRIDE if settings.virtual_time else 1,
            answer_tokens=unlimited,
            resume_s=RESUME_S / settings.speedup,
        )
    clock = clock_of(settings.virtual_time)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(backend(settings.backend, key, engine))
        if settings.set_lengths and engine is None and found.adapter.name not in SETS_LENGTH:
            raise ClairvoyantError(
                f"{found.adapter.title} cannot set the length of an answer; "
                "measure real answers with --real-lengths",
                ExitCode.USAGE,
            )
        direct = await stack.enter_async_context(client_for(found.url, key))
        model = settings.model or await first_model(found, key)
        asker = Asker(
            model,
            found.adapter,
            settings.set_lengths,
            found.prefix,
            clock,
            speedup=settings.speedup,
            greedy=not settings.sampled,
        )
        classes = {question.prompt: kind for kind, pool in pools.items() for question in pool}
        typical = {kind: fmean(q.tokens for q in pool) for kind, pool in pools.items() if pool}
        if engine is not None:
            paper = PaperAnswers(pools)
            means_s = (paper.service.short_mean_s, paper.service.long_mean_s)
            typical = {kind: s * paper.tokens_per_s for kind, s in zip(BOTH, means_s, strict=True)}
        oracle = OraclePredictor(predictor, classes, typical)
        # A router gets all requests at once; the slots are those of its workers.
        routes = found.adapter.PRIORITY is not None and bool(found.adapter.PRIORITY.headers)
        config = ServeConfig(
            backend=found.base_url,
            listen="127.0.0.1:0",
            slots=None if routes else settings.slots,
            queue_capacity=100_000,
            backend_key_file=str(backend_key_file) if backend_key_file else None,
        )
        daemon = await stack.enter_async_context(running_daemon(config, oracle, clock=clock))
        proxied = await stack.enter_async_context(client_for(daemon.base_url))
        bench = Bench(settings, daemon, oracle, proxied, direct, asker, pools, engine)
        server = daemon.pool.first
        server.profiles = stored(found) if engine is None else [await _profile(bench, engine, found)]
        await server.see_settings()
        proof = server.continuation_of(model)
        bench.resume_s = None if proof is None else proof.proof.resume_s * settings.speedup
        pace = "virtual time" if settings.virtual_time else f"{settings.speedup:g} times as fast"
        title = f"{found.adapter.name} {found.version}".rstrip()
        bench.about = {
            "backend": title if engine is None else f"simulated, the paper's service times, {pace}",
            "model": model,
            "slots": str(daemon.pool.at_once),
            "predictor": daemon.snapshot().predictor.name,
        }
        yield bench


def unlimited(prompt: str, rng: Random) -> int:
    """Return an answer's length beyond any request's limit, which then sets it."""
    return 1_000_000


@asynccontextmanager
async def backend(wanted: str | None, key: str | None, engine: Engine | None) -> AsyncIterator[Found]:
    """Serve the simulated engine, or find the server of that name or address; ClairvoyantError if it does not
    answer.
    """
    if engine is not None:
        async with serve_app(Replay(engine).app) as url:
            yield Found(REPLAYED, url, slots=engine.slots)
        return
    async with Prober(key) as prober:
        found, answering = await locate_server(wanted, prober)
    if not answering:
        raise ClairvoyantError(
            f"nothing answers at {found.url}; start the server, name another with --backend, "
            "or try --backend replay",
            ExitCode.UNREACHABLE,
        )
    yield found


async def first_model(found: Found, key: str | None) -> str:
    """Return the first model that a server offers; ClairvoyantError if it names none."""
    async with Prober(key) as prober:
        offered = await found.adapter.offered_models(prober.asking(found.url, found.prefix))
    if not offered:
        raise ClairvoyantError(f"{found.adapter.title} at {found.url} names no model; name one with --model")
    return offered[0].name


async def _profile(bench: Bench, engine: Engine, found: Found) -> Profile:
    """Return a profile that proves how the simulated backend resumes answers."""
    server, model = bench.daemon.pool.first, bench.asker.model
    offered = await found.adapter.offered_models(server.ask) or ()
    digest = next((each.digest for each in offered if each.name == model), "")
    version = server.status.version
    settings = await found.adapter.settings(server.ask, model, version)
    served = Served(found.adapter.name, model, version=version, digest=digest)
    fingerprint = "" if settings is None else settings.fingerprint
    return proven(served, engine.resume_s or 0.0, engine.slots, fingerprint)


# -- running it ---------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A cell to measure."""

    load: Load
    run: int
    arm: Arm


async def run_steps(
    bench: Bench, steps: Sequence[Step], on_progress: Callable[[float, str], None]
) -> list[Cell]:
    """Measure the steps; `on_progress` gets the steps done and a description."""
    cells = []
    for done, step in enumerate(steps):
        name = f"run {step.run + 1}, {step.load.name}, {step.arm.name}"
        on_progress(done, name)

        def on_answer(share: float, done: int = done, name: str = name) -> None:
            on_progress(done + share, name)

        cells.append(await _measure(bench, step, on_answer))
    return cells


async def _measure(bench: Bench, step: Step, on_answer: Callable[[float], None]) -> Cell:
    load, run, arm = step
    client = bench.take(arm)
    plan = load.plan(run)
    calls = [Call(arrival.question) for arrival in plan]
    answered = count(1)
    before = bench.counted()
    at_s = [arrival.at_s for arrival in plan]
    await send_at(client, bench.asker, calls, at_s, lambda: on_answer(next(answered) / len(calls)))
    counts = {name: value - before[name] for name, value in bench.counted().items()}
    if not arm.interrupts:
        counts = {name: value for name, value in counts.items() if name not in CUTS}
    if arm.policy is None:
        counts.pop("busy", None)
    errors = [call.error for call in calls if call.error is not None]
    if len(errors) == len(calls):
        raise ClairvoyantError(f"all {len(calls)} requests of {arm.name} failed: {errors[0]}")
    if not bench.asker.sets_length:  # for the arms that may know real lengths
        bench.oracle.lengths |= {call.question.prompt: call.tokens for call in calls if call.error is None}
    return Cell(load.name, run, arm.name, tuple(calls), counts)


def steps_of(
    loads: Sequence[Load], arms: Sequence[Arm], runs: int, *, lengths_last: bool
) -> tuple[Step, ...]:
    """Return the cells in an order that favours no arm: each run begins with another one. With
    `lengths_last`, arms that know real lengths come last in a run: the others measure the lengths.
    """
    steps = []
    for run in range(runs):
        turned = [*arms[run % len(arms) :], *arms[: run % len(arms)]]
        if lengths_last:
            turned.sort(key=lambda arm: arm.knowledge is Knowledge.LENGTHS)
        steps += [Step(load, run, arm) for load in loads for arm in turned]
    return tuple(steps)
