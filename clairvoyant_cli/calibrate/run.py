"""Runs a calibration from the first question to the profile.

The measured length makes an answer Short or Long, not the question's intent.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean, median

from clairvoyant_cli.calibrate.advice import advise
from clairvoyant_cli.calibrate.client import TimedAnswer
from clairvoyant_cli.calibrate.continuation import FULL_TOKENS, Prover
from clairvoyant_cli.calibrate.questions import long_questions, short_questions
from clairvoyant_cli.calibrate.queueing import computed_mu_short, cs2, estimate, in_the_queue
from clairvoyant_cli.calibrate.server_speeds import (
    WARM_UP,
    forecast_s,
    load_model,
    measure_bands,
    one_at_a_time,
    probe_slots,
    survey,
    times_of,
)
from clairvoyant_cli.calibrate.session import QUICK, ServiceTime, Session, Step, is_short
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.scheduler.starvation import tau_from_sojourn
from predictor.ranking import pairs_in_order
from predictor.record import LengthClass
from profiles.percentiles import percentile
from profiles.records import MIN_TRIALS, Continuation, Host, Mix, Profile, Sample

MARGIN = 1.25  # of the time that a proof should take


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a calibration has found, not yet kept."""

    profile: Profile
    samples: tuple[Sample, ...]


async def calibrate(session: Session, wanted_model: str | None, host: Host, version: str) -> Outcome:
    """Measure all that the plan asks for."""
    client, plan = session.client, session.plan
    found = await survey(client, wanted_model)
    load_s = None
    if not found.resident or plan.reload:
        session.tell(Step("loading the model", 0, 1))
        load_s = await load_model(client, unload_first=plan.reload and found.resident)
    if not found.resident and load_s is None:
        client.silence_s = plan.silence_s  # it may be loading now
    first = await client.ask(WARM_UP)
    client.silence_s = plan.silence_s
    _say_how_long(session, first)
    shorts, longs = short_questions(session.seed), long_questions(session.seed)
    services = await one_at_a_time(session, shorts, longs)
    bands = await measure_bands(session)
    session.tell(Step("slots", 0, 1, session.remaining_s))
    slots = await probe_slots(client, longs[::-1], session.decode_tokens_per_s)
    continuations, notes = await _prove_continuing(session, slots)
    queued, method = await in_the_queue(session, shorts, longs, services, slots)
    in_flight, _ = plan.queue_phase(slots)
    times = [each.sojourn_s for each in queued if each.counted and is_short(each)]
    mu_short = estimate(times, batch=in_flight)
    if method == "computed":
        mu_short = computed_mu_short(services, in_flight, slots, _token_s(session))
    prefill = [rate for band in bands if (rate := band.prefill_tokens_per_s)]
    singles = [service.sample for service in services]
    rates = [each.tokens / each.decode_s for each in queued if each.decode_s and each.tokens >= 16]
    profile = Profile(
        name=found.served.profile_name,
        measured_at=time.time(),
        host=host,
        served=found.served,
        plan=plan.name,
        method=method,
        concurrency=in_flight,
        mu_short_s=mu_short,
        tau_s=None if mu_short is None else tau_from_sojourn(mu_short.mean),
        decode_tokens_per_s=session.decode_tokens_per_s,
        prefill_tokens_per_s=median(prefill) if prefill else None,
        ttft_s=median(sample.ttft_s for sample in singles),
        load_s=load_s,
        slots=slots,
        mixes=tuple(_mixes(services)),
        bands=tuple(bands),
        short_p99_s=percentile(sorted(times), 0.99) if times else None,
        ranking_accuracy=_ranking_accuracy(session.samples),
        queued_decode_tokens_per_s=median(rates) if rates else None,
        took_s=session.took_s,
        measured_by=version,
        continuations=continuations,
    )
    advice = (*advise(profile, singles, queued, found), *notes)
    return Outcome(replace(profile, advice=advice), tuple(session.samples))


def _say_how_long(session: Session, first: TimedAnswer) -> None:
    plan, rate = session.plan, first.decode_tokens_per_s or 0.0
    expected_s = forecast_s(plan, first)
    if plan.budget_s is None and expected_s is not None:
        line = f"by the server's first answer this takes about {max(1, round(expected_s / 60))} min; "
        session.say(line + "without --full it takes three")
    if plan.cut_s is not None and rate:
        needed_s = MARGIN * MIN_TRIALS * _prover(session, 1, rate).trial_s
        if needed_s > plan.cut_s:
            more = "run it without --quick" if plan.name == QUICK.name else "run it with --full"
            session.say(f"the server may be too slow to prove in this time that answers can be cut; {more}")


def _prover(session: Session, slots: int, rate: float) -> Prover:
    # Time may be up before there are as many trials as short answers need.
    return Prover(session.client, slots, rate, least=session.plan.trials, shortest=FULL_TOKENS)


async def _prove_continuing(session: Session, slots: int) -> tuple[tuple[Continuation, ...], tuple[str, ...]]:
    """Return how answers are continued, and remarks; a server that fails at that costs nothing of what was
    measured.
    """
    plan, clock = session.plan, session.client.clock
    prover = _prover(session, slots, 1.0 / _token_s(session))
    begun_s = clock()
    try:
        await prover.look()
        while not prover.is_complete:
            left_s = prover.trial_s * (prover.wanted - prover.done)
            if plan.cut_s is not None:
                bound_s = min(begun_s + plan.cut_s - clock(), session.remaining_s or inf)
                if bound_s < 2 * prover.trial_s:
                    break  # the next question would take too long
                left_s = min(left_s, bound_s)
            session.tell(Step("cut and continued", prover.done, prover.wanted, left_s))
            await prover.step()
    except ClairvoyantError as error:
        return (), (f"whether a cut answer can be continued is not known: {error}",)
    return prover.continuations, prover.notes


def _token_s(session: Session) -> float:
    if session.decode_tokens_per_s is not None:
        return 1.0 / session.decode_tokens_per_s
    alone = [service.sample for service in session.services]
    return sum(sample.sojourn_s for sample in alone) / max(1, sum(sample.tokens for sample in alone))


def _mixes(services: Sequence[ServiceTime]) -> Iterator[Mix]:
    short, longer = (times_of(services, short=short) for short in (True, False))
    for name, times in (("short", short), ("longer", longer), ("mixed", short + longer)):
        if times:
            yield Mix(name, len(times), fmean(times), cs2(times))


def _ranking_accuracy(samples: Sequence[Sample]) -> float | None:
    scores: dict[LengthClass, list[float]] = {each: [] for each in LengthClass}
    for sample in samples:
        if sample.p_long is not None:
            scores[LengthClass.of(sample.tokens)].append(sample.p_long)
    return pairs_in_order(scores[LengthClass.SHORT], scores[LengthClass.LONG])
