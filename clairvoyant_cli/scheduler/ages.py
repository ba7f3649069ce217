"""The longest-waiting job of a lane, for the starvation guard. Removal is lazy, as in the lanes."""

from collections.abc import KeysView
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from clairvoyant_cli.scheduler.queued_job import QueuedJob

SLACK = 64
"""Dead items below which a heap is not rebuilt."""

Longest = tuple[QueuedJob, float]
"""A waiting job, and the time from which its tau counts."""


class Ages:
    """Waiting jobs by age. `live` counts them."""

    def __init__(self) -> None:
        self.live = 0
        self._heap: list[tuple[float, int, int, QueuedJob]] = []

    def push(self, entry: QueuedJob) -> None:
        self.live += 1
        heappush(self._heap, (entry.job.arrival_s, entry.seq, entry.version, entry))

    def drop(self, _: QueuedJob) -> None:
        """Remove an entry; its version has changed already."""
        self.live -= 1
        if len(self._heap) > SLACK + 2 * self.live:
            self._heap = [item for item in self._heap if item[2] == item[3].version]
            heapify(self._heap)

    def longest(self, *, alone: bool = True) -> Longest | None:
        """Return the longest-waiting entry, None if there is none."""
        heap = self._heap
        while heap and heap[0][2] != heap[0][3].version:
            heappop(heap)
        return (heap[0][3], heap[0][0]) if heap else None


class AgesByClient:
    """Waiting jobs by age; while several clients wait, a start by the guard restarts its client's tau."""

    def __init__(self) -> None:
        self._of: dict[str, Ages] = {}
        self._turn_s: dict[str, float] = {}
        self._longest: list[tuple[float, int, str]] = []

    @property
    def clients(self) -> KeysView[str]:
        return self._of.keys()

    def push(self, entry: QueuedJob) -> None:
        client = entry.job.client
        ages = self._of.setdefault(client, Ages())
        ages.push(entry)
        longest = ages.longest()
        if longest is not None and longest[0] is entry:
            heappush(self._longest, self._item(client, longest))
            if len(self._longest) > SLACK + 2 * len(self._of):
                firsts = ((name, each.longest()) for name, each in self._of.items())
                self._longest = [self._item(name, first) for name, first in firsts if first is not None]
                heapify(self._longest)

    def drop(self, entry: QueuedJob) -> None:
        """Remove an entry; its version has changed already."""
        client = entry.job.client
        self._of[client].drop(entry)
        if not self._of[client].live:
            del self._of[client]
            self._turn_s.pop(client, None)  # its later jobs start with a full tau

    def had_turn(self, client: str, now: float) -> None:
        """Record that the guard has started a job of a client."""
        if client in self._of:
            self._turn_s[client] = now

    def longest(self, *, alone: bool = False) -> Longest | None:
        """Return the entry that has waited longest since its client's last turn (`alone`: since arrival)."""
        items = self._longest
        while items:
            client = items[0][2]
            ages = self._of.get(client)
            first = None if ages is None else ages.longest()
            if first is None:
                heappop(items)
            elif (item := self._item(client, first)) != items[0]:
                heapreplace(items, item)
            else:
                return first if alone else (first[0], item[0])
        return None

    def _item(self, client: str, first: Longest) -> tuple[float, int, str]:
        entry, since_s = first
        return max(since_s, self._turn_s.get(client, -inf)), entry.seq, client
