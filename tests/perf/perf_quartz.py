"""QUARTZ's ablation through real daemons in virtual time, beside the simulator's; and routing at 2, 8 and 64
workers in the simulator. Both are written as a page:

python -m tests.perf.perf_quartz [--requests 400] [--jobs 10000] --out docs/bench/quartz.md
"""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.simulator.comparison import UNBOUNDED
from clairvoyant_lab.simulator.engine import Route, SlotSimulation
from clairvoyant_lab.simulator.workload import (
    Floats,
    Predictions,
    TwoNormals,
    Workload,
    noisy_class,
    oracle,
    poisson,
)
from clairvoyant_lab.virtual_time import run_virtually

import tests.fakes.replay_dialects  # noqa: F401 - adds routes
from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.proxy.access.clients import parse_clients
from clairvoyant_cli.proxy.daemon import Daemon, running_daemon
from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
from clairvoyant_cli.scheduler.policy import POLICIES, Policy
from clairvoyant_cli.scheduler.quantile_coverage import Coverage
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import Prediction, Predictor, PromptView
from tests.fakes.replay_backend import Engine, Replay, Speed
from tests.perf import quartz_ablation as quartz
from tests.perf.quartz_ablation import (
    EVERY,
    LOAD,
    SHIFTS,
    VARIANTS,
    WORKERS,
    Traffic,
    Variant,
)

TOKENS_PER_S = 1000.0
"""An answer token stands for a millisecond of prefill, which is all that the paper's workers do."""

SHOWN = (
    "fifo-ll", "fifo-p2c", "token-fair", "point-pred", "routing-only", "queueing-only", "no calibration",
    "no fairness", "no locality", "quartz", "quartz, bound late", "oracle",
)  # fmt: skip
SIZES = (2, 8, 64)
RHO = 0.85
SEEDS = 1


class Uncorrected(Coverage):
    """Quantiles as they are predicted."""

    def corrected(self, regime: str, quantile: float) -> float:
        """Return the quantile itself."""
        return quantile

    def learn(self, regime: str, corrected: float, actual: float) -> None:
        """Take note of nothing."""


@dataclass
class Told(Predictor):
    """A predictor that is told what each request, known by its number, is believed to take."""

    expected_s: Floats
    high_s: Floats
    regime: Sequence[int]
    name: str = "told"

    def predict(self, view: PromptView, opinion: object = None) -> Prediction:
        """Return what is believed; the class stands for the regime of the corrections."""
        number = int(view.prompt)
        short, medium, long = (float(self.regime[number] == regime) for regime in range(3))
        tokens, high = (float(each[number]) * TOKENS_PER_S for each in (self.expected_s, self.high_s))
        return Prediction(short, medium, long, 0.0, tokens, high, self.name)

    def learn(self, prediction: Prediction, tokens: int) -> None:
        """Learn nothing."""


