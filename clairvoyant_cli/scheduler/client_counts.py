"""Counts per client in bounded memory, as clients may choose any number of names."""

from collections.abc import Set
from heapq import nlargest

MAX_CLIENTS = 2000
"""The most clients counted."""


def trimmed(counts: dict[str, int]) -> dict[str, int]:
    """Return counts of at most MAX_CLIENTS clients; those with the fewest, then the oldest, are dropped."""
    if len(counts) <= MAX_CLIENTS:
        return counts
    most = nlargest(MAX_CLIENTS // 2, reversed(counts.items()), key=lambda item: item[1])
    return dict(reversed(most))


class Tally:
    """A count per client."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def add(self, client: str, number: int = 1) -> None:
        self._of[client] = self.of(client) + number
        self._of = trimmed(self._of)

    def of(self, client: str) -> int:
        return self._of.get(client, 0)

    @property
    def clients(self) -> Set[str]:
        return self._of.keys()
