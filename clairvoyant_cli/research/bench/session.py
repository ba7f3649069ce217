"""A bench from beginning to end: every arm gets the same questions at the same times, run by run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, Protocol

import httpx

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.research.bench.arms import Arm, Knowledge
from clairvoyant_cli.research.bench.load import Asker, Call, send_at
from clairvoyant_cli.research.bench.plan import Plan
from clairvoyant_cli.research.bench.results import Answer, Cell, Ledger
from clairvoyant_cli.state.client import ControlClient


class Counted(NamedTuple):
    """What a daemon has counted so far. `busy_s` is how long its slots were held, None if it does not say."""

    tau_firings: int
    cuts: int
    resumes: int
    recomputed_tokens: int
    busy_s: float | None


class Way(Protocol):
    """The way of an arm's questions to the backend."""

    async def take(self, arm: Arm) -> httpx.AsyncClient:
        """Set everything up for the arm, and return the client to send its questions with."""
        ...

    async def counted(self) -> Counted:
        """Return what was counted so far."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """A load, by name, and what it asks in each run."""

    name: str
    plan: Callable[[int], Plan]


@dataclass(frozen=True, slots=True)
class Step:
    """A cell that is to be measured next."""

    load: Load
    run: int
    arm: Arm


@dataclass(slots=True)
class DaemonWay:
    """Through one daemon, whose policy and timeout are changed between the arms.

    `direct` goes past it. `teach` sets a daemon of our own to the arm's policy, and its predictor to what
    the arm may know; one that somebody else runs is only asked for its policies, through its control API.
    `speedup` divides the arms' timeouts; `busy_s` tells how long slots of a daemon of our own were held.
    """

    control: ControlClient
    proxied: httpx.AsyncClient
    direct: httpx.AsyncClient
    teach: Callable[[Arm], None] | None
    tau_s: float | None
    speedup: float = 1.0
    busy_s: Callable[[], float | None] = lambda: None

    async def take(self, arm: Arm) -> httpx.AsyncClient:
        """Set the daemon up for the arm."""
        if arm.policy is None:
            return self.direct
        if self.teach is not None:
            self.teach(arm)
        elif arm.knowledge is not Knowledge.PREDICTED:
            raise ClairvoyantError(f"a running daemon cannot be told {arm.knowledge}; leave {arm.name} out")
        else:
            await self.control.act("policy", {"policy": arm.policy})
        tau_s = self.tau_s if arm.tau_s is None else arm.tau_s / self.speedup
        await self.control.act("tau", {"tau_s": tau_s or 0})
        return self.proxied

    async def counted(self) -> Counted:
        """Ask the daemon."""
        state = await self.control.snapshot()
        counts = state.counters
        tau_firings = state.tau.firings_total
        return Counted(tau_firings, counts.cuts, counts.resumes, counts.recomputed_tokens, self.busy_s())


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being measured: a step after so many others, of whose questions so many are answered."""

    step: Step
    done: int
    answered: int
    of: int


@dataclass(slots=True)
class Session:
    """Runs what a ledger lacks. `learn` is told the real lengths, by prompt, after each cell."""

    way: Way
    asker: Asker
    ledger: Ledger
    speedup: float = 1.0
    learn: Callable[[Mapping[str, int]], None] = lambda lengths: None

    async def run(self, steps: Sequence[Step], on_progress: Callable[[Progress], None]) -> None:
        """Measure the steps that are not done yet, in their order; `on_progress` is told of each, and of each
        answer.
        """
        for done, step in enumerate(steps):
            if (step.load.name, step.run, step.arm.name) not in self.ledger.cells:
                self.ledger.add(await self._measure(step, done, on_progress))

    async def _measure(self, step: Step, done: int, on_progress: Callable[[Progress], None]) -> Cell:
        plan = step.load.plan(step.run)
        calls = [Call(arrival.question) for arrival in plan]
        client = await self.way.take(step.arm)
        before = await self.way.counted()
        begun_s, answered = self.asker.clock(), count(1)
        on_progress(Progress(step, done, 0, len(calls)))
        await send_at(
            client,
            self.asker,
            calls,
            [arrival.at_s / self.speedup for arrival in plan],
            lambda: on_progress(Progress(step, done, next(answered), len(calls))),
        )
        took_s = self.asker.clock() - begun_s
        after = await self.way.counted()
        errors = [call.error for call in calls if call.error is not None]
        if len(errors) == len(calls):
            raise ClairvoyantError(f"all {len(calls)} requests of {step.arm.name} failed: {errors[0]}")
        self.learn({call.question.prompt: call.tokens for call in calls if call.error is None})
        answers = tuple(
            Answer.of(call, arrival.at_s, self.speedup) for call, arrival in zip(calls, plan, strict=True)
        )
        fired = after.tau_firings - before.tau_firings
        cell = Cell(step.load.name, step.run, step.arm.name, took_s, fired, answers)
        if before.busy_s is not None and after.busy_s is not None and step.arm.policy is not None:
            cell = replace(cell, busy_s=(after.busy_s - before.busy_s) * self.speedup)
        if not step.arm.interrupts:
            return cell
        return replace(
            cell,
            cuts=after.cuts - before.cuts,
            resumes=after.resumes - before.resumes,
            recomputed_tokens=after.recomputed_tokens - before.recomputed_tokens,
        )


def steps_of(
    loads: Sequence[Load], arms: Sequence[Arm], runs: int, *, lengths_last: bool
) -> tuple[Step, ...]:
    """Return the cells in an order that favours no arm: each run begins with another one.

    With `lengths_last`, arms that must know real lengths come last in every run: only then are they known.
    """
    steps = []
    for run in range(runs):
        turned = [*arms[run % len(arms) :], *arms[: run % len(arms)]]
        if lengths_last:
            turned.sort(key=lambda arm: arm.knowledge is Knowledge.LENGTHS)
        steps += [Step(load, run, arm) for load in loads for arm in turned]
    return tuple(steps)


async def solo(client: httpx.AsyncClient, asker: Asker, plan: Plan) -> list[Call]:
    """Ask the questions of a plan one after another; ClairvoyantError if one fails."""
    calls = [Call(arrival.question) for arrival in plan]
    for call in calls:
        await asker.ask(client, call)
        if call.error is not None:
            raise ClairvoyantError(f"the backend does not answer a question: {call.error}")
    return calls
