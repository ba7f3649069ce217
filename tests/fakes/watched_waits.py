"""Simulated loads that somebody watches: forecasts of waiting and running requests, and the truth."""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from clairvoyant_lab.simulator.engine import Preemption, SlotSimulation
from clairvoyant_lab.simulator.workload import (
    Floats,
    Predictions,
    TwoNormals,
    Workload,
    noisy_class,
    poisson,
)

from clairvoyant_cli.scheduler.explain import Standings
from clairvoyant_cli.scheduler.forecast_ranges import ForecastRanges, Range
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler

ROWS = 30
TOKENS_PER_S, TAU_S = 40.0, 60.0
Q90 = 1.2815515655446004


@dataclass(frozen=True, slots=True)
class Shown:
    """A row that was shown at some moment: its range, the work over the slots, and how many before."""

    number: int
    at_s: float
    range: Range
    plain_s: float
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Judged:
    """How forecasts came true. `covered` by rows, `covered_starts` with each request weighing the same.

    `ratio` is the median of high over low. `near`: within 30 % of the forecast, or the work over slots.
    `ahead`: the forecast of requests before over their number.
    """

    rows: int
    covered: float
    covered_starts: float
    below: float
    above: float
    ratio: float
    near: float
    near_plain: float
    ahead: float


class WatchedWaits(SlotSimulation):
    """A simulation whose first rows are looked at, on average every `look_s`, at random moments."""

    def __init__(
        self,
        scheduler: Scheduler,
        workload: Workload,
        predictions: Predictions,
        *,
        look_s: float,
        seed: int,
        preemption: Preemption | None = None,
    ) -> None:
        super().__init__(scheduler, workload, predictions, preemption=preemption)
        self.ranges = ForecastRanges()
        self.waits: list[Shown] = []
        self.runs: list[Shown] = []
        self.starts: dict[int, list[float]] = defaultdict(list)
        self._rng, self._mean_s, self._next_s = np.random.default_rng(seed), look_s, 0.0

    def judged(self) -> tuple[Judged, Judged]:
        """Run to the end; return how the forecasts of waits and of running times came true."""
        run = self.run()
        started = np.sort(np.concatenate([*self.starts.values()]))
        waits, runs = [], []
        for shown in self.waits:
            own = self.starts[shown.number]
            start_s = own[int(np.searchsorted(own, shown.at_s))]
            before = np.searchsorted(started, start_s) - np.searchsorted(started, shown.at_s, "right")
            waits.append((shown, start_s - shown.at_s, float(before)))
        for shown in self.runs:
            own = self.starts[shown.number]
            if own[-1] <= shown.at_s:  # it was not cut afterwards
                runs.append((shown, float(run.finish_s[shown.number]) - shown.at_s, 0.0))
        return _judge(waits), _judge(runs)

    def _start(self, number: int, server: str, now: float) -> None:
        self.starts[number].append(now)
        super()._start(number, server, now)

    def _decide(self, now: float) -> None:
        super()._decide(now)
        if now >= self._next_s:
            self._look(now)
            self._next_s = now + float(self._rng.exponential(self._mean_s))
        if self.scheduler.running:
            self._look_s = min(self._look_s, self._next_s)

    def _look(self, now: float) -> None:
        scheduler = self.scheduler
        left = {run: run.left_s(now) for run in scheduler.running.values()}
        standings = Standings(scheduler, now, sum(left.values()), sum(scheduler.slots.values()), self.ranges)
        slots, before_s = sum(scheduler.slots.values()), sum(left.values())
        for standing in standings[:ROWS]:
            if standing.start is not None and standing.ahead is not None:
                number = _number(standing.job)
                shown = Shown(number, now, standing.start, before_s / slots, standing.ahead)
                self.waits.append(shown)
            before_s += standing.job.remaining_s
        for run, plain_s in left.items():
            self.runs.append(Shown(_number(run.job), now, self.ranges.of_run(run), plain_s))


def _number(entry: Job) -> int:
    return int(entry.id)


