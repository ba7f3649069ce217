"""Measures mu_short: short questions among long ones in a full queue (Clairvoyant, section 3.4).

Where there is no time for a real queue, mu_short follows from service times. A quick run has four short ones
and one long, so their spread is shrunk towards that of any lengths within a class.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist, fmean

from clairvoyant_cli.backends.client import Question, together
from clairvoyant_cli.calibrate.questions import LONG_CAP, mixed
from clairvoyant_cli.calibrate.server_speeds import question_s
from clairvoyant_cli.calibrate.session import IN_FLIGHT, SHORTS_PER_LONG, ServiceTime, Session, Step
from predictor.record import SHORT_BELOW_TOKENS
from profiles.records import Estimate, Sample

# With fewer short answers for each slot in the queue, mu_short is computed from service times instead: they
# would all have waited for the same few jobs.
MIN_SHORTS = 8

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
    """Return the samples of a full queue and "measured"; none and "computed" if there is no time for it."""
    in_flight, count = session.plan.queue_phase(slots)
    if session.remaining_s is not None:
        count = min(count, int(session.remaining_s / max(1e-3, question_s(services, slots))))
    expected = max(0, count - in_flight) * SHORTS_PER_LONG // (SHORTS_PER_LONG + 1)
    if expected < min(MIN_SHORTS * slots, session.plan.shorts):
        return [], "computed"
    questions = mixed(shorts, longs, count=count, shorts_per_long=SHORTS_PER_LONG, seed=session.seed)
    return await _keep_full(session, questions, in_flight), "measured"


async def _keep_full(session: Session, questions: Sequence[Question], in_flight: int) -> list[Sample]:
    """Send the questions, each as soon as another is answered; those that fill the queue do not count."""
    ahead, taken = iter(enumerate(questions)), list[Sample]()

    async def client() -> None:
        for number, question in ahead:
            if (session.remaining_s or 0.0) < 0.0:
                return  # the answers were longer than expected
            answer = await session.client.ask(question)
            taken.append(session.sample("load", question, answer, counted=number >= in_flight))
            session.queued.append(taken[-1])
            session.tell(Step("short ones among long ones, queueing", len(taken), len(questions)))

    await together(client() for _ in range(in_flight))
    return sorted(taken, key=lambda sample: sample.sent_s)


def computed_mu_short(services: Sequence[ServiceTime], token_s: float) -> Estimate:
    """Return mu_short and its 95 % interval from service times; `token_s` is the time that a token takes.

    By Little's law, a job in a queue of random order that is kept at `IN_FLIGHT` jobs a slot waits for the
    mean service times of all but itself. The uncertainties of both means add up with the degrees of freedom
    of Welch and Satterthwaite.
    """
    waits, block = IN_FLIGHT - 1, SHORTS_PER_LONG + 1
    kinds = (
        (True, 1.0 + waits * SHORTS_PER_LONG / block, SHORT_SPREAD_TOKENS),
        (False, waits / block, LONGER_SPREAD_TOKENS),
    )
    mu_short_s, parts = 0.0, list[tuple[float, int]]()
    for short, counts, spread_tokens in kinds:
        # Where nothing of this kind was seen, the other stands in for it, and is as uncertain.
        seen = [service for service in services if service.short is short] or services
        mean_s, squared_error, of = _mean(seen, spread_tokens * token_s)
        mu_short_s += counts * mean_s
        parts.append((counts**2 * squared_error, of))
    variance = sum(part for part, _ in parts)
    freedom = variance**2 / sum(part**2 / of for part, of in parts) if variance else 1
    half_s = student_t(max(1, int(freedom))) * sqrt(variance)
    least_s = min(service.seconds for service in services)
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
