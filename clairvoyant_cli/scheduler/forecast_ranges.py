"""Ranges of waits and running times that four of five fall into, learned from forecasts that came true.

Of each kind of forecast and each spread, three quantiles of log(real / forecast) are tracked: one rises when
it was exceeded and falls otherwise, so that it is right in the long run whatever the errors are. Before any
outcome they are those of a log-normal of that spread.

Rows that are looked at are sampled the less often the older they are, so that neither looks in quick
succession nor long waits weigh more. A sample counts once it is known where it lies: at its end, or when it
has outlasted the range. If the job leaves first it does not count.
"""

from bisect import bisect
from dataclasses import dataclass, field
from math import exp, log
from typing import NamedTuple

from clairvoyant_cli.scheduler.job import Z90, Job, Run, residual_quantile
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import Wait

TAIL = 0.08
"""The share aimed at beyond each end. A change of load is learned after it: 0.1 would miss three in ten."""

SHARES = (TAIL, 0.5, 1.0 - TAIL)

SPREADS = (0.4, 0.6, 0.8, 1.0)  # forecasts whose sigma lies between two of these are judged together

FIRST_STEP, STEP, LEARNED = 0.2, 0.01, 20.0
"""Step of a quantile: it falls with the outcomes, `LEARNED` of which halve it, to a least one."""

SAMPLES_PER_AGE = 2.0  # samples of a request each time that its age grows by a factor of e

MAX_PENDING = 512
SOON_S = 1e-3


class Range(NamedTuple):
    """Four of five are between `low_s` and `high_s`, half of them below `mid_s`."""

    low_s: float
    mid_s: float
    high_s: float


@dataclass(slots=True)
class _Quantiles:
    """Quantiles of log(real / forecast), and how many outcomes they were learned from."""

    at: list[float]
    outcomes: int = 0

    def learn(self, error: float) -> None:
        self.outcomes += 1
        step = max(STEP, FIRST_STEP / (1.0 + self.outcomes / LEARNED))
        self.at = sorted(
            at + step * (share - (error <= at)) for at, share in zip(self.at, SHARES, strict=True)
        )


class _Sample(NamedTuple):
    job: Job
    at_s: float
    forecast_s: float
    quantiles: _Quantiles
    run: Run | None  # None of a wait


@dataclass(slots=True)
class ForecastRanges:
    """Ranges of forecasts, and the samples whose outcome is not known yet."""

    _quantiles: dict[tuple[bool, int], _Quantiles] = field(default_factory=dict)
    _pending: list[_Sample] = field(default_factory=list)
    _due: float = 0.0
    _now: float = float("-inf")
    _since_s: float = 0.0

    def learn_outcomes(self, scheduler: Scheduler, now: float) -> None:
        """Learn from what has come true since the last look; the forecasts that follow are of this moment.

        Waits through pauses and outages do not count.
        """
        self._since_s, self._now = now - self._now, now
        if scheduler.paused or not any(scheduler.slots.values()):
            self._pending.clear()
        self._pending = [sample for sample in self._pending if not self._is_judged(sample, scheduler)]

    def of_wait(self, job: Job, wait: Wait) -> Range:
        """Return when a waiting job will start, in seconds from the last look."""
        return self._range(job, wait.mid_s, wait.sigma, None)

    def of_run(self, run: Run, inside_s: float | None = None) -> Range:
        """Return when a running job will end, in seconds from the last look. `inside_s` is the expected time
        left if it shares its server with others by its server's own order.
        """
        age_s, takes_s, upper_s = self._now - run.began_s, run.expected_s, run.upper_s
        low_s, mid_s, high_s = (residual_quantile(age_s, takes_s, upper_s, p) for p in (0.1, 0.5, 0.9))
        sigma = log(max(high_s, SOON_S) / max(low_s, SOON_S)) / (2.0 * Z90)
        return self._range(run.job, mid_s if inside_s is None else inside_s, sigma, run)

    def _range(self, job: Job, forecast_s: float, sigma: float, run: Run | None) -> Range:
        kind = run is not None, bisect(SPREADS, sigma)
        quantiles = self._quantiles.get(kind)
        if quantiles is None:
            quantiles = self._quantiles[kind] = _Quantiles([-Z90 * sigma, 0.0, Z90 * sigma])
        forecast_s = max(forecast_s, SOON_S)
        since_s = job.arrival_s if run is None else run.started_s
        share = SAMPLES_PER_AGE * self._since_s / max(self._now - since_s, SOON_S)
        self._due = min(self._due + min(share, 1.0), 2.0)
        if self._due >= 1.0 and len(self._pending) < MAX_PENDING:
            self._due -= 1.0
            self._pending.append(_Sample(job, self._now, forecast_s, quantiles, run))
        low, mid, high = quantiles.at
        return Range(forecast_s * exp(low), forecast_s * exp(mid), forecast_s * exp(high))

    def _is_judged(self, sample: _Sample, scheduler: Scheduler) -> bool:
        """Learn from a sample if its outcome is known; return whether it is done with."""
        job, run, real_s = sample.job, sample.run, self._now - sample.at_s
        if run is None:
            known, lost = job.run is not None and job.run.started_s >= sample.at_s, False
            if job.run is not None and known:
                real_s = job.run.started_s - sample.at_s
            else:  # one that was queued again had started, and nobody knows when
                lost = job.held or job.id not in scheduler or job.queued_s > sample.at_s
        else:
            known, lost = run.ended_s is not None, job.run is not run  # it was preempted
            real_s = (run.ended_s or self._now) - sample.at_s
        error = log(max(real_s, SOON_S) / sample.forecast_s)
        if lost or not (known or error > sample.quantiles.at[-1]):
            return lost
        sample.quantiles.learn(error)
        return True
