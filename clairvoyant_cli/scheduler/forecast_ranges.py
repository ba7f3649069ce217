"""Ranges that four of five waits and running times should fall into, by the spread of predicted lengths."""

from math import exp
from typing import NamedTuple

from clairvoyant_cli.scheduler.job import Z90, Job, residual_quantile

WIDER = 1.25
"""Factor on the spread of a wait: the load changes, and lengths are not as sure as they are said to be."""

TAIL = 0.08  # the share of running times beyond each end
SOON_S = 1e-3


class Range(NamedTuple):
    """Four of five are between `low_s` and `high_s`, half of them below `mid_s`."""

    low_s: float
    mid_s: float
    high_s: float


def range_of_wait(mid_s: float, sigma: float) -> Range:
    """Return the range of a log-normal wait, by its median and the sigma of its logarithm."""
    factor, mid_s = exp(WIDER * Z90 * sigma), max(mid_s, SOON_S)
    return Range(mid_s / factor, mid_s, mid_s * factor)


def range_of_run(job: Job, now: float, inside_s: float | None = None) -> Range:
    """Return when a running job will end, in seconds from now. `inside_s` is the expected time left if it
    shares its server with others by its server's own order.
    """
    age_s, takes_s, upper_s = now - job.began_s, job.expected_s, job.upper_s
    low_s, mid_s, high_s = (
        max(residual_quantile(age_s, takes_s, upper_s, share), SOON_S) for share in (TAIL, 0.5, 1.0 - TAIL)
    )
    longer = 1.0 if inside_s is None else inside_s / mid_s
    return Range(low_s * longer, mid_s * longer, high_s * longer)
