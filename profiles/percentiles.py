"""Percentiles, by the one rule of all our figures: linear between neighbours, as numpy has it by default."""

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the percentile of values in ascending order, at least one; `share` is from 0 to 1."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
