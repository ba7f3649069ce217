"""Runs a bench: every arm gets the same questions at the same times, run by run."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.research.bench.arms import Arm, Knowledge
from clairvoyant_cli.research.bench.client import Call, send_at
from clairvoyant_cli.research.bench.plan import Load
from clairvoyant_cli.research.bench.setup import Bench
from clairvoyant_cli.research.bench.summary import Cell

CUTS = ("cuts", "resumes", "tokens read again")


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
