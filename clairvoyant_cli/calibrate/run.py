"""Runs a calibration from the first question to the profile, and warns of measurements that are too few, or
disturbed by other clients.

The measured length makes an answer Short or Long, not the question's intent.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median

import msgspec

from clairvoyant_cli.backends.client import LOAD_S
from clairvoyant_cli.calibrate.prove import FULL_TOKENS, Prover, progress_name
from clairvoyant_cli.calibrate.questions import long_questions, short_questions
from clairvoyant_cli.calibrate.queueing import computed_mu_short, estimate, in_the_queue
from clairvoyant_cli.calibrate.server_speeds import (
    WARM_UP,
    Survey,
    measure_prefill,
    one_at_a_time,
    probe_slots,
    survey,
)
from clairvoyant_cli.calibrate.session import QUICK, Session, Step, is_short
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.scheduler.policy import TAU_PER_MU_SHORT
from predictor.record import LengthClass
from profiles.records import MIN_TRIALS, Host, Profile, Sample

MARGIN = 1.25  # of the time that a proof should take
WIDE_INTERVAL = 0.25  # half the confidence interval over the mean
MIN_TOKENS = 16
UNEXPLAINED = 0.25  # share of an answer's time for which the server does not account
UNEXPLAINED_S = 0.1
FEW_SHORTS = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a calibration has found, not yet kept."""

    profile: Profile
    samples: tuple[Sample, ...]
    progress: tuple[str, bytes] | None = None  # the name and state of a proof that was cut short


async def calibrate(session: Session, wanted_model: str | None, host: Host, version: str) -> Outcome:
    """Measure all that the plan asks for."""
    client, plan = session.client, session.plan
    found = await survey(client, wanted_model)
    client.silence_s = plan.silence_s
    if client.found.adapter.SWAPS_MODELS and not found.resident:
        session.tell(Step("loading the model", 0, 1))
        client.silence_s = LOAD_S
    first = await client.ask(WARM_UP)
    client.silence_s = plan.silence_s
    _say_if_too_slow(session, first.decode_tokens_per_s)
    shorts, longs = short_questions(session.seed), long_questions(session.seed)
    services = await one_at_a_time(session, shorts, longs)
    session.tell(Step("slots", 0, 1))
    slots = await probe_slots(client, longs[::-1], session.decode_tokens_per_s)
    # Before the long prompt: `serve` learns how fast it is read, but preempts nothing without this.
    prover, notes = await _prove_continuing(session, slots)
    prefill = await measure_prefill(session)
    queued, method = await in_the_queue(session, shorts, longs, services, slots)
    in_flight, _ = plan.queue_phase(slots)
    times = [each.sojourn_s for each in queued if each.counted and is_short(each)]
    mu_short = estimate(times, batch=in_flight)
    if method == "computed":
        mu_short = computed_mu_short(services, _token_s(session))
    singles = [service.sample for service in services]
    rates = [each.tokens / each.decode_s for each in queued if each.decode_s and each.tokens >= MIN_TOKENS]
    profile = Profile(
        name=found.served.profile_name,
        measured_at=time.time(),
        host=host,
        served=found.served,
        plan=plan.name,
        method=method,
        concurrency=in_flight,
        mu_short_s=mu_short,
        tau_s=None if mu_short is None else TAU_PER_MU_SHORT * mu_short.mean,
        decode_tokens_per_s=session.decode_tokens_per_s,
        prefill_tokens_per_s=prefill,
        ttft_s=median(sample.ttft_s for sample in singles),
        slots=slots,
        queued_decode_tokens_per_s=median(rates) if rates else None,
        took_s=session.took_s,
        measured_by=version,
        continuations=() if prover is None else prover.continuations,
    )
    advice = (*advise(profile, singles, queued, found), *notes)
    progress = None
    if prover is not None and not prover.is_complete:
        known = prover.progress
        known.ttft_s, known.prefill_tokens_per_s = profile.ttft_s or 0.0, profile.prefill_tokens_per_s
        known.decode_tokens_per_s = session.decode_tokens_per_s or 0.0
        progress = progress_name(client), msgspec.json.encode(known)
    return Outcome(replace(profile, advice=advice), tuple(session.samples), progress)


