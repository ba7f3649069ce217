"""Runs a bench: every arm gets the same questions at the same times, run by run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.research.bench.arms import Arm, Knowledge
from clairvoyant_cli.research.bench.client import Call, send_at
from clairvoyant_cli.research.bench.plan import Load
from clairvoyant_cli.research.bench.results import Answer, Cell
from clairvoyant_cli.research.bench.setup import Bench

CUTS = ("cuts", "resumes", "tokens read again")


@dataclass(frozen=True, slots=True)
class Step:
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
    clock, speedup = bench.asker.clock, bench.settings.speedup
    client = bench.take(step.arm)
    calls = [Call(arrival.question, arrival.at_s) for arrival in step.load.plan(step.run)]
    answered = count(1)
    before, begun_s = bench.counted(), clock()
    due_s = [call.at_s / speedup for call in calls]
    await send_at(client, bench.asker, calls, due_s, lambda: on_answer(next(answered) / len(calls)))
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
    answers = tuple(Answer.of(call, speedup) for call in calls)
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
