"""Jobs that are expected to arrive: as many, and of the same sizes, as in the last minutes."""

from bisect import bisect_left
from collections import deque
from itertools import accumulate
from math import exp
from typing import NamedTuple

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queued_job import QueuedJob
from clairvoyant_cli.scheduler.residual_life import MIN_SIGMA, sigma_of

WINDOW_S = 300.0
LEAST_S = 60.0
"""Arrivals of the last five minutes count; in the first minute the rest of it counts as silence."""

MOST = 128


class Flow(NamedTuple):
    """Per second: jobs, the sum of their seconds of work and of its square."""

    jobs: float
    work_s: float
    squares: float


class Newcomers:
    """The latest arrivals, each with the key that it had."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, float, float, float, float]] = deque(maxlen=MOST)

    def came(self, entry: QueuedJob) -> None:
        self._came.append(
            (entry.rank, entry.key, entry.job.arrival_s, entry.job.cost_s, square_of(entry, entry.job.cost_s))
        )

    def forget(self) -> None:
        """Forget all: from now on another policy orders them."""
        self._came.clear()

    def expected(self, policy: Policy, now: float) -> "Expected":
        zero, one = (policy.key(QueuedJob(Job("", at_s), 0, 0.0, at_s)) for at_s in (0.0, 1.0))
        aging, first_s = one - zero, self._came[0][2] if self._came else now
        over_s = min(WINDOW_S, max(now - first_s, LEAST_S if len(self._came) < MOST else 1e-3))
        rows = [
            (rank, key - aging * at_s, cost_s / over_s, square / over_s)
            for rank, key, at_s, cost_s, square in self._came
            if now - at_s < WINDOW_S
        ]
        rows.sort()
        return Expected(
            aging,
            now,
            [row[:2] for row in rows],
            1.0 / over_s,
            [0.0, *accumulate([row[2] for row in rows])],
            [0.0, *accumulate([row[3] for row in rows])],
        )


class Expected(NamedTuple):
    """Arrivals to expect, by what orders them: rank and key, less what a key gains by arriving later."""

    aging: float
    now: float
    orders: list[tuple[float, float]]
    rate: float
    work_s: list[float]
    squares: list[float]

    def before(self, entry: QueuedJob, in_s: float) -> Flow:
        """Return those that are expected to arrive within a time and to start before a waiting job."""
        at = bisect_left(self.orders, (entry.rank, entry.key - self.aging * (self.now + in_s)))
        return Flow(at * self.rate, self.work_s[at], self.squares[at])


def square_of(entry: QueuedJob, work_s: float) -> float:
    """Return the mean square of a job's real work, of which `work_s` is predicted."""
    job = entry.job
    sigma = sigma_of(job.tokens, job.tokens_q90) if job.tokens > 0.0 and job.tokens_q90 > 0.0 else 0.0
    return work_s * work_s * exp(max(sigma, MIN_SIGMA) ** 2)
