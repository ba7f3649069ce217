"""What the numbers cannot say for themselves: too few, too noisy, not alone, not the usual."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median, pstdev

from clairvoyant_cli.calibrate.survey import Survey
from predictor.record import LengthClass
from profiles.records import Profile, Sample

WIDE_INTERVAL = 0.25
"""Half the confidence interval over the mean."""

NOISY_RATE = 0.20
"""Standard deviation of the decode speed over its mean, one request at a time."""

UNEXPLAINED = 0.25
"""Share of an answer's time that the server does not account for."""

UNEXPLAINED_S = 0.1
FEW_SHORTS = 20


def advise(
    profile: Profile, singles: Sequence[Sample], queued: Sequence[Sample], found: Survey
) -> Iterator[str]:
    """Yield what whoever reads the profile should know, one line each."""
    if found.busy:
        yield f"{found.busy} requests of others were in the server at the start; measure when it is idle"
    yield from _about_the_sample(profile, queued)
    yield from _about_noise(singles)
    if found.slots is not None and found.slots != profile.slots:
        yield f"the server says it has {found.slots} slots, {profile.slots} worked at the same time"


def _about_the_sample(profile: Profile, queued: Sequence[Sample]) -> Iterator[str]:
    mu_short = profile.mu_short_s
    classes = [LengthClass.of(sample.tokens) for sample in queued if sample.counted]
    if mu_short is None:
        yield "no answer was Short (under 200 tokens): tau stays at its default; try another model"
        return
    if profile.method == "computed":
        yield "mu_short was computed from service times, for want of time; without --quick it is measured"
        return
    if mu_short.n < FEW_SHORTS:
        yield f"only {mu_short.n} Short answers were counted: ask more with --shorts"
    elif (mu_short.high - mu_short.low) / 2 > WIDE_INTERVAL * mu_short.mean:
        yield "mu_short is uncertain by more than a quarter: measure with --full, on an idle machine"
    if LengthClass.SHORT in classes and set(classes) == {LengthClass.SHORT}:
        yield "no answer was longer than Short: mu_short lacks the wait behind long ones"


def _about_noise(singles: Sequence[Sample]) -> Iterator[str]:
    rates = [s.tokens / s.decode_s for s in singles if s.decode_s and s.tokens >= 16]
    if len(rates) >= 4 and pstdev(rates) > NOISY_RATE * fmean(rates):
        yield (
            f"the speed varied by {pstdev(rates) / fmean(rates):.0%} from answer to answer: "
            "something else was using the machine"
        )
    unexplained = [s.sojourn_s - s.decode_s - (s.prefill_s or 0.0) for s in singles if s.decode_s is not None]
    services = [s.sojourn_s for s in singles if s.decode_s is not None]
    if unexplained and median(unexplained) > max(UNEXPLAINED_S, UNEXPLAINED * median(services)):
        yield (
            f"answers took {median(unexplained):.1f} s longer than the server worked on them: "
            "other clients were waiting in it"
        )
