"""Jobs that are expected to arrive: as many, and of the same sizes, as in the last minutes."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from math import exp

from clairvoyant_cli.scheduler.job import MIN_SIGMA, Job, sigma_of
from clairvoyant_cli.scheduler.policy import Policy

WINDOW_S = 300.0  # arrivals of the last five minutes count
LEAST_S = 60.0  # in the first minute, the rest of it counts as silence
MOST = 128
SAMPLED = (1.0 / 6.0, 0.5, 5.0 / 6.0)  # of a time, where it is computed who goes before

MAX_LOAD = 0.95  # limit of the load of newcomers: a wait grows at most twentyfold
PASSES = 4  # of the fixed point: newcomers during a wait make it longer


Delay = tuple[float, float, float, float, float]
"""How newcomers delay a start: the mean seconds until then, for how long they pass, their load meanwhile, and
per second how many pass and the sum of the squares of their seconds of work."""


class Newcomers:
    """The latest arrivals, each with the key that it had."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, float, float, float, float, float]] = deque(maxlen=MOST)

    def came(self, job: Job) -> None:
        self._came.append((job.rank, job.key, job.arrival_s, job.cost_s, job.tokens, job.tokens_q90))

    def forget(self) -> None:
        """Forget all: from now on another policy orders them."""
        self._came.clear()

    def expected(self, policy: Policy, now: float, slots: int) -> Callable[[Job, float], Delay]:
        """Return a function that says how newcomers delay a waiting job that would start in some seconds
        without them.
        """
        zero, one = (policy.key(Job("", at_s, queued_s=at_s)) for at_s in (0.0, 1.0))
        aging, first_s = one - zero, self._came[0][2] if self._came else now
        over_s = min(WINDOW_S, max(now - first_s, LEAST_S if len(self._came) < MOST else 1e-3))
        rows = [
            (rank, key - aging * at_s, cost_s / over_s, cost_s * cost_s * spread_of(tokens, q90) / over_s)
            for rank, key, at_s, cost_s, tokens, q90 in self._came
            if now - at_s < WINDOW_S
        ]
        rows.sort()
        ranks, keys = [row[0] for row in rows], [row[1] for row in rows]
        work_s = [0.0, *accumulate([row[2] for row in rows])]
        squares = [0.0, *accumulate([row[3] for row in rows])]
        first, middle, last = SAMPLED
        number, bounds = len(SAMPLED), dict[float, tuple[int, int]]()  # of the rows of a rank

        def delay(job: Job, free_s: float) -> Delay:  # a thousand times for a long queue
            rank, key, until_s, mean_s, load = job.rank, job.key, free_s, free_s, 0.0
            if rank not in bounds:
                bounds[rank] = bisect_left(ranks, rank), bisect_right(ranks, rank)
            low, high = bounds[rank]
            one = two = three = high
            for _ in range(PASSES):
                # Where keys age, later newcomers go before it less often.
                one = bisect_left(keys, key - aging * (now + first * until_s), low, high)
                two = bisect_left(keys, key - aging * (now + middle * until_s), low, high)
                three = bisect_left(keys, key - aging * (now + last * until_s), low, high)
                load = (work_s[one] + work_s[two] + work_s[three]) / number / slots
                if load > MAX_LOAD:
                    load = MAX_LOAD
                mean_s = free_s / (1.0 - load)
                until_s = (until_s + mean_s) / 2.0
            square = (squares[one] + squares[two] + squares[three]) / number
            return mean_s, until_s, load, (one + two + three) / number / over_s, square

        return delay


@lru_cache(2048)
def spread_of(tokens: float, q90: float) -> float:
    """Return the mean square of an answer's real length, as a multiple of the square of the predicted one."""
    sigma = sigma_of(tokens, q90) if tokens > 0.0 and q90 > 0.0 else 0.0
    return exp(max(sigma, MIN_SIGMA) ** 2)
