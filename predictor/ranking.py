"""How well scores order answers, the measure of the paper (Clairvoyant, section 5.2)."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


def pairs_in_order(short: Iterable[float], long: Iterable[float]) -> float | None:
    """Return the share of pairs of a Short and a Long answer whose scores are in order, ties counted half;
    None without a pair.
    """
    ordered, others = sorted(short), [*long]
    if not ordered or not others:
        return None
    below = sum(bisect_left(ordered, score) + bisect_right(ordered, score) for score in others)
    return below / (2 * len(ordered) * len(others))
