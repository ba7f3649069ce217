"""Service times: questions one at a time, so that nothing is in them but the work itself."""

from collections.abc import Sequence
from statistics import fmean

from clairvoyant_cli.calibrate.client import Answer
from clairvoyant_cli.calibrate.partial_results import Service
from clairvoyant_cli.calibrate.plan import SHORTS_PER_LONG, Plan
from clairvoyant_cli.calibrate.questions import LONG_CAP, Question
from clairvoyant_cli.calibrate.session import Session, Step, is_short

SHARE = 0.45
"""Share of a bounded run that questions one at a time may take; they say what the rest will."""

MIN_TOKENS = 32

SHORT_TOKENS, LONG_TOKENS = 60, 800
"""What questions of either kind bring, before any was asked."""

TRIAL_TOKENS = 400
"""What trying whether an answer can be continued takes, with the uncut one and what goes between."""


async def one_at_a_time(
    session: Session, shorts: Sequence[Question], longs: Sequence[Question]
) -> list[Service]:
    """Ask the plan's questions one by one; the short ones first, which tell how long the others take."""
    plan = session.plan
    long_ones = max(1, plan.singles // (SHORTS_PER_LONG + 1))
    questions = [*shorts[: plan.singles - long_ones], *longs[:long_ones]]
    services: list[Service] = []
    for done, question in enumerate(questions):
        known = session.measured.service_of(question.name, whole=plan.budget_s is None)
        if known is not None:
            services.append(known)
            continue
        left_s = _left_s(session, services, questions[done:])
        session.tell(Step("one at a time", done, len(questions), left_s))
        cap = _affordable(session, question)
        answer = await session.ask_alone(question, cap)
        sample = session.sample("service", question, answer)
        rate = session.decode_tokens_per_s
        cut = question.cap - answer.tokens if cap is not None and answer.capped else 0
        more_s = cut / rate if cut and rate else 0.0
        service = Service(sample, sample.sojourn_s + more_s, is_short(sample) and not cut, more_s)
        session.measured.services.append(service)
        services.append(service)
    return services


def forecast_s(plan: Plan, first: Answer) -> float | None:
    """Guess from a first answer how long a plan will take, in seconds; None if that is too short to tell."""
    rate = first.decode_tokens_per_s
    if rate is None:
        return None
    long_ones = max(1, plan.singles // (SHORTS_PER_LONG + 1))
    _, count = queue_phase(plan, 1)
    shorts = plan.singles - long_ones + count * SHORTS_PER_LONG / (SHORTS_PER_LONG + 1)
    longs = long_ones + count / (SHORTS_PER_LONG + 1)
    tokens = shorts * SHORT_TOKENS + longs * LONG_TOKENS + plan.trials * TRIAL_TOKENS
    return tokens / rate + (shorts + longs) * first.ttft_s


def mean_services(services: Sequence[Service]) -> tuple[float, float]:
    """Return the mean service times of Short answers and of longer ones; both of all if there is one kind."""
    short, longer = (times_of(services, short=short) for short in (True, False))
    return fmean(short or longer), fmean(longer or short)


def times_of(services: Sequence[Service], *, short: bool) -> list[float]:
    """Return the service times of the Short answers, or of the others, in seconds."""
    return [service.seconds for service in services if service.short is short]


def queue_phase(plan: Plan, slots: int) -> tuple[int, int]:
    """Return how many requests the queue phase keeps in flight, and how many it sends in all."""
    counted = plan.shorts * (SHORTS_PER_LONG + 1) // SHORTS_PER_LONG
    if plan.in_flight == 0:
        return counted, counted
    in_flight = plan.in_flight * slots
    # The first ones find an empty queue: they only fill it.
    return in_flight, counted + in_flight


def queue_phase_s(services: Sequence[Service], count: int, slots: int) -> float:
    """Return how long so many requests of the mix will take, in seconds."""
    short_s, longer_s = mean_services(services)
    return count * (SHORTS_PER_LONG * short_s + longer_s) / (SHORTS_PER_LONG + 1) / slots


def _affordable(session: Session, question: Question) -> int | None:
    """Return the cap under which a long answer fits into a bounded run; None if all of it does."""
    rate, budget_s = session.decode_tokens_per_s, session.plan.budget_s
    if budget_s is None or rate is None or question.cap < LONG_CAP:
        return None
    fits = int(rate * (SHARE * budget_s - session.took_s))
    return None if fits >= question.cap else max(MIN_TOKENS, fits)


def _left_s(session: Session, services: Sequence[Service], ahead: Sequence[Question]) -> float | None:
    """Guess the seconds to the end of the run."""
    if not services:
        return session.remaining_s
    short_s, longer_s = mean_services(services)
    if session.decode_tokens_per_s is not None:
        longer_s = max(longer_s, LONG_CAP / session.decode_tokens_per_s)
    alone_s = sum(longer_s if question.cap >= LONG_CAP else short_s for question in ahead)
    _, count = queue_phase(session.plan, 1)
    all_s = alone_s + count * (SHORTS_PER_LONG * short_s + longer_s) / (SHORTS_PER_LONG + 1)
    return all_s if session.remaining_s is None else min(all_s, max(0.0, session.remaining_s))
