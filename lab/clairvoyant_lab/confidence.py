"""Figures with their confidence intervals: means over independent runs, and changes against a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from clairvoyant_cli.calibrate.queueing import student_t
from profiles import percentiles

CONFIDENCE = 0.95  # the level of every interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and the half width of its 95 % confidence interval, from `n` independent runs."""

    mean: float
    half_width: float = float("nan")
    n: int = 1


def half_width(sd: float, n: int) -> float:
    """Return half the width of the 95 % interval of the mean of `n` values; of one not a number."""
    return student_t(n - 1) * sd / sqrt(n)


def mean_of(samples: Sequence[float]) -> Estimate:
    """Return the mean of one figure from each of several independent runs."""
    values = np.asarray(samples, dtype=np.float64)
    n, mean = len(values), float(values.mean())
    return Estimate(mean, half_width(float(values.std(ddof=1)), n), n) if n > 1 else Estimate(mean)


def change_of(samples: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Return the change of the mean against a baseline run on the same seeds, as a fraction of it.

    The interval is that of a ratio of paired means (delta method): noise both share cancels. Not a number
    against a baseline of 0.
    """
    values, base = np.asarray(samples, dtype=np.float64), np.asarray(baseline, dtype=np.float64)
    n = len(values)
    if base.mean() == 0.0:
        return Estimate(float("nan"), float("nan"), n)
    ratio = float(values.mean() / base.mean())
    if n < 2:
        return Estimate(ratio - 1.0, float("nan"), n)
    spread = float((values - ratio * base).std(ddof=1))
    return Estimate(ratio - 1.0, half_width(spread, n) / float(base.mean()), n)


def percentile(values: npt.NDArray[np.float64], share: float) -> float:
    """Return a percentile, 0 to 100, of values in any order; not a number of nothing."""
    ordered: list[float] = np.sort(values).tolist()
    return percentiles.percentile(ordered, share / 100.0) if ordered else float("nan")


def jain(values: npt.NDArray[np.float64]) -> float:
    """Return Jain's index of fairness: 1 if all have the same, 1 / n if one has everything."""
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0
