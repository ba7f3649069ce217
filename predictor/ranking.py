"""How well scores order answers: Clairvoyant's Algorithm 1, Kendall's tau_b, and PARS's pair filter."""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS

Numbers = npt.NDArray[np.float64]

DELTA = 0.2
"""PARS's min_length_difference for Llama 3.1 and GPT-4 (section III-A); it takes 0.25 for DeepSeek R1."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Over all (Short, Long) pairs: the share ordered rightly, ties counted half. NaN without a pair."""

    accuracy: float
    tied_share: float
    n_short: int
    n_long: int


def ranking_accuracy(scores: Numbers, tokens: Numbers) -> Ranking:
    """Return the ranking accuracy of scores (higher is longer) against real tokens; both of shape (n,).

    Algorithm 1 counts a tie as wrong; here it counts half, which is what an arbitrary order would earn, and
    the share of tied pairs stands beside it. O(n log n).
    """
    short = np.sort(scores[tokens < SHORT_BELOW_TOKENS])
    long = scores[tokens >= LONG_FROM_TOKENS]
    pairs = len(short) * len(long)
    if not pairs:
        return Ranking(float("nan"), float("nan"), len(short), len(long))
    below = np.searchsorted(short, long, "left").sum()
    not_above = np.searchsorted(short, long, "right").sum()
    tied = not_above - below
    return Ranking(float((below + tied / 2) / pairs), float(tied / pairs), len(short), len(long))


@dataclass(frozen=True, slots=True)
class PairRanking:
    """Over the pairs that PARS's filter keeps: how many, the share ordered rightly with ties counted half,
    and tau_b. NaN without a pair; tau_b also where all scores are alike.
    """

    pairs: int
    accuracy: float
    tau_b: float


def pair_ranking(scores: Numbers, tokens: Numbers, delta: float = DELTA) -> PairRanking:
    """Judge scores on the pairs of answers whose lengths differ; scores and tokens of shape (n,).

    A pair counts if |a - b| / max(a, b) >= delta (PARS, section III-A, equation 1): the same prompt answered
    twice differs by less, so a closer pair says nothing about a predictor. PARS filters the pairs it trains
    on; here the filter judges. With a `delta` of 0, every pair of unequal lengths counts.
    """
    order = np.argsort(tokens, kind="stable")
    lengths, ordered = tokens[order].tolist(), scores[order].tolist()
    shorter: list[float] = []
    pairs = below = not_above = 0
    for length, score in zip(lengths, ordered, strict=True):
        # What the filter keeps beside this answer is a beginning of the list, and only ever grows.
        while (other := lengths[len(shorter)]) < length and length - other >= delta * length:
            insort(shorter, ordered[len(shorter)])
        pairs += len(shorter)
        below += bisect_left(shorter, score)
        not_above += bisect_right(shorter, score)
    if not pairs:
        return PairRanking(0, float("nan"), float("nan"))
    tied = not_above - below
    # No pair kept is tied in length, so of tau_b's two tie terms only the scores' is left.
    ordered_pairs = pairs - tied
    difference = below - (pairs - not_above)
    tau_b = difference / sqrt(pairs * ordered_pairs) if ordered_pairs else float("nan")
    return PairRanking(pairs, (below + tied / 2) / pairs, tau_b)


def kendall_tau_b(left: Numbers, right: Numbers) -> float:
    """Return Kendall's tau_b of two sequences of shape (n,); NaN if one is constant. O(n log n)."""
    count = len(left)
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    total = count * (count - 1) // 2
    left_ties, right_ties = _tied_pairs(left), _tied_pairs(np.sort(right))
    both = _tied_pairs_of(np.flatnonzero((np.diff(left) != 0) | (np.diff(right) != 0)), count)
    if left_ties == total or right_ties == total:
        return float("nan")
    discordant = _inversions(right)
    concordant = total - left_ties - right_ties + both - discordant
    return float((concordant - discordant) / np.sqrt(float(total - left_ties) * float(total - right_ties)))


def _tied_pairs(ordered: Numbers) -> int:
    return _tied_pairs_of(np.flatnonzero(np.diff(ordered) != 0), len(ordered))


def _tied_pairs_of(breaks: npt.NDArray[np.intp], count: int) -> int:
    runs = np.diff(np.concatenate(([-1], breaks, [count - 1])))
    return int((runs * (runs - 1) // 2).sum())


def _inversions(values: Numbers) -> int:
    """Count pairs out of order by merging ever longer sorted blocks; equal values are in order."""
    ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
    inversions, width = 0, 1
    while width < len(ranks):
        for start in range(0, len(ranks) - width, 2 * width):
            left = ranks[start : start + width]
            right = ranks[start + width : start + 2 * width]
            inversions += int((len(left) - np.searchsorted(left, right, "right")).sum())
            ranks[start : start + 2 * width] = np.sort(ranks[start : start + 2 * width], kind="stable")
        width *= 2
    return inversions
