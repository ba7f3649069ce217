"""How far a learnt correction is believed: at first as corrections have deserved elsewhere, then as far as it
ordered better here, predicted before it was learnt."""

from math import exp, sqrt

import numpy as np
import numpy.typing as npt

APART = 0.7
"""Log units: only answers that differ by a factor of two say anything about an ordering (PARS, section III-A,
with a delta of 0.5)."""

COMPARED = 256
"""Answers that each new one is compared with."""

MIN_PAIRS = 300
FORGETTING = 0.998

STEEPNESS = 100.0
"""One point of ranking accuracy earned or lost moves the odds of the correction by e (Hedge: Freund and
Schapire, 1997). Switching it on and off instead makes scores of different times incomparable, which cost more
than the correction earned; so did following every chance gain."""

DOUBT = 1.0
"""Standard errors taken off what the correction seems to have earned."""

CREDIT = 2.0
"""Log odds that a correction is right before it has shown anything. Where it waited for evidence, requests
100 to 200 of a stream were ranked 2.6 points worse, without an encoder, and 1.7 with one."""

SUMS = 5


class CorrectionWeight:
    """Compares the orderings of a static score and of a corrected one; `share` says how they are to be mixed.

    Each new answer is compared with the last `COMPARED`. `sums` is all that outlives a daemon: pairs, pairs
    that the correction gained, and the sums of squares from which the standard error of its gain follows.
    """

    def __init__(self) -> None:
        """Start without evidence."""
        self.sums = np.zeros(SUMS)
        self.share = self._earned()
        self._answers = np.zeros((3, COMPARED))
        self._judged = 0

    def judge(self, static: float, own: float, real: float) -> None:
        """Take in an answer of `real` log tokens, predicted as `static` and, corrected, as `static + own`."""
        if self._judged:
            self._count(*self._compare(static, own, real))
        self._answers[:, self._judged % COMPARED] = static, own, real
        self._judged += 1

    def resume(self, sums: npt.NDArray[np.float64]) -> None:
        """Take up the sums of an earlier daemon."""
        self.sums = sums
        self.share = self._earned()

    def _compare(self, static: float, own: float, real: float) -> tuple[float, float]:
        """Return the pairs that say something, and how many more of them the correction has in order."""
        before, change, apart = self._answers[:, : self._judged]
        apart = apart - real
        longer = np.sign(apart) * (np.abs(apart) > APART)
        before = before - static
        gained = np.sign(before + change - own) - np.sign(before)
        return float(np.count_nonzero(longer)), float(gained @ longer) / 2

    def _count(self, pairs: float, gained: float) -> None:
        self.sums *= (FORGETTING, FORGETTING, *(3 * (FORGETTING**2,)))
        self.sums += (pairs, gained, pairs * pairs, pairs * gained, gained * gained)
        self.share = self._earned()

    def _earned(self) -> float:
        """Return the logistic of the gain in ranking accuracy, less its standard error.

        The gain is a ratio of sums over answers, of which each is one piece of evidence, not each pair.
        """
        pairs, gained, pairs_2, both, gained_2 = self.sums.tolist()
        odds = CREDIT
        if pairs >= MIN_PAIRS:
            gain = gained / pairs
            error = sqrt(max(gained_2 - 2 * gain * both + gain * gain * pairs_2, 0.0)) / pairs
            odds += STEEPNESS * (gain - DOUBT * error)
        return 1 / (1 + exp(-odds))
