"""Models answer lengths as a shifted log-normal: a mean and a spread give all figures of a prediction.

log(tokens + SHIFT_TOKENS) is taken to be normal. The shift keeps answers of one token and of five from
looking as different as ones of 200 and 1000.
"""

from math import erf, exp, log, sqrt, tanh
from statistics import NormalDist

from predictor.card import Calibration
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, Prediction

SHIFT_TOKENS = 10.0

LOG_LEAST = log(1.0 + SHIFT_TOKENS)  # of an answer of one token
LOG_SHORT = log(SHORT_BELOW_TOKENS + SHIFT_TOKENS)
LOG_LONG = log(LONG_FROM_TOKENS + SHIFT_TOKENS)
_ROOT_2 = sqrt(2.0)
_NORMAL = NormalDist()

FARTHEST = 5.0  # spreads above the mean; beyond, a tail is as good as its approximation (Mills' ratio)


Edge = tuple[float, float]
"""Bias and slope of the log odds at a class boundary, as `card.Calibration` explains."""


def log_tokens(tokens: float) -> float:
    """Return an answer's place on the scale that is taken to be normal."""
    return log(max(tokens, 0.0) + SHIFT_TOKENS)


def median_above(mean: float, spread: float, least: float) -> float:
    """Return the median, in log tokens, of the answers whose log tokens are `least` or more."""
    distance = (least - mean) / spread
    if distance > FARTHEST:
        return least + spread * log(2.0) / distance  # what is left of the tail falls off exponentially
    return mean - spread * _NORMAL.inv_cdf(_share_above(distance) / 2)


def _capped_tokens(mean: float, spread: float, cap: int) -> float:
    """Return the expected tokens of an answer that is cut off after `cap` tokens."""
    edge = (log(cap + SHIFT_TOKENS) - mean) / spread
    below, above = _share_above(spread - edge), _share_above(edge)
    whole = exp(mean + spread * spread / 2) * below + (cap + SHIFT_TOKENS) * above - SHIFT_TOKENS
    return min(max(whole, 1.0), float(cap))


def _share_above(distance: float) -> float:
    """Return the share of a normal distribution at least this many spreads above its mean."""
    return 0.5 - 0.5 * erf(distance / _ROOT_2)


def prediction_of(
    calibration: Calibration,
    mean: float,
    spread: float,
    q90: float,
    cap: int | None,
    source: str,
    memo: object = None,
    shifts: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
) -> Prediction:
    """Return the record of a log-normal answer length, cut off at the client's cap if there is one.

    `shifts` are added to the log odds of being below the boundaries of the classes. `scale` multiplies the
    spread, but not in the score: scores of different times would not be comparable.
    """
    wide = spread * scale
    (bias, slope), (long_bias, long_slope) = calibration.short_edge, calibration.long_edge
    # The logistic function of the log odds of an answer below each boundary.
    short = 0.5 + 0.5 * tanh(0.5 * (bias + shifts[0] + slope * (LOG_SHORT - mean) / wide))
    long_odds = long_bias + shifts[1] + long_slope * (LOG_LONG - mean) / wide
    below_long = max(0.5 + 0.5 * tanh(0.5 * long_odds), short)
    medium, long = below_long - short, 1.0 - below_long
    upper = max(exp(q90) - SHIFT_TOKENS, 1.0)
    if cap is None or cap < 0:
        score = max(mean + spread * spread / 2, LOG_LEAST)
        expected = max(exp(mean + wide * wide / 2) - SHIFT_TOKENS, 1.0)
    else:
        score = log_tokens(_capped_tokens(mean, spread, cap))
        expected, upper = _capped_tokens(mean, wide, cap), min(upper, float(cap))
        if cap < SHORT_BELOW_TOKENS:
            short, medium, long = 1.0, 0.0, 0.0
        elif cap < LONG_FROM_TOKENS:
            medium, long = medium + long, 0.0
    return Prediction(short, medium, long, score, expected, upper, source, memo)
