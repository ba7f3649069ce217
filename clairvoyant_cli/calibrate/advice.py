"""Warns of measurements that are too few, too noisy, or disturbed by other clients."""

from collections.abc import Iterator, Sequence
from math import log, sqrt
from statistics import fmean, linear_regression, median

from clairvoyant_cli.calibrate.server_speeds import Survey
from predictor.record import LengthClass
from profiles.records import Profile, Sample

WIDE_INTERVAL = 0.25  # half the confidence interval over the mean
NOISY_RATE = 0.20  # standard deviation of the decode speed, relative, one request at a time
MIN_RATES = 4
MIN_TOKENS = 16
CERTAIN = 1.645  # of normal deviates, 95 of a hundred are smaller
UNEXPLAINED = 0.25  # share of an answer's time for which the server does not account
UNEXPLAINED_S = 0.1
FEW_SHORTS = 20


def advise(
    profile: Profile, singles: Sequence[Sample], queued: Sequence[Sample], found: Survey
) -> Iterator[str]:
    """Yield what readers of the profile should know, one line each."""
    if found.busy:
        yield f"{found.busy} other requests were in the server at the start; measure when it is idle"
    yield from _about_the_sample(profile, queued)
    yield from _about_noise(singles)
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
        yield f"only {mu_short.n} Short answers were counted: ask more with --shorts"
    elif (mu_short.high - mu_short.low) / 2 > WIDE_INTERVAL * mu_short.mean:
        yield "mu_short is uncertain by more than a quarter: measure with --full, on an idle machine"
    if classes == {LengthClass.SHORT}:
        yield "no answer was longer than Short: mu_short lacks the wait behind long ones"


def _about_noise(singles: Sequence[Sample]) -> Iterator[str]:
    spread, freedom = speed_spread(singles)
    if freedom:
        # The 95 % quantile of chi-squared over its degrees of freedom (Wilson and Hilferty, 1931).
        part = 2.0 / (9.0 * freedom)
        bound = NOISY_RATE * sqrt((1.0 - part + CERTAIN * sqrt(part)) ** 3)
    if freedom and spread > bound:
        yield f"the speed varied by {spread:.0%} from answer to answer: something else used the machine"
    told = [s for s in singles if s.decode_s is not None]
    more_s = [s.sojourn_s - (s.decode_s or 0.0) - (s.prefill_s or 0.0) - (s.load_s or 0.0) for s in told]
    if told and median(more_s) > max(UNEXPLAINED_S, UNEXPLAINED * median(s.sojourn_s for s in told)):
        news = f"answers took {median(more_s):.1f} s longer than the server worked on them"
        yield f"{news}: other clients were waiting in it"


def speed_spread(samples: Sequence[Sample]) -> tuple[float, int]:
    """Return the relative standard deviation of the decode speed and its degrees of freedom; 0 where the
    server reported too little.

    Long answers are slower by their longer context, short ones by the fixed cost of an answer, even on an
    idle machine. So what a straight line in the logarithms of length and speed explains is not noise.
    """
    told = [s for s in samples if s.decode_s and s.tokens >= MIN_TOKENS]
    if len(told) < MIN_RATES:
        return 0.0, 0
    lengths = [log(s.tokens) for s in told]
    rates = [log(s.tokens / s.decode_s) for s in told if s.decode_s]
    varied = len(set(lengths)) > 1
    slope, start = linear_regression(lengths, rates) if varied else (0.0, fmean(rates))
    left = sum((rate - start - slope * length) ** 2 for length, rate in zip(lengths, rates, strict=True))
    freedom = len(told) - (2 if varied else 1)
    return sqrt(left / freedom), freedom
