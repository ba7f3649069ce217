"""What the samples say: means with their confidence, variability, and what a queue makes of them."""

import heapq
from collections.abc import Sequence
from random import Random
from statistics import fmean, pvariance

from profiles.records import Estimate

RESAMPLES = 1000


def estimate(values: Sequence[float], block: int = 1, seed: int = 0) -> Estimate | None:
    """Return the mean and its 95 % interval by the bootstrap; None of nothing.

    Neighbours in a queue wait for the same jobs: they are drawn in blocks that long (the moving-block
    bootstrap; Kuensch, Annals of Statistics 17, 1989), or the interval would be too narrow.
    """
    n = len(values)
    if n == 0:
        return None
    block = max(1, min(block, n // 3))
    rng = Random(seed)  # noqa: S311 - reproducible on purpose
    starts = range(n - block + 1)
    sums = [sum(values[start : start + block]) for start in starts]
    draws = -(-n // block)
    means = sorted(sum(rng.choice(sums) for _ in range(draws)) / (draws * block) for _ in range(RESAMPLES))
    mean = fmean(values)
    return Estimate(mean, means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)], n)


def cs2(values: Sequence[float]) -> float:
    """Return Var[S] / E[S]^2, the squared coefficient of variation (Clairvoyant, section 2.4)."""
    mean = fmean(values)
    return pvariance(values, mean) / mean**2 if mean > 0 else 0.0


def pk_wait_s(rho: float, mean_s: float, cs2: float) -> float:
    """Return the mean wait under FCFS by Pollaczek and Khinchine (Clairvoyant, equation 1)."""
    return rho * mean_s * (1 + cs2) / (2 * (1 - rho))


def sojourns(services_s: Sequence[float], in_flight: int, slots: int) -> list[float]:
    """Return the sojourn times of jobs that are sent one for one answered, `in_flight` at a time.

    `slots` of them are served at once, first come first served, as a serial LLM server does.
    """
    free_at = [0.0] * slots
    ended: list[float] = []
    times: list[float] = []
    for number, service_s in enumerate(services_s):
        sent = heapq.heappop(ended) if number >= in_flight else 0.0
        end = max(sent, free_at[0]) + service_s
        heapq.heapreplace(free_at, end)
        heapq.heappush(ended, end)
        times.append(end - sent)
    return times
