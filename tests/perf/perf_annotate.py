"""What stamping is worth on a real engine, in the engine's own time: the tokens that it has written.

    python -m tests.perf.perf_annotate URL [--prompts FILE] [--rho 0.8] [--requests 120] [--scale 0.25]
                                           [--runs 1]

The engine (vLLM, `--scheduling-policy priority`) gets the same questions twice, directly and through a proxy
that stamps them. A question comes once so many tokens have been written since the one before, at random, and
its sojourn is counted in tokens: whatever else the machine does meanwhile slows nothing down. `--rho` is the
mean length over the mean distance. `--scale` shortens the answers, and what is predicted of them, by one
factor. The lengths are set by the requests' limits, which the predictor is not shown; nothing is learned but
the speed.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import fmean

import httpx
import msgspec
from clairvoyant_lab.bench.arms import OraclePredictor
from clairvoyant_lab.bench.plan import Plan, as_written, poisson, without_repeats

from clairvoyant_cli.backends.vllm import Vllm
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.demo.prompts import SHIPPED, Question, load_prompts
from clairvoyant_cli.proxy.daemon import running_daemon
from predictor import load
from predictor.record import LengthClass, Prediction, PromptView
from profiles.percentiles import percentile

BOTH = (LengthClass.SHORT, LengthClass.LONG)


@dataclass(slots=True)
class Scaled(OraclePredictor):
    """Predicts answers shorter by a factor."""

    scale: float = 1.0

    def predict(self, view: PromptView, opinion: object = None) -> Prediction:
        """Return the shipped prediction, scaled."""
        # Two arguments: a dataclass with slots is created again, and its methods do not know the new class.
        told = super(Scaled, self).predict(view)
        expected, quantile = told.expected_tokens * self.scale, told.q90_tokens * self.scale
        return replace(told, expected_tokens=expected, q90_tokens=quantile)


@dataclass
class TokenClock:
    """Tokens that the engine has written so far; while it has nothing to do, the next question's time."""

    now: float = 0.0
    in_flight: int = 0
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def move(self, tokens: int, ended: int = 0) -> None:
        """Take note of tokens, and of an answer that has ended."""
        async with self.moved:
            self.now += tokens
            self.in_flight -= ended
            self.moved.notify_all()

    async def reach(self, at: float) -> None:
        """Return at a time."""
        async with self.moved:
            await self.moved.wait_for(lambda: self.now >= at or not self.in_flight)
            self.now = max(self.now, at)
            self.in_flight += 1


@dataclass(slots=True)
class Taken:
    """What an answer took, in tokens that the engine wrote from its arrival to its first token and end."""

    kind: LengthClass
    first: float = 0.0
    sojourn: float = 0.0


async def ask(client: httpx.AsyncClient, model: str, question: Question, clock: TokenClock) -> Taken:
    """Put a question that has just come."""
    body = Vllm().chat_body(model, question.prompt, question.tokens, exact=True, greedy=True)
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    taken, came, seen = Taken(question.length_class), clock.now, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            tokens = msgspec.json.decode(line[6:])["usage"]["completion_tokens"]
            if tokens > seen:
                taken.first = taken.first or clock.now - came
                await clock.move(tokens - seen)
                seen = tokens
    taken.sojourn = clock.now - came
    await clock.move(0, ended=1)
    return taken


async def asked(url: str, plan: Plan) -> list[Taken]:
    """Put all questions of a plan; their times are in tokens."""
    clock = TokenClock()
    async with httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(None, connect=30.0)) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        async with asyncio.TaskGroup() as group:
            tasks = []
            for arrival in plan:
                await clock.reach(arrival.at_s)
                tasks.append(group.create_task(ask(client, model, arrival.question, clock)))
    return [task.result() for task in tasks]


def told(name: str, direct: Sequence[Taken], stamped: Sequence[Taken], kind: LengthClass) -> str:
    """Return a line of the table."""
    cells = []
    for what in ("sojourn", "first"):
        sides = [
            sorted(getattr(each, what) for each in side if each.kind is kind) for side in (direct, stamped)
        ]
        for share in (0.5, 0.95):
            before, after = (percentile(side, share) for side in sides)
            cells.append(f"{before:6.0f} {after:6.0f} {after / max(1.0, before) - 1:+5.0%}")
    return f"{name:16} {len(sides[0]):4}  " + "   ".join(cells)


async def main() -> None:
    """Measure, and print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("url")
    options.add_argument("--prompts", type=Path, default=SHIPPED)
    options.add_argument("--rho", type=float, default=0.8)
    options.add_argument("--requests", type=int, default=120)
    options.add_argument("--scale", type=float, default=0.25)
    options.add_argument("--runs", type=int, default=1)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()

    def scaled(question: Question, kind: LengthClass) -> Question:
        return replace(question, tokens=max(2, round(question.tokens * given.scale)), known_class=kind)

    pools = {
        kind: [scaled(each, kind) for each in pool] for kind, pool in load_prompts(given.prompts).items()
    }
    mean = fmean(fmean(each.tokens for each in pools[kind]) for kind in BOTH)
    direct: list[Taken] = []
    stamped: list[Taken] = []
    print(f"{mean:.0f} tokens a question; in tokens written meanwhile: direct, stamped, change", flush=True)
    print(f"{'':16}    n  sojourn P50            P95                    first token P50        P95")
    config = ServeConfig(backend=given.url, listen="127.0.0.1:0", annotate="on", queue_capacity=100_000)
    for run in range(given.runs):
        random = Random(given.seed + run)
        plan = poisson(given.requests, given.rho / mean, without_repeats(as_written(pools), pools), random)
        async with running_daemon(config, Scaled(load(None), scale=given.scale)) as daemon:
            ways = [(given.url, one := list[Taken]()), (daemon.base_url, other := list[Taken]())]
            for url, side in ways if run % 2 == 0 else ways[::-1]:
                side += await asked(url, plan)
            heeded = daemon.snapshots.snapshot().backends[0].heeded
        direct += one
        stamped += other
        for kind in BOTH:
            print(told(f"run {run + 1} {kind.value}", one, other, kind), flush=True)
        print(f"priority heeded: {'too few to say' if heeded is None else f'{heeded:.0%}'}", flush=True)
    for kind in BOTH:
        print(told(kind.value, direct, stamped, kind))


if __name__ == "__main__":
    asyncio.run(main())