def _judge(rows: list[tuple[Shown, float, float]]) -> Judged:
    real = np.array([each[1] for each in rows])
    low, mid, high = np.array([each[0].range for each in rows]).T
    plain = np.array([each[0].plain_s for each in rows])
    inside = (low <= real) & (real <= high)
    of = defaultdict(list)
    for (shown, _, _), is_inside in zip(rows, inside.tolist(), strict=True):
        of[shown.number].append(is_inside)
    return Judged(
        len(rows),
        float(inside.mean()),
        float(np.mean([np.mean(each) for each in of.values()])),
        float((real < low).mean()),
        float((real > high).mean()),
        float(np.median(high / low)),
        float((abs(real - mid) <= 0.3 * mid).mean()),
        float((abs(real - plain) <= 0.3 * plain).mean()),
        sum(each[0].ahead for each in rows) / max(sum(each[2] for each in rows), 1.0),
    )


# -- loads ------------------------------------------------------------------------------------------------


def watched(
    policy: str, load: str, rho: float, slots: int, seed: int, requests: int = 1000, look_s: float = 2.0
) -> WatchedWaits:
    """Return a run that is watched. Loads: `right` predictions of a wide mixture, with a Poisson process;
    `wrong` ones, too small and too sure; `bursts` of a dozen; `classes`, the paper's two, 85 % right.
    """
    rng = np.random.default_rng(seed)
    if load == "classes":
        service = TwoNormals()
        workload = poisson(rng, requests, rho * slots / service.mean_s, service)
        predictions = noisy_class(rng, workload, 0.85, service.short_mean_s, service.long_mean_s)
    else:
        workload, predictions = _mixture(rng, requests, wrong=load == "wrong")
        gap_s = float(workload.service_s.mean()) / slots / rho
        arrival_s = _bursts(rng, requests, gap_s) if load == "bursts" else None
        arrival_s = np.cumsum(rng.exponential(gap_s, requests)) if arrival_s is None else arrival_s
        workload = replace(workload, arrival_s=arrival_s)
    return of_workload(policy, workload, predictions, slots, seed, look_s)


def of_workload(
    policy: str, workload: Workload, predictions: Predictions, slots: int, seed: int, look_s: float
) -> WatchedWaits:
    scheduler = Scheduler(POLICIES[policy], servers={"a": slots}, tau_s=TAU_S, capacity=len(workload))
    preemption = Preemption(fixed_s=0.1) if scheduler.policy.preemptive else None
    return WatchedWaits(scheduler, workload, predictions, look_s=look_s, seed=seed, preemption=preemption)


def _mixture(rng: np.random.Generator, n: int, *, wrong: bool) -> tuple[Workload, Predictions]:
    """Return requests whose answers are log-normal about short, medium and long predictions."""
    predicted = np.exp(rng.normal(np.log(rng.choice([60.0, 250.0, 900.0], n, p=[0.5, 0.25, 0.25])), 0.5))
    sigma, said, bias = (1.0, 0.5, 0.7) if wrong else (0.7, 0.7, 0.0)
    tokens = predicted * np.exp(rng.normal(bias - sigma**2 / 2.0, sigma, n))
    q90 = predicted * np.exp(Q90 * said - said**2 / 2.0)
    service_s, cost_s, cost_q90_s = (0.1 + each / TOKENS_PER_S for each in (tokens, predicted, q90))
    p_long = np.clip(predicted / 2000.0, 0.0, 1.0)
    workload = Workload(np.zeros(n), service_s, np.zeros(n, dtype=np.int64), tokens=tokens)
    return workload, Predictions(p_long, cost_s, cost_q90_s, predicted, q90)


def _bursts(rng: np.random.Generator, n: int, gap_s: float) -> Floats:
    """Return arrivals in bursts of a dozen on average, each within three seconds."""
    sizes = rng.geometric(1 / 12.0, n)
    begins_s = np.repeat(np.cumsum(rng.exponential(12.0 * gap_s, n)), sizes)[:n]
    return np.sort(begins_s + rng.uniform(0.0, 3.0, n))
