"""Measures mu_short: short questions among long ones in a full queue (Clairvoyant, section 3.4).

Where there is no time for a real queue, measured service times are put through a simulated one. A quick run
has four short ones and one long, so their spread is shrunk towards that of any lengths within a class.
"""

import heapq
from collections.abc import Sequence
from math import sqrt
from random import Random
from statistics import NormalDist, fmean

from clairvoyant_cli.backends.client import Question, together
from clairvoyant_cli.calibrate.questions import LONG_CAP, mixed
from clairvoyant_cli.calibrate.server_speeds import question_s, times_of
from clairvoyant_cli.calibrate.session import SHORTS_PER_LONG, ServiceTime, Session, Step
from predictor.record import SHORT_BELOW_TOKENS
from profiles.records import Estimate, Sample

# With fewer short answers for each slot in the queue, mu_short is computed from service times instead: they
# would all have waited for the same few jobs.
MIN_SHORTS = 8
BLOCKS = 400  # of four short jobs and a long one: enough that their order does not matter
NUDGE = 0.01

# Standard deviations of lengths anywhere between a class's bounds.
SHORT_SPREAD_TOKENS = SHORT_BELOW_TOKENS / sqrt(12)
LONGER_SPREAD_TOKENS = (LONG_CAP - SHORT_BELOW_TOKENS) / sqrt(12)
WEIGHT = 4  # answers' worth of evidence of those spreads


async def in_the_queue(
    session: Session,
    shorts: Sequence[Question],
    longs: Sequence[Question],
    services: Sequence[ServiceTime],
    slots: int,
) -> tuple[list[Sample], str]:
    """Return the samples of a full queue, and whether they were "measured" or "computed"."""
    in_flight, count = session.plan.queue_phase(slots)
    if session.remaining_s is not None:
        count = min(count, int(session.remaining_s / max(1e-3, question_s(services, slots))))
    expected = max(0, count - in_flight) * SHORTS_PER_LONG // (SHORTS_PER_LONG + 1)
    if expected < min(MIN_SHORTS * slots, session.plan.shorts):
        times = simulated_sojourns(services, in_flight, slots)
        return [Sample("load", "computed", 0, 1, 0.0, 0.0, time_s) for time_s in times], "computed"
    questions = mixed(shorts, longs, count=count, shorts_per_long=SHORTS_PER_LONG, seed=session.seed)
    return await _keep_full(session, questions, in_flight), "measured"


async def _keep_full(session: Session, questions: Sequence[Question], in_flight: int) -> list[Sample]:
    """Send the questions, each as soon as another is answered; those that fill the queue do not count."""
    ahead, taken = iter(enumerate(questions)), list[Sample]()
    begun_s = session.client.clock()

    async def client() -> None:
        for number, question in ahead:
            if (session.remaining_s or 0.0) < 0.0:
                return  # the answers were longer than expected
            answer = await session.client.ask(question)
            taken.append(session.sample("load", question, answer, counted=number >= in_flight))
            session.queued.append(taken[-1])
            left_s = (session.client.clock() - begun_s) / len(taken) * (len(questions) - len(taken))
            session.tell(Step("short ones among long ones, queueing", len(taken), len(questions), left_s))

    await together(client() for _ in range(in_flight))
    return sorted(taken, key=lambda sample: sample.sent_s)


def simulated_sojourns(
    services: Sequence[ServiceTime], in_flight: int, slots: int, *, short: float = 1.0, longer: float = 1.0
) -> list[float]:
    """Return short jobs' sojourn times in a full queue; `short` and `longer` stretch the services."""
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


def computed_mu_short(
    services: Sequence[ServiceTime], in_flight: int, slots: int, token_s: float
) -> Estimate:
    """Return mu_short and its 95 % interval by simulation; `token_s` is the time that a token takes. The
    uncertainties of both means add up with the degrees of freedom of Welch and Satterthwaite.
    """
    mu_short_s = fmean(simulated_sojourns(services, in_flight, slots))
    least_s = min(service.seconds for service in services)
    parts: list[tuple[float, int]] = []
    for kind, spread_tokens in (("short", SHORT_SPREAD_TOKENS), ("longer", LONGER_SPREAD_TOKENS)):
        # Where nothing of this kind was seen, the other stands in for it, and is as uncertain.
        seen = [service for service in services if service.short is (kind == "short")] or services
        mean_s, squared_error, of = _mean(seen, spread_tokens * token_s)
        nudged_s = fmean(simulated_sojourns(services, in_flight, slots, **{kind: 1.0 + NUDGE}))
        follows = (nudged_s - mu_short_s) / (NUDGE * mean_s)
        parts.append((follows**2 * squared_error, of))
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / of for part, of in parts) if variance else 1
    half_s = student_t(max(1, int(freedom))) * sqrt(variance)
    return Estimate(mu_short_s, max(least_s, mu_short_s - half_s), mu_short_s + half_s, len(services))


def _mean(services: Sequence[ServiceTime], spread_s: float) -> tuple[float, float, int]:
    """Return a mean service time, its squared standard error, and the degrees of freedom of that.

    The spread is pooled with the expected `spread_s` (an inverse chi-squared prior). What was assumed of
    a cut answer is off by anything from nothing to all of it.
    """
    n, freedom = len(services), WEIGHT + len(services) - 1
    mean_s = fmean(service.seconds for service in services)
    squares = WEIGHT * spread_s**2 + sum((service.seconds - mean_s) ** 2 for service in services)
    assumed = sum(service.assumed_s**2 for service in services) / 3.0
    return mean_s, squares / freedom / n + assumed / n**2, freedom


def estimate(values: Sequence[float], batch: int = 1) -> Estimate | None:
    """Return the mean and its 95 % interval by overlapping batch means; None without values.

    Neighbours in a queue wait for the same jobs; `batch` is how far that reaches (Meketon and Schmeiser,
    Winter Simulation Conference 1984).
    """
    n = len(values)
    if n == 0:
        return None
    mean = fmean(values)
    if n == 1:
        return Estimate(mean, mean, mean, 1)
    batch = max(1, min(batch, n // 2))
    means = [fmean(values[start : start + batch]) for start in range(n - batch + 1)]
    variance = n * batch / ((n - batch) * len(means)) * sum((each - mean) ** 2 for each in means)
    freedom = n - 1 if batch == 1 else int(1.5 * (n / batch - 1))
    half = student_t(max(1, freedom)) * sqrt(variance / n)
    return Estimate(mean, max(0.0, mean - half), mean + half, n)


def sojourns(services_s: Sequence[float], in_flight: int, slots: int) -> list[float]:
    """Return the sojourn times of jobs served first come first served, `in_flight` at a time."""
    free_at = [0.0] * slots
    ended, times = list[float](), list[float]()
    for number, service_s in enumerate(services_s):
        sent = heapq.heappop(ended) if number >= in_flight else 0.0
        end = max(sent, free_at[0]) + service_s
        heapq.heapreplace(free_at, end)
        heapq.heappush(ended, end)
        times.append(end - sent)
    return times


def student_t(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t to three digits; not a number below one degree.

    Cornish and Fisher's expansion from five degrees of freedom on, tabulated values before.
    """
    if freedom < 5:
        return {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}.get(freedom, float("nan"))
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4.0
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96.0
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384.0
    return z + first / freedom + second / freedom**2 + third / freedom**3
