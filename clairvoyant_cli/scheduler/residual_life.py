"""How much of an answer is still to come, given that it has come so far: the mean residual life.

Answer lengths are taken to be log-normal, fixed by the predicted mean and 90 % quantile. The hazard of a
log-normal falls in the tail: an answer that has outlived its estimate is longer than was thought, the more so
the longer it runs (the conditional mean exceeds the age by about age x sigma^2 / ln(age / median)).
"""

from math import erfc, exp, log, pi, sqrt

Z90 = 1.2815515655446004
"""The 90 % quantile of the standard normal distribution."""

MIN_SIGMA = 0.3
"""No prediction is surer than this (35 %, see `policy.BAND_RATIO`): a tighter spread would say of an answer
beyond it that it ends any moment, for as long as it runs."""

MIN_SHARE = 0.1
"""Without a spread, the least share of what has come, or of the estimate, that is taken to be still due."""

FAR = 6.0
"""From here on the continued fraction gives Mills' ratio to ten digits, and `erfc` loses some."""


def mean_residual(done: float, mean: float, q90: float) -> float:
    """Return the tokens still to come of an answer of `mean` tokens that has had `done` of them.

    `q90` is the 90 % quantile of its length, 0 if that is not known: then the estimate less what has come,
    and at least a tenth of either.
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
