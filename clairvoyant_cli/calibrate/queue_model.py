"""mu_short on paper: a few measured service times put through a queue, for want of time for a real one.

What is uncertain about it are the mean service times, of which a quick run has four short and one long. Their
spread cannot be had from so few: it is shrunk towards what lengths can be at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random
from statistics import fmean

from clairvoyant_cli.calibrate.estimates import sojourns
from clairvoyant_cli.calibrate.partial_results import Service
from clairvoyant_cli.calibrate.plan import SHORTS_PER_LONG
from clairvoyant_cli.calibrate.questions import LONG_CAP
from clairvoyant_cli.calibrate.service import times_of
from clairvoyant_cli.confidence import student_t
from predictor.record import SHORT_BELOW_TOKENS
from profiles.records import Estimate

BLOCKS = 400
"""Of four short jobs and a long one: enough that their order does not matter."""

NUDGE = 0.01

SHORT_SPREAD_TOKENS = SHORT_BELOW_TOKENS / sqrt(12)
LONGER_SPREAD_TOKENS = (LONG_CAP - SHORT_BELOW_TOKENS) / sqrt(12)
"""Standard deviations of lengths anywhere between a class's bounds."""

WEIGHT = 4
"""So many answers' worth of evidence are those spreads."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean service time, its squared standard error, and the degrees of freedom of that."""

    seconds: float
    variance: float
    freedom: int


def mean_of(services: Sequence[Service], spread_s: float) -> Mean:
    """Return the mean of some service times; `spread_s` is how far they may well be apart, whatever they say.

    Both spreads are pooled by their degrees of freedom, as by a scaled inverse chi-squared prior. What was
    assumed of an answer that was cut short is off by anything from nothing to all of it.
    """
    n, freedom = len(services), WEIGHT + len(services) - 1
    mean_s = fmean(service.seconds for service in services)
    squares = WEIGHT * spread_s**2 + sum((service.seconds - mean_s) ** 2 for service in services)
    assumed = sum(service.assumed_s**2 for service in services) / 3.0
    return Mean(mean_s, squares / freedom / n + assumed / n**2, freedom)


def sojourns_on_paper(
    services: Sequence[Service], in_flight: int, slots: int, *, short: float = 1.0, longer: float = 1.0
) -> list[float]:
    """Return the sojourn times of short jobs among long ones in a full queue, in seconds.

    The service times are the measured ones, in turn; `short` and `longer` stretch those of a kind.
    """
    pools = {kind: times_of(services, short=kind) for kind in (True, False)}
    rng = Random(0)  # noqa: S311 - an order, not a secret
    kinds: list[bool] = []
    for _ in range(BLOCKS):
        block = [True] * SHORTS_PER_LONG
        block.insert(rng.randint(0, SHORTS_PER_LONG), False)
        kinds += block
    times, given = [], {True: 0, False: 0}
    for kind in kinds:
        pool = pools[kind] or pools[not kind]
        times.append(pool[given[kind] % len(pool)] * (short if kind else longer))
        given[kind] += 1
    found = sojourns(times, in_flight, slots)
    return [time_s for kind, time_s in zip(kinds[in_flight:], found[in_flight:], strict=True) if kind]


def mu_short_on_paper(services: Sequence[Service], in_flight: int, slots: int, token_s: float) -> Estimate:
    """Return mu_short and its 95 % interval; `token_s` is the time that a token takes.

    How far mu_short follows either mean is tried out; their uncertainties add up with the degrees of freedom
    of Welch and Satterthwaite.
    """
    mu_short_s = fmean(sojourns_on_paper(services, in_flight, slots))
    least_s = min(service.seconds for service in services)
    parts: list[tuple[float, int]] = []
    for kind, spread_tokens in (("short", SHORT_SPREAD_TOKENS), ("longer", LONGER_SPREAD_TOKENS)):
        # Where nothing of this kind was seen, the other stands in for it, and is as uncertain.
        seen = [service for service in services if service.short is (kind == "short")] or services
        mean = mean_of(seen, spread_tokens * token_s)
        nudged_s = fmean(sojourns_on_paper(services, in_flight, slots, **{kind: 1.0 + NUDGE}))
        follows = (nudged_s - mu_short_s) / (NUDGE * mean.seconds)
        parts.append((follows**2 * mean.variance, mean.freedom))
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / of for part, of in parts) if variance else 1
    half_s = student_t(max(1, int(freedom))) * sqrt(variance)
    return Estimate(mu_short_s, max(least_s, mu_short_s - half_s), mu_short_s + half_s, len(services))