def _say_if_too_slow(session: Session, rate: float | None) -> None:
    plan = session.plan
    if plan.cut_s is not None and rate:
        needed_s = MARGIN * MIN_TRIALS * _prover(session, 1, rate).trial_s
        if needed_s > plan.cut_s:
            more = "run it without --quick" if plan.name == QUICK.name else "run it with --full"
            session.say(
                f"the server may be too slow to prove in this time that answers can be preempted; {more}"
            )


def _prover(session: Session, slots: int, rate: float) -> Prover:
    # Time may be up before there are as many trials as short answers need.
    return Prover(session.client, slots, rate, least=session.plan.trials, shortest=FULL_TOKENS)


async def _prove_continuing(session: Session, slots: int) -> tuple[Prover | None, tuple[str, ...]]:
    """Return how answers are continued, and remarks; a server that fails at that costs nothing of what was
    measured.
    """
    plan, clock = session.plan, session.client.clock
    prover = _prover(session, slots, 1.0 / _token_s(session))
    begun_s = clock()
    try:
        await prover.look()
        while not prover.is_complete:
            if plan.cut_s is not None:
                bound_s = min(begun_s + plan.cut_s - clock(), session.remaining_s or inf)
                if bound_s < 2 * prover.trial_s:
                    break  # the next question would take too long
            session.tell(Step("preempted and continued", prover.done, prover.wanted))
            await prover.step()
    except ClairvoyantError as error:
        return None, (f"whether a preempted answer can be continued is not known: {error}",)
    return prover, prover.notes


def _token_s(session: Session) -> float:
    if session.decode_tokens_per_s is not None:
        return 1.0 / session.decode_tokens_per_s
    alone = [service.sample for service in session.services]
    return sum(sample.sojourn_s for sample in alone) / max(1, sum(sample.tokens for sample in alone))


def advise(
    profile: Profile, singles: Sequence[Sample], queued: Sequence[Sample], found: Survey
) -> Iterator[str]:
    """Yield what readers of the profile should know, one line each."""
    if found.busy:
        yield f"{found.busy} other requests were in the server at the start; measure when it is idle"
    yield from _about_the_sample(profile, queued)
    yield from _about_others(singles)
    if found.slots is not None and found.slots != profile.slots:
        yield f"the server reports {found.slots} slots, but {profile.slots} worked at the same time"


def _about_the_sample(profile: Profile, queued: Sequence[Sample]) -> Iterator[str]:
    mu_short = profile.mu_short_s
    classes = {LengthClass.of(sample.tokens) for sample in queued if sample.counted}
    if mu_short is None:
        yield "no answer was Short (under 200 tokens): tau stays at its default; try another model"
        return
    if profile.method == "computed":
        how = f"computed from {mu_short.n} service times, for lack of time"
        yield f"mu_short was {how}; with --full it is measured"
        return
    if mu_short.n < FEW_SHORTS:
        yield f"only {mu_short.n} Short answers were counted: measure with --full"
    elif (mu_short.high - mu_short.low) / 2 > WIDE_INTERVAL * mu_short.mean:
        yield "mu_short is uncertain by more than a quarter: measure with --full, on an idle machine"
    if classes == {LengthClass.SHORT}:
        yield "no answer was longer than Short: mu_short lacks the wait behind long ones"


def _about_others(singles: Sequence[Sample]) -> Iterator[str]:
    told = [s for s in singles if s.decode_s is not None]
    more_s = [s.sojourn_s - (s.decode_s or 0.0) - (s.prefill_s or 0.0) - (s.load_s or 0.0) for s in told]
    if told and median(more_s) > max(UNEXPLAINED_S, UNEXPLAINED * median(s.sojourn_s for s in told)):
        news = f"answers took {median(more_s):.1f} s longer than the server worked on them"
        yield f"{news}: other clients were waiting in it"
