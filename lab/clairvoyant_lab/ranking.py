"""How well scores order answers: Clairvoyant's Algorithm 1, Kendall's tau_b, and the pair filter of PARS.

Sequences may be numpy arrays of shape (n,).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan, sqrt

from scipy.stats import kendalltau

from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS

DELTA = 0.2
"""PARS's min_length_difference for Llama 3.1 and GPT-4 (section III-A); it takes 0.25 for DeepSeek R1."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Over all (Short, Long) pairs: the share ordered rightly, ties counted half. NaN without a pair."""

    accuracy: float
    tied_share: float
    n_short: int
    n_long: int


def ranking_accuracy(scores: Iterable[float], tokens: Iterable[float]) -> Ranking:
    """Return the ranking accuracy of scores (higher is longer) against real tokens.

    Algorithm 1 counts a tie as wrong; here it counts half, which is what an arbitrary order would earn, and
    the share of tied pairs stands beside it. O(n log n).
    """
    answers = list(zip(map(float, scores), map(float, tokens), strict=True))
    short = sorted(score for score, length in answers if length < SHORT_BELOW_TOKENS)
    long = [score for score, length in answers if length >= LONG_FROM_TOKENS]
    pairs = len(short) * len(long)
    if not pairs:
        return Ranking(nan, nan, len(short), len(long))
    below = sum(bisect_left(short, score) for score in long)
    not_above = sum(bisect_right(short, score) for score in long)
    return Ranking((below + not_above) / (2 * pairs), (not_above - below) / pairs, len(short), len(long))


@dataclass(frozen=True, slots=True)
class PairRanking:
    """Over the pairs that PARS's filter keeps: how many, the share ordered rightly with ties counted half,
    and tau_b. NaN without a pair; tau_b also where all scores are alike.
    """

    pairs: int
    accuracy: float
    tau_b: float


def pair_ranking(scores: Iterable[float], tokens: Iterable[float], delta: float = DELTA) -> PairRanking:
    """Judge scores on the pairs of answers whose lengths differ.

    A pair counts if |a - b| / max(a, b) >= delta (PARS, section III-A, equation 1): the same prompt answered
    twice differs by less, so a closer pair says nothing about a predictor. PARS filters the pairs it trains
    on; here the filter judges. With a `delta` of 0, every pair of unequal lengths counts.
    """
    answers = sorted(zip(map(float, tokens), map(float, scores), strict=True))
    lengths, ordered = [length for length, _ in answers], [score for _, score in answers]
    shorter: list[float] = []
    pairs = below = not_above = 0
    for length, score in zip(lengths, ordered, strict=True):
        # The filter keeps a prefix of the list for this answer, which only ever grows.
        while (other := lengths[len(shorter)]) < length and length - other >= delta * length:
            insort(shorter, ordered[len(shorter)])
        pairs += len(shorter)
        below += bisect_left(shorter, score)
        not_above += bisect_right(shorter, score)
    if not pairs:
        return PairRanking(0, nan, nan)
    # No pair kept is tied in length, so of tau_b's two tie terms only the scores' is left.
    untied = pairs - (not_above - below)
    tau_b = (below + not_above - pairs) / sqrt(pairs * untied) if untied else nan
    return PairRanking(pairs, (below + not_above) / (2 * pairs), tau_b)


def kendall_tau_b(scores: Iterable[float], tokens: Iterable[float]) -> float:
    """Return Kendall's tau_b of scores and tokens; NaN if one of the two is constant."""
    scores, tokens = [*scores], [*tokens]
    return float(kendalltau(scores, tokens).statistic) if len(scores) > 1 else nan
