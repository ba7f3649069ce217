"""Workloads: arrival times and true service times as columns, drawn from seeded generators.

The scheduler does not see a workload, only the `Predictions` made of it, perfect or with noise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import erfc, log, sqrt

import numpy as np
from numpy.typing import NDArray

from clairvoyant_cli.scheduler.job import Z90
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHORT, LONG, MEDIUM = 0, 1, 2
"""The classes of answers; generated workloads have the first two."""

TOKENS_PER_S = 40.0
"""Tokens per second of service, for workloads without token counts."""

MAX_TOKENS = 8000.0  # of a log-normal answer

MIN_SERVICE_S = 0.1
"""A floor under service times drawn from a normal distribution."""


def no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


def no_floats() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival. Columns have shape (n,), or (0,) if unused.

    `service_s` is the time alone in a slot, `kind` the true class, for reports.
    """

    arrival_s: Floats
    service_s: Floats
    kind: Ints
    tokens: Floats = field(default_factory=no_floats)
    prompt_tokens: Floats = field(default_factory=no_floats)
    client: Ints = field(default_factory=no_ints)
    urgency: Ints = field(default_factory=no_ints)

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def offered_load(self) -> float:
        """Seconds of service that arrive per second, over the span of the arrivals."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        return float(self.service_s.sum()) / span_s if span_s > 0.0 else float("inf")


Service = Callable[[np.random.Generator, int], tuple[Floats, Ints]]
"""Draws `n` service times in seconds, and the class of each."""


@dataclass(frozen=True, slots=True)
class TwoNormals:
    """Short and long requests, each normally distributed; the defaults are Clairvoyant's, section 5.5."""

    short_mean_s: float = 3.5
    short_sd_s: float = 0.8
    long_mean_s: float = 8.9
    long_sd_s: float = 2.0
    long_share: float = 0.5

    @property
    def mean_s(self) -> float:
        return self.short_mean_s * (1.0 - self.long_share) + self.long_mean_s * self.long_share

    def __call__(self, rng: np.random.Generator, n: int) -> tuple[Floats, Ints]:
        kind = (rng.random(n) < self.long_share).astype(np.int64)
        short = rng.normal(self.short_mean_s, self.short_sd_s, n)
        long = rng.normal(self.long_mean_s, self.long_sd_s, n)
        return np.maximum(np.where(kind == LONG, long, short), MIN_SERVICE_S), kind


MEDIAN_TOKENS, SIGMA = 180.0, 1.1
"""Log-normal answers as chats have them: a tenth is above 740 tokens."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Answers of log-normal length, written at `TOKENS_PER_S`."""

    median_tokens: float = MEDIAN_TOKENS
    sigma: float = SIGMA

    @property
    def mean_s(self) -> float:
        return self.median_tokens * float(np.exp(self.sigma**2 / 2)) / TOKENS_PER_S

    def __call__(self, rng: np.random.Generator, n: int) -> tuple[Floats, Ints]:
        tokens = np.clip(rng.lognormal(np.log(self.median_tokens), self.sigma, n), 1.0, MAX_TOKENS)
        kind = np.where(tokens < SHORT_BELOW_TOKENS, SHORT, np.where(tokens < LONG_FROM_TOKENS, MEDIUM, LONG))
        return tokens / TOKENS_PER_S, kind.astype(np.int64)


def poisson(rng: np.random.Generator, n: int, rate_per_s: float, service: Service) -> Workload:
    service_s, kind = service(rng, n)
    return Workload(np.cumsum(rng.exponential(1.0 / rate_per_s, n)), service_s, kind)


def burst(
    rng: np.random.Generator, counts: tuple[int, ...], service: TwoNormals, spread_s: float
) -> Workload:
    """Return exactly `counts` short and long requests in random order, all within `spread_s` seconds."""
    kind = rng.permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int64)
    short, long = (replace(service, long_share=share)(rng, len(kind))[0] for share in (0.0, 1.0))
    arrival_s = np.sort(rng.uniform(0.0, spread_s, len(kind)))
    return Workload(arrival_s, np.where(kind == LONG, long, short), kind)


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


def with_error(rng: np.random.Generator, workload: Workload, error: float, answers: LogNormal) -> Predictions:
    """Return what is known of log-normal answers by a reading of their log length with this `error`."""
    share = answers.sigma**2 / (answers.sigma**2 + error**2)
    read = np.log(workload.service_s * TOKENS_PER_S) + rng.normal(0.0, error, len(workload))
    middle = np.log(answers.median_tokens) + share * (read - np.log(answers.median_tokens))
    spread = np.sqrt(share) * error
    tokens, q90 = np.exp(middle + spread**2 / 2), np.exp(middle + Z90 * spread)
    p_long = np.array([0.5 * erfc((log(LONG_FROM_TOKENS) - each) / spread / sqrt(2.0)) for each in middle])
    return Predictions(p_long, tokens / TOKENS_PER_S, q90 / TOKENS_PER_S, tokens, q90)


def from_p_long(p_long: Floats, short_s: float, long_s: float) -> Predictions:
    """Return the prediction that follows from P(Long) when the classes' mean service times are known."""
    cost_s = short_s + (long_s - short_s) * p_long
    q90_s = np.where(p_long >= 0.1, long_s, short_s)
    return Predictions(p_long, cost_s, q90_s, cost_s * TOKENS_PER_S, q90_s * TOKENS_PER_S)
