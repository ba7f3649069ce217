"""Percentiles with linear interpolation, like numpy's default."""

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of ascending, non-empty values; `share` is 0 to 1."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
