"""Jobs that are expected to arrive: as many, and of the same sizes, as in the last minutes."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from math import exp
from typing import NamedTuple

from clairvoyant_cli.scheduler.job import MIN_SIGMA, Job, sigma_of
from clairvoyant_cli.scheduler.policy import Policy

WINDOW_S = 300.0  # arrivals of the last five minutes count
LEAST_S = 60.0  # in the first minute, the rest of it counts as silence
MOST = 128
SAMPLED = (1.0 / 6.0, 0.5, 5.0 / 6.0)  # of a time, where it is computed who goes before


class Flow(NamedTuple):
    """Per second: jobs, the sum of their seconds of work and of its square."""

    jobs: float
    work_s: float
    squares: float


class Newcomers:
    """The latest arrivals, each with the key that it had."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, float, float, float, float]] = deque(maxlen=MOST)

    def came(self, job: Job) -> None:
        self._came.append((job.rank, job.key, job.arrival_s, job.cost_s, square_of(job, job.cost_s)))

    def forget(self) -> None:
        """Forget all: from now on another policy orders them."""
        self._came.clear()

    def expected(self, policy: Policy, now: float) -> Callable[[Job, float], Flow]:
        """Return what tells the jobs that are expected within a time and would start before a waiting one."""
        zero, one = (policy.key(Job("", at_s, queued_s=at_s)) for at_s in (0.0, 1.0))
        aging, first_s = one - zero, self._came[0][2] if self._came else now
        over_s = min(WINDOW_S, max(now - first_s, LEAST_S if len(self._came) < MOST else 1e-3))
        rows = [
            (rank, key - aging * at_s, cost_s / over_s, square / over_s)
            for rank, key, at_s, cost_s, square in self._came
            if now - at_s < WINDOW_S
        ]
        rows.sort()
        orders, number = [row[:2] for row in rows], len(SAMPLED)
        work_s = [0.0, *accumulate([row[2] for row in rows])]
        squares = [0.0, *accumulate([row[3] for row in rows])]

        def before(job: Job, within_s: float) -> Flow:
            jobs, seconds, square = 0, 0.0, 0.0
            for share in SAMPLED:  # called thousands of times for a long queue
                at = bisect_left(orders, (job.rank, job.key - aging * (now + share * within_s)))
                jobs += at
                seconds += work_s[at]
                square += squares[at]
            return Flow(jobs / number / over_s, seconds / number, square / number)

        return before


def square_of(job: Job, work_s: float) -> float:
    """Return the mean square of a job's real work, of which `work_s` is predicted."""
    sigma = sigma_of(job.tokens, job.tokens_q90) if job.tokens > 0.0 and job.tokens_q90 > 0.0 else 0.0
    return work_s * work_s * exp(max(sigma, MIN_SIGMA) ** 2)
