"""From a mean and a spread of log tokens to the record of an answer's length."""

from predictor.card import Calibration
from predictor.lognormal import capped_mean_tokens, class_probabilities, log_tokens, mean_tokens, tokens_at
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, Prediction


def prediction_of(
    calibration: Calibration,
    mean: float,
    spread: float,
    q90: float,
    cap: int | None,
    source: str,
    memo: object = None,
    shifts: tuple[float, float] = (0.0, 0.0),
) -> Prediction:
    """Return the record of a log-normal answer length, cut off at the client's cap if there is one.

    `shifts` are added to the log odds of being below the boundaries of the classes.
    """
    (bias, slope), (long_bias, long_slope) = calibration.short_edge, calibration.long_edge
    edges = (bias + shifts[0], slope), (long_bias + shifts[1], long_slope)
    short, medium, long = class_probabilities(mean, spread, *edges)
    expected, upper = mean_tokens(mean, spread), tokens_at(q90)
    if cap is not None and cap >= 0:
        expected, upper = capped_mean_tokens(mean, spread, cap), min(upper, float(cap))
        short, medium, long = _capped_classes(short, medium, long, cap)
    return Prediction(short, medium, long, log_tokens(expected), expected, upper, source, memo)


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
