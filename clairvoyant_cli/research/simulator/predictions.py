"""Predicts each request of a workload: perfectly, or with noise."""

from dataclasses import dataclass, field

import numpy as np

from clairvoyant_cli.research.simulator.workload import SHORT, Floats, Ints, Workload, no_floats, no_ints

TOKENS_PER_S = 40.0
"""Tokens per second of service, for workloads without token counts."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Columns of shape (n,): P(Long), expected seconds and their 0.9 quantile, the same in tokens, and the
    urgency that the scheduler sees. The last two may be empty.
    """

    p_long: Floats
    cost_s: Floats
    cost_q90_s: Floats
    tokens: Floats
    tokens_q90: Floats = field(default_factory=no_floats)
    urgency: Ints = field(default_factory=no_ints)


def oracle(workload: Workload) -> Predictions:
    """Return the truth itself; P(Long) orders by true service time."""
    service_s = workload.service_s
    tokens = workload.tokens if len(workload.tokens) else service_s * TOKENS_PER_S
    return Predictions(service_s / max(float(service_s.max()), 1e-9), service_s, service_s, tokens)


def noisy_class(
    rng: np.random.Generator, workload: Workload, accuracy: float, short_s: float, long_s: float
) -> Predictions:
    """Return a calibrated two-class prediction that is right with probability `accuracy`.

    P(Long) is `accuracy` or its complement, the cost the mean that follows from it. `short_s` and `long_s`
    are the classes' mean service times.
    """
    said_long = (workload.kind != SHORT) ^ (rng.random(len(workload)) >= accuracy)
    return from_p_long(np.where(said_long, accuracy, 1.0 - accuracy), short_s, long_s)


def from_p_long(p_long: Floats, short_s: float, long_s: float) -> Predictions:
    """Return the prediction that follows from P(Long) when the classes' mean service times are known."""
    cost_s = short_s + (long_s - short_s) * p_long
    q90_s = np.where(p_long >= 0.1, long_s, short_s)
    return Predictions(p_long, cost_s, q90_s, cost_s * TOKENS_PER_S, q90_s * TOKENS_PER_S)
