"""Models answer lengths as a shifted log-normal: a mean and a spread give all figures of a prediction.

log(tokens + SHIFT_TOKENS) is taken to be normal. The shift keeps answers of one token and of five from
looking as different as ones of 200 and 1000.
"""

from math import erf, exp, log, sqrt, tanh
from statistics import NormalDist

from predictor.card import Calibration
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, Prediction

SHIFT_TOKENS = 10.0

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


def tokens_at(place: float) -> float:
    """Return the tokens at a place of that scale, never less than 1."""
    return max(exp(place) - SHIFT_TOKENS, 1.0)


def class_probabilities(
    mean: float, spread: float, short_edge: Edge, long_edge: Edge
) -> tuple[float, float, float]:
    """Return P(Short), P(Medium), P(Long); they sum to 1."""
    below_short = _below((LOG_SHORT - mean) / spread, short_edge)
    below_long = max(_below((LOG_LONG - mean) / spread, long_edge), below_short)
    return below_short, below_long - below_short, 1.0 - below_long


def _below(distance: float, edge: Edge) -> float:
    odds = edge[0] + edge[1] * distance
    return 0.5 + 0.5 * tanh(0.5 * odds)


def mean_tokens(mean: float, spread: float) -> float:
    """Return the expected tokens."""
    return tokens_at(mean + spread * spread / 2)


def median_above(mean: float, spread: float, least: float) -> float:
    """Return the median, in log tokens, of the answers whose log tokens are `least` or more."""
    distance = (least - mean) / spread
    if distance > FARTHEST:
        return least + spread * log(2.0) / distance  # what is left of the tail falls off exponentially
    return mean - spread * _NORMAL.inv_cdf(_share_above(distance) / 2)


def capped_mean_tokens(mean: float, spread: float, cap: int) -> float:
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
    (bias, slope), (long_bias, long_slope) = calibration.short_edge, calibration.long_edge
    edges = (bias + shifts[0], slope), (long_bias + shifts[1], long_slope)
    short, medium, long = class_probabilities(mean, spread * scale, *edges)
    upper = tokens_at(q90)
    if cap is not None and cap >= 0:
        expected, ordered = (capped_mean_tokens(mean, each, cap) for each in (spread * scale, spread))
        upper = min(upper, float(cap))
        short, medium, long = _capped_classes(short, medium, long, cap)
    else:
        expected, ordered = mean_tokens(mean, spread * scale), mean_tokens(mean, spread)
    return Prediction(short, medium, long, log_tokens(ordered), expected, upper, source, memo)


def predicted_by(calibration: Calibration, score: float) -> Prediction:
    """Return the record that a score alone gives: no context, no cap, nothing learnt."""
    mean = calibration.mean_at(score)
    spread = calibration.spread_at(mean)
    return prediction_of(calibration, mean, spread, mean + calibration.q90_at * spread, None, "")


def _capped_classes(short: float, medium: float, long: float, cap: int) -> tuple[float, float, float]:
    if cap < SHORT_BELOW_TOKENS:
        return 1.0, 0.0, 0.0
    if cap < LONG_FROM_TOKENS:
        return short, medium + long, 0.0
    return short, medium, long
