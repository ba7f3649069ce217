"""What the simulator says of the very cell a bench has measured: same arrivals, lengths and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from clairvoyant_cli.research.bench.arms import Arm
from clairvoyant_cli.research.bench.results import Answer, Cell
from clairvoyant_cli.research.simulator.engine import Preemption, SlotSimulation
from clairvoyant_cli.research.simulator.predictions import Predictions
from clairvoyant_cli.research.simulator.workload import LONG, MEDIUM, SHORT, Workload
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.starvation import tau_from_setting
from predictor.record import LengthClass, Prediction

KINDS = {LengthClass.SHORT: SHORT, LengthClass.MEDIUM: MEDIUM, LengthClass.LONG: LONG}


@dataclass(frozen=True, slots=True)
class PredictedCost:
    """What the daemon thinks of a question: its prediction, and the seconds its prompt is taken to need."""

    prediction: Prediction
    prefill_s: float


def simulated(
    cell: Cell,
    arm: Arm,
    predicted: Sequence[PredictedCost],
    *,
    seconds_per_token: float,
    slots: int,
    tau_s: float,
    resume_s: float | None = None,
) -> Cell:
    """Return the cell as the simulator has it; its times are in seconds of the model's time.

    `predicted` are the cell's questions, in their order. Every answer takes its tokens times
    `seconds_per_token`: no prefill, no network, no processor that is short. `tau_s` 0 is no guard; `resume_s`
    is the price of a cut, None that nothing can be cut.
    """
    tokens = np.array([max(1, answer.tokens) for answer in cell.answers], dtype=np.float64)
    workload = Workload(
        np.array([answer.at_s for answer in cell.answers]),
        tokens * seconds_per_token,
        np.array([KINDS[LengthClass(answer.kind)] for answer in cell.answers], dtype=np.int64),
        tokens,
    )
    prefill_s = np.array([each.prefill_s for each in predicted])
    expected = np.array([each.prediction.expected_tokens for each in predicted])
    predictions = Predictions(
        np.array([each.prediction.p_long for each in predicted]),
        prefill_s + expected * seconds_per_token,
        prefill_s + np.array([each.prediction.q90_tokens for each in predicted]) * seconds_per_token,
        expected,
        np.array([each.prediction.q90_tokens for each in predicted]),
    )
    policy = POLICIES[arm.policy or DEFAULT_POLICY]
    capacity = len(cell.answers)
    scheduler = Scheduler(policy, workers={"slot": slots}, tau_s=tau_from_setting(tau_s), capacity=capacity)
    preemption = None if resume_s is None else Preemption(resume_s)
    run = SlotSimulation(scheduler, workload, predictions, preemption=preemption).run()
    answers = tuple(
        Answer(answer.kind, answer.tokens, answer.at_s, float(sojourn_s), float(wait_s) + seconds_per_token)
        for answer, sojourn_s, wait_s in zip(cell.answers, run.sojourn_s, run.wait_s, strict=True)
    )
    busy_s = float(workload.service_s.sum()) + run.preemptions * (resume_s or 0.0)
    found = Cell(cell.load, cell.run, cell.arm, 0.0, run.tau_firings, answers, busy_s=busy_s)
    return replace(found, cuts=run.preemptions, resumes=run.preemptions) if arm.interrupts else found
