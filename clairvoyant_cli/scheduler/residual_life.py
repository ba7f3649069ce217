"""Mean residual life of an answer: the expected tokens still to come, given the tokens so far.

Answer lengths are taken to be log-normal, fixed by the predicted mean and 90 % quantile. The hazard of a
log-normal falls in the tail: the longer an answer outlives its estimate, the more is still to come (the
conditional mean exceeds the age by about age x sigma^2 / ln(age / median)).
"""

from math import erfc, exp, log, pi, sqrt

Z90 = 1.2815515655446004  # the 90 % quantile of the standard normal distribution

MIN_SIGMA = 0.3
"""The least spread (35 %): with a tighter one, an answer beyond its prediction would be expected to end at
any moment, however long it runs."""

MIN_SHARE = 0.1
"""Without a spread, at least this share of the tokens so far, or of the estimate, is still due."""

FAR = 6.0  # from here on the continued fraction for Mills' ratio is more exact than `erfc`


def mean_residual(done: float, mean: float, q90: float) -> float:
    """Return the expected tokens still to come, of `mean` expected and `done` so far.

    `q90` is the 90 % quantile of the length. If it is 0 (unknown), the result is mean - done, and at least a
    tenth of either.
    """
    if done <= 0.0 or mean <= 0.0:
        return max(mean, 0.0)
    if q90 <= 0.0:
        return max(mean - done, MIN_SHARE * max(done, mean))
    sigma = max(sigma_of(mean, q90), MIN_SIGMA)
    far = log(done / mean) / sigma + sigma / 2.0  # (ln done - mu) / sigma, with mu = ln mean - sigma^2 / 2
    if far < -FAR:
        return mean - done
    # E[X | X > done] = mean Phi(sigma - far) / Phi(-far), and mean phi(far - sigma) = done phi(far)
    return done * (mills(far - sigma) / mills(far) - 1.0)


def residual_quantile(done: float, mean: float, q90: float, share: float) -> float:
    """Return what a share of answers have still to come at most, of `mean` expected and `done` so far."""
    if mean <= 0.0:
        return 0.0
    sigma = max(sigma_of(mean, q90), MIN_SIGMA)
    middle = log(mean) - sigma * sigma / 2.0
    far = max((log(done) - middle) / sigma, -FAR) if done > 0.0 else -FAR
    wanted, z = _log_beyond(far) + log(1.0 - share), max(far, 0.0)
    for _ in range(8):  # Newton's method: the logarithm is concave
        z += (_log_beyond(z) - wanted) * mills(z)
    return max(exp(middle + sigma * z) - done, 0.0)


def _log_beyond(x: float) -> float:
    """Return log P(Z > x), less a constant."""
    return log(mills(x)) - x * x / 2.0


def sigma_of(mean: float, q90: float) -> float:
    """Return the sigma of a log-normal of this mean and 90 % quantile.

    ln(q90 / mean) = Z90 sigma - sigma^2 / 2 has no solution beyond q90 = 2.27 mean, where sigma is Z90.
    """
    return Z90 - sqrt(max(Z90 * Z90 - 2.0 * log(max(q90 / mean, 1.0)), 0.0))


def mills(x: float) -> float:
    """Return Mills' ratio of the standard normal distribution, P(Z > x) / density(x)."""
    if x < FAR:
        return sqrt(pi / 2.0) * exp(x * x / 2.0) * erfc(x / sqrt(2.0))
    fraction = x
    for k in range(16, 0, -1):
        fraction = x + k / fraction
    return 1.0 / fraction
