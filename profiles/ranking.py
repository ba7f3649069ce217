"""Whether long answers were predicted to be longer than short ones."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def pairs_in_order(short: Sequence[float], long: Sequence[float]) -> float | None:
    """Return the share of (Short, Long) pairs whose Long one has the higher score, ties half.

    The ranking accuracy of the paper (Clairvoyant, section 5.2); None where there is no pair.
    """
    if not short or not long:
        return None
    ordered = sorted(short)
    won = sum(bisect_left(ordered, score) + bisect_right(ordered, score) for score in long)
    return won / (2 * len(short) * len(long))
