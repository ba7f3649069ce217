"""Queueing theory of Poisson arrivals, to test the engine against.

A service distribution is given by its quantiles: `service_s` at evenly spaced probabilities (i + 1/2) / m,
so that sums over it are integrals. All results are mean waits or sojourns in seconds.
"""

from math import factorial

import numpy as np
from clairvoyant_lab.confidence import Estimate
from clairvoyant_lab.simulator.workload import Floats, Service


def covers(interval: Estimate, value: float) -> bool:
    return abs(interval.mean - value) <= interval.half_width


def exponential(mean_s: float) -> Service:
    return lambda rng, n: (rng.exponential(mean_s, n), np.zeros(n, dtype=np.int64))


def exponential_quantiles(mean_s: float, m: int = 200_000) -> Floats:
    return -mean_s * np.log1p(-(np.arange(m) + 0.5) / m)


def mm1_fcfs_wait_s(rate_per_s: float, mean_s: float) -> float:
    load = rate_per_s * mean_s
    return load * mean_s / (1.0 - load)


def mmc_fcfs_wait_s(rate_per_s: float, mean_s: float, slots: int) -> float:
    """Return the mean wait of M/M/c in order of arrival (Erlang, 1917)."""
    offered = rate_per_s * mean_s
    all_busy = offered**slots / factorial(slots) / (1.0 - offered / slots)
    waits = all_busy / (sum(offered**n / factorial(n) for n in range(slots)) + all_busy)
    return waits * mean_s / (slots - offered)


def mg1_fcfs_wait_s(rate_per_s: float, service_s: Floats) -> float:
    """Return the mean wait of M/G/1 in order of arrival (Pollaczek and Khinchine; Clairvoyant, Eq. 1)."""
    load = rate_per_s * float(service_s.mean())
    return rate_per_s * float((service_s**2).mean()) / (2.0 * (1.0 - load))


def mg1_sjf_wait_s(rate_per_s: float, service_s: Floats) -> float:
    """Return the mean wait of M/G/1 under non-preemptive shortest job first (Phipps, 1956).

    A job of size x waits W0 / (1 - rho(x))^2, where rho(x) is the load of the jobs no longer than x.
    """
    sizes = np.sort(service_s)
    residual_s = rate_per_s * float((sizes**2).mean()) / 2.0
    below = rate_per_s * (np.cumsum(sizes) - sizes / 2.0) / len(sizes)
    return float((residual_s / (1.0 - below) ** 2).mean())


def mg1_srpt_sojourn_s(rate_per_s: float, service_s: Floats) -> float:
    """Return the mean sojourn of M/G/1 under shortest remaining time first (Schrage and Miller, 1966)."""
    sizes = np.sort(service_s)
    m = len(sizes)
    below = rate_per_s * (np.cumsum(sizes) - sizes / 2.0) / m
    second = rate_per_s * (np.cumsum(sizes**2) - sizes**2 / 2.0) / m
    above = rate_per_s * sizes**2 * (1.0 - (np.arange(m) + 0.5) / m)
    waiting_s = (second + above) / (2.0 * (1.0 - below) ** 2)
    slowed = 1.0 / (1.0 - np.concatenate(([0.0], below)))
    steps = np.diff(np.concatenate(([0.0], sizes)))
    residence_s = np.cumsum(steps * (slowed[:-1] + slowed[1:]) / 2.0)
    return float((waiting_s + residence_s).mean())