def believed(variant: Variant, seen: Traffic) -> tuple[Floats, Floats, bool]:
    """Return what a variant expects, its quantile, and whether that is corrected online."""
    spread = quartz.SPREAD
    raw_s = quartz.raw_quantile(seen).q_s
    expected_s = {"truth": seen.workload.service_s, "blind": seen.blind_s}.get(
        variant.believes, seen.expected_s
    )
    high_s = {
        "point": seen.expected_s,
        "blind": seen.blind_s * np.exp(1.21 * spread.mean()),
        "truth": seen.workload.service_s,
    }.get(variant.believes, raw_s)
    return expected_s, high_s, variant.believes in ("calibrated", "blind")


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of each request: seconds to its first token, seconds it waited for a slot, and whether the
    quantile that it was routed and ordered by held.
    """

    ttft_s: Floats
    wait_s: Floats
    covered: npt.NDArray[np.bool_]


FRONT_END = '[clients.bench]\nkey = "key-of-the-bench"\nusers = "X-User"\n'
"""Whose users are clients of their own."""


async def through_daemon(variant: Variant, seen: Traffic) -> Heard:
    """Send the traffic through a daemon before four simulated servers."""
    clock = asyncio.get_running_loop().time
    expected_s, high_s, corrects = believed(variant, seen)
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serve_app(_server().app)) for _ in WORKERS]
        servers = tuple(
            BackendConfig(name=name, url=url, kind="ollama", slots=1)
            for name, url in zip(WORKERS, urls, strict=True)
        )
        config = ServeConfig(backends=servers, listen="127.0.0.1:0", queue_capacity=1 << 20, tau=0.0)
        told = Told(expected_s, high_s, seen.reuse_class.tolist())
        daemon = await stack.enter_async_context(running_daemon(config, told, clock=clock))
        while any(each.state != "up" for each in daemon.pool):  # noqa: ASYNC110 - of virtual time
            await asyncio.sleep(0.1)
        daemon.access.clients = parse_clients(FRONT_END, "")
        _as_in_the_paper(daemon, variant, corrects=corrects)
        limits = httpx.Limits(max_connections=None)
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=daemon.base_url, timeout=None, limits=limits, trust_env=False)  # noqa: S113
        )
        took_s, wait_s = (np.zeros(len(expected_s)) for _ in range(2))
        covered = np.zeros(len(expected_s), np.bool_)

        def ended(exchange: Exchange, end: RequestEnd) -> None:
            view = exchange.asked.parsed.view
            assert view is not None
            number = int(view.prompt)
            wait_s[number] = exchange.waited_s(end.at_s)
            covered[number] = seen.workload.service_s[number] <= exchange.job.cost_high_s

        daemon.dispatcher.ended.append(ended)

        async def ask(number: int) -> None:
            begun_s = clock()
            tokens = max(1, round(float(seen.workload.service_s[number]) * TOKENS_PER_S))
            body = {
                "model": "replay",
                "prompt": str(number),
                "stream": False,
                "options": {"num_predict": tokens},
            }
            who = {"X-User": f"c{seen.workload.client[number]}", "X-Api-Key": "key-of-the-bench"}
            answer = await client.post("/api/generate", json=body, headers=who)
            answer.raise_for_status()
            took_s[number] = clock() - begun_s

        begun_s = clock()
        async with asyncio.TaskGroup() as group:
            for number, at_s in enumerate(seen.workload.arrival_s.tolist()):
                await asyncio.sleep(max(0.0, begun_s + at_s - clock()))
                group.create_task(ask(number))
    return Heard(took_s + quartz.FIRST_TOKEN_S, wait_s, covered)


def _server() -> Replay:
    speed = Speed(inf, TOKENS_PER_S)
    server = Replay(Engine(speed=speed, stride=1_000_000, answer_tokens=lambda prompt, rng: 1_000_000))
    server.loaded.add("replay:latest")
    return server


def _as_in_the_paper(daemon: Daemon, variant: Variant, *, corrects: bool) -> None:
    """Let speeds be known, and the variant order and route."""
    for worker in daemon.pool:
        speeds = worker.speeds
        speeds.decode_tokens_per_s, speeds.prefill_tokens_per_s, speeds.frozen = TOKENS_PER_S, 1e6, True
    scheduler = daemon.dispatcher.scheduler
    if not corrects:
        daemon.gateway.admission.factory.times.coverage = daemon.operation.coverage = Uncorrected()
    scheduler.set_policy(quartz.ordering(variant), daemon.stats.journal.clock())


def simulated(variant: Variant, seen: Traffic) -> Heard:
    """Have the simulator serve the traffic."""
    found, held = quartz.run(variant, seen), quartz.quantiles_of(variant, seen).q_s
    return Heard(quartz.ttft_s(found), found.wait_s, seen.workload.service_s <= held)


def figures(heard: Heard, seen: Traffic) -> tuple[float, ...]:
    """Return P95 and P99 of the time to first token, the share that misses the objective of its class,
    fairness among clients, and the longest wait.
    """
    p95_s, p99_s = (float(np.percentile(heard.ttft_s, each)) for each in (95, 99))
    missed = quartz.violations(heard.ttft_s, seen.workload)
    fairness = quartz.fairness_index(heard.ttft_s, seen.workload)
    return p95_s, p99_s, missed, fairness, float(heard.wait_s.max())


def ablation(requests: int) -> list[str]:
    """Return the table of the ablation."""
    kinds = ("P95 TTFT", "P99", "SLO missed", "Jain", "longest wait")
    heads = [f"{of}: {kinds[0]} | {' | '.join(kinds[1:])}" for of in ("daemon", "simulator", "paper")]
    rows = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * 3 * len(kinds)]
    seen = _traffic(requests, "nominal")
    for variant in VARIANTS:
        if variant.name in SHOWN:
            live, again = _both(variant, seen)
            paper = quartz.PAPER.get(variant.name, (None,) * len(kinds))
            each = (figures(live, seen), figures(again, seen), paper)
            cells = [_cell(value, n) for values in each for n, value in enumerate(values)]
            rows.append(f"| {variant.name} | {' | '.join(cells)} |")
    return rows


def under_shifts(requests: int) -> list[str]:
    """Return the table of the requests that meet their objective as the traffic changes."""
    rows = ["| | " + " | ".join(f"{regime}: daemon | simulator | paper" for regime in SHIFTS) + " |"]
    rows.append("|---|" + "---|" * 3 * len(SHIFTS))
    seen = {regime: _traffic(requests, regime) for regime in SHIFTS}
    for variant in VARIANTS:
        if variant.name in quartz.PAPER_SUCCESS:
            cells = []
            for number, traffic in enumerate(seen.values()):
                both = _both(variant, traffic)
                met = [1.0 - quartz.violations(each.ttft_s, traffic.workload) for each in both]
                cells += [f"{each:.1%}" for each in (*met, quartz.PAPER_SUCCESS[variant.name][number])]
            rows.append(f"| {variant.name} | {' | '.join(cells)} |")
    return rows


def coverage(requests: int) -> list[str]:
    """Return the table of the requests that took no longer than the 0.95 quantile said."""
    rows = ["| | raw: daemon | simulator | paper | calibrated: daemon | simulator | paper |"]
    rows.append("|---|" + "---|" * 6)
    states = [next(each for each in VARIANTS if each.name == name) for name in ("no calibration", "quartz")]
    for regime, stated in quartz.PAPER_COVERAGE.items():
        seen, cells = _traffic(requests, regime), []
        for variant, paper in zip(states, stated, strict=True):
            held = [float(each.covered.mean()) for each in _both(variant, seen)]
            cells += [f"{each:.1%}" for each in (*held, paper)]
        rows.append(f"| {regime} | {' | '.join(cells)} |")
    return rows


def _traffic(requests: int, regime: str) -> Traffic:
    return quartz.traffic(np.random.default_rng((0, 0)), requests, LOAD, SHIFTS[regime])


def _both(variant: Variant, seen: Traffic) -> tuple[Heard, Heard]:
    sys.stderr.write(f"{variant.name}\n")
    return run_virtually(through_daemon(variant, seen)), simulated(variant, seen)


def _cell(value: float | None, column: int) -> str:
    if value is None:
        return ""
    return {2: f"{value:.1%}", 3: f"{value:.3f}"}.get(column, f"{value:.2f} s")


def shortest_queue(scheduler: Scheduler) -> Route:
    """Return what pins each request, as it comes, to the worker that has the fewest."""

    def route(number: int, now: float, scheduler: Scheduler) -> str:
        has = {name: len(station.running) for name, station in scheduler.fleet.stations.items()}
        for entry in scheduler.waiting():
            has[entry.job.worker] += 1
        return min(has, key=lambda name: has[name])

    return route


def routing(jobs: int) -> list[str]:
    """Return the table of the ways to route at several numbers of workers."""
    ways: dict[str, tuple[Policy, bool, Callable[[Scheduler], Route] | None]] = {
        "arrival order, join the shortest queue": (POLICIES["fcfs"], False, shortest_queue),
        "arrival order, power of two choices by work": (replace(POLICIES["fcfs"], candidates=2), False, None),
        "arrival order, least work": (replace(POLICIES["fcfs"], candidates=EVERY), False, None),
        "`quartz`": (POLICIES["quartz"], False, None),
        "`quartz`'s order, bound late": (replace(POLICIES["quartz"], candidates=None), False, None),
        "`bounded`, bound late (the default)": (POLICIES["bounded"], False, None),
        "oracle: shortest first, bound late": (POLICIES["oracle"], True, None),
    }
    rows = ["| | " + " | ".join(f"{n} workers: mean | P95 | P99" for n in SIZES) + " |"]
    rows.append("|---|" + "---|" * 3 * len(SIZES))
    for name, (policy, knows, router) in ways.items():
        sys.stderr.write(f"{name}\n")
        cells = []
        for size in SIZES:
            runs = [sojourn_s(policy, size, jobs, seed, router, knows=knows) for seed in range(SEEDS)]
            found = (
                [float(s.mean()) for s in runs],
                *([float(np.percentile(s, q)) for s in runs] for q in (95, 99)),
            )
            cells += [f"{float(np.mean(each)):.2f} s" for each in found]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def sojourn_s(
    policy: Policy,
    size: int,
    jobs: int,
    seed: int,
    router: Callable[[Scheduler], Route] | None,
    *,
    knows: bool,
) -> Floats:
    """Return the sojourns of so many jobs of the paper's two classes, told apart with 85 % accuracy."""
    service = TwoNormals()
    workload: Workload = poisson(np.random.default_rng(seed), jobs, RHO * size / service.mean_s, service)
    told: Predictions = oracle(workload)
    if not knows:
        told = noisy_class(
            np.random.default_rng(seed), workload, 0.85, service.short_mean_s, service.long_mean_s
        )
    workers = {f"w{n}": 1 for n in range(size)}
    scheduler = Scheduler(policy, workers=workers, tau_s=35.0, capacity=UNBOUNDED)
    route = None if router is None else router(scheduler)
    return SlotSimulation(scheduler, workload, told, route=route).run().sojourn_s


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    command = (
        f"python -m tests.perf.perf_quartz --requests {given.requests} --jobs {given.jobs} --out {given.out}"
    )
    page = PAGE.format(
        command=command,
        requests=given.requests,
        jobs=given.jobs,
        ablation="\n".join(ablation(given.requests)),
        shifts="\n".join(under_shifts(given.requests)),
        coverage="\n".join(coverage(given.requests)),
        routing="\n".join(routing(given.jobs)),
        load=LOAD,
        rho=RHO,
        seeds=SEEDS,
    )
    given.out.write_text(page, encoding="utf-8")


PAGE = """# QUARTZ: quantiles, routing, late binding

Written by `{command}`. All of it is in virtual time.

## The paper's ablation

{requests} requests, mixed chat and RAG, at an offered load of {load:g} on four workers, through a daemon and its
sockets before four simulated servers; the simulator has the same requests, and the same scheduler decides. Lengths
of prompts, reuse and spread are assumed, as the paper gives none of them; its figures are of the 14B model (Tables
4, 5 and 8).

{ablation}

As the traffic changes, the share of requests whose first token comes in time (Table 7):

{shifts}

The share of requests that took no longer than their 0.95 quantile said (Table 6):

{coverage}

## Routing as it comes, or binding late

{jobs} jobs of the Clairvoyant paper's two classes at a utilisation of {rho:g}, short told from long with 85 %
accuracy, {seeds} seed; sojourns, in the simulator.

{routing}

With that accuracy the 0.9 quantile of every request is that of a long one, and ordering by it is ordering by
arrival: `quartz` needs a predictor that is surer than that. A scheduler that need not choose a worker before one is free
fares better than with the better of two as it comes, the more so the more workers there are.
"""  # noqa: E501

if __name__ == "__main__":
    main()
