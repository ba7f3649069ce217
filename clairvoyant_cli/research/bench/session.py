"""Runs a bench: every arm gets the same questions at the same times, run by run.

A kind of load is a class with a `name` and `send`; `OpenLoop` sends planned questions. A load whose questions
depend on earlier answers, such as agents with sessions, implements the same `Load`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

import httpx

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.research.bench.arms import Arm, Knowledge
from clairvoyant_cli.research.bench.client import Asker, Call, send_at
from clairvoyant_cli.research.bench.plan import Plan
from clairvoyant_cli.research.bench.results import Answer, Cell, Ledger

if TYPE_CHECKING:
    from clairvoyant_cli.research.bench.setup import Bench

OnAnswer = Callable[[int, int], None]
"""Called with the answers so far and the questions in all."""


class Load(Protocol):
    """A kind of load."""

    @property
    def name(self) -> str:
        """Its name in tables, which no other load of the bench has."""
        ...

    async def send(
        self, client: httpx.AsyncClient, asker: Asker, run: int, on_answer: OnAnswer
    ) -> list[Call]:
        """Send the questions of a run, wait for all answers, and return the calls."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Questions at planned times, whatever happens to those before. `speedup` divides the times."""

    name: str
    plan: Callable[[int], Plan]
    speedup: float = 1.0

    async def send(
        self, client: httpx.AsyncClient, asker: Asker, run: int, on_answer: OnAnswer
    ) -> list[Call]:
        """Send the questions of a run."""
        calls = [Call(arrival.question, arrival.at_s) for arrival in self.plan(run)]
        answered = count(1)
        due_s = [call.at_s / self.speedup for call in calls]
        await send_at(client, asker, calls, due_s, lambda: on_answer(next(answered), len(calls)))
        return calls


@dataclass(frozen=True, slots=True)
class Step:
    """A cell to measure."""

    load: Load
    run: int
    arm: Arm


CUTS = ("cuts", "resumes", "tokens read again")


@dataclass(slots=True)
class Session:
    """Measures the cells that a ledger lacks."""

    bench: "Bench"
    ledger: Ledger

    async def run(self, steps: Sequence[Step], on_progress: Callable[[float, str], None]) -> None:
        """Measure the steps in their order; `on_progress` gets the steps done and a description."""
        for done, step in enumerate(steps):
            name = f"run {step.run + 1}, {step.load.name}, {step.arm.name}"
            on_progress(done, name)
            if (step.load.name, step.run, step.arm.name) in self.ledger.cells:
                continue

            def on_answer(answered: int, of: int, done: int = done, name: str = name) -> None:
                on_progress(done + answered / of, name)

            self.ledger.add(await self._measure(step, on_answer))

    async def _measure(self, step: Step, on_answer: OnAnswer) -> Cell:
        bench, clock = self.bench, self.bench.asker.clock
        client = bench.take(step.arm)
        before, begun_s = bench.counted(), clock()
        calls = await step.load.send(client, bench.asker, step.run, on_answer)
        took_s = clock() - begun_s
        counts = {name: value - before[name] for name, value in bench.counted().items()}
        if not step.arm.interrupts:
            counts = {name: value for name, value in counts.items() if name not in CUTS}
        if step.arm.policy is None:
            counts.pop("busy", None)
        errors = [call.error for call in calls if call.error is not None]
        if len(errors) == len(calls):
            raise ClairvoyantError(f"all {len(calls)} requests of {step.arm.name} failed: {errors[0]}")
        bench.learn({call.question.prompt: call.tokens for call in calls if call.error is None})
        answers = tuple(Answer.of(call, bench.settings.speedup) for call in calls)
        return Cell(step.load.name, step.run, step.arm.name, took_s, answers, counts)


def steps_of(
    loads: Sequence[Load], arms: Sequence[Arm], runs: int, *, lengths_last: bool
) -> tuple[Step, ...]:
    """Return the cells in an order that favours no arm: each run begins with another one.

    With `lengths_last`, arms that know real lengths come last in a run: the others measure the lengths.
    """
    steps = []
    for run in range(runs):
        turned = [*arms[run % len(arms) :], *arms[: run % len(arms)]]
        if lengths_last:
            turned.sort(key=lambda arm: arm.knowledge is Knowledge.LENGTHS)
        steps += [Step(load, run, arm) for load in loads for arm in turned]
    return tuple(steps)
