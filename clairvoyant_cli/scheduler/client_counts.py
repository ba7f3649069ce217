"""Counts by client, in bounded memory: with names that clients choose themselves there may be any number."""

from heapq import nlargest

MAX_CLIENTS = 2000
"""Clients that are counted."""


def trimmed(counts: dict[str, int]) -> dict[str, int]:
    """Return counts by client; of more clients than can be told apart, those with the fewest are left out,
    and of equals who came first: who has just been counted stays.
    """
    if len(counts) <= MAX_CLIENTS:
        return counts
    most = nlargest(MAX_CLIENTS // 2, reversed(counts.items()), key=lambda item: item[1])
    return dict(reversed(most))


class Tally:
    """How often something happened to each client, and in all."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[str, int] = {}

    def add(self, client: str) -> None:
        """Count one more."""
        self.total += 1
        self._of[client] = self.of(client) + 1
        self._of = trimmed(self._of)

    def of(self, client: str) -> int:
        """Return a client's count."""
        return self._of.get(client, 0)
