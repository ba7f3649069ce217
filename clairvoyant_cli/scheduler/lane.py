"""A lane: waiting jobs that compete on equal terms, in heaps by policy and by age.

Removal is lazy: an item is live while its version is its entry's. Heaps of mostly dead items are rebuilt, so
that every operation is O(log n) amortised and memory is O(live items).
"""

from collections import Counter
from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Any

from clairvoyant_cli.scheduler.queued_job import LaneId, QueuedJob

SLACK = 64
"""Dead items below which a heap is not rebuilt."""

Longest = tuple[QueuedJob, float]
"""A waiting job, and the time from which its tau counts."""


class LazyHeap:
    """Jobs in a fixed order, the lowest first. To remove one, change its version."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[tuple[Any, ...]] = []

    def push(self, entry: QueuedJob, *order: float) -> None:
        """Add a job by its current version. `order` must be unique among live jobs."""
        heappush(self._items, (*order, entry.version, entry))

    def prune(self, live: int) -> None:
        """Remove the dead items if they outnumber twice the `live` ones."""
        if len(self._items) > SLACK + 2 * live:
            self._items = [item for item in self._items if item[-2] == item[-1].version]
            heapify(self._items)

    def first(self) -> QueuedJob | None:
        items = self._items
        while items:
            entry: QueuedJob = items[0][-1]
            if items[0][-2] == entry.version:
                return entry
            heappop(items)
        return None

    def __iter__(self) -> Iterator[QueuedJob]:
        """Yield the jobs in order. The cost grows with the number that are taken."""
        items = self._items
        frontier = [(*items[0][:-1], 0)] if items else []
        while frontier:
            *_, version, at = heappop(frontier)
            if version == items[at][-1].version:
                yield items[at][-1]
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(items):
                    heappush(frontier, (*items[child][:-1], child))


class AgesByClient:
    """Waiting jobs by age; while several clients wait, a start by the guard restarts its client's tau."""

    def __init__(self) -> None:
        self.live = Counter[str]()  # jobs of each client
        self._of: dict[str, LazyHeap] = {}
        self._turn_s: dict[str, float] = {}
        self._longest: list[tuple[float, int, str]] = []

    def push(self, entry: QueuedJob) -> None:
        client = entry.job.client
        ages = self._of.setdefault(client, LazyHeap())
        ages.push(entry, entry.job.arrival_s, entry.seq)
        self.live[client] += 1
        if ages.first() is entry:
            heappush(self._longest, self._item(entry))
            if len(self._longest) > SLACK + 2 * len(self._of):
                self._longest = [self._item(first) for each in self._of.values() if (first := each.first())]
                heapify(self._longest)

    def drop(self, entry: QueuedJob) -> None:
        """Remove an entry; its version has changed already."""
        client = entry.job.client
        self.live[client] -= 1
        self._of[client].prune(self.live[client])
        if not self.live[client]:
            del self.live[client], self._of[client]
            self._turn_s.pop(client, None)  # its later jobs start with a full tau

    def had_turn(self, client: str, now: float) -> None:
        if client in self._of:
            self._turn_s[client] = now

    def longest(self, *, alone: bool = False) -> Longest | None:
        """Return the entry that has waited longest since its client's last turn (`alone`: since arrival)."""
        items = self._longest
        while items:
            client = items[0][2]
            first = self._of[client].first() if client in self._of else None
            if first is None:
                heappop(items)
            elif (item := self._item(first)) != items[0]:
                heapreplace(items, item)
            else:
                return first, first.job.arrival_s if alone else item[0]
        return None

    def _item(self, first: QueuedJob) -> tuple[float, int, str]:
        client = first.job.client
        return max(first.job.arrival_s, self._turn_s.get(client, -inf)), first.seq, client


class Lane:
    """Waiting jobs of one lane: `live` counts them, `cost_s` sums their predicted seconds.

    `for_all`: any worker may serve them at any time. `ages` has the interactive ones by age.
    """

    __slots__ = ("ages", "cost_s", "for_all", "for_any_worker", "id", "jobs", "live")

    def __init__(self, lane_id: LaneId, ages: LazyHeap | AgesByClient | None) -> None:
        """Start empty; `ages` is None for a policy that has no guard."""
        self.id = lane_id
        self.for_any_worker = not (lane_id.worker or lane_id.able)
        self.for_all = self.for_any_worker and not lane_id.client
        self.jobs = LazyHeap()  # by policy
        self.ages = ages
        self.live = 0
        self.cost_s = 0.0

    def push(self, entry: QueuedJob) -> None:
        """Add an entry. After a change of its rank or key, call `drop` first."""
        entry.version += 1
        self.live += 1
        self.cost_s += entry.job.cost_s
        self.jobs.push(entry, entry.rank, entry.key, entry.seq)
        if entry.job.stands_back:
            return
        if isinstance(self.ages, AgesByClient):
            self.ages.push(entry)
        elif self.ages is not None:
            self.ages.push(entry, entry.job.arrival_s, entry.seq)

    def drop(self, entry: QueuedJob) -> None:
        entry.version += 1
        self.live -= 1
        self.cost_s = self.cost_s - entry.job.cost_s if self.live else 0.0
        self.jobs.prune(self.live)
        if isinstance(self.ages, LazyHeap):
            self.ages.prune(self.live)
        elif self.ages is not None and not entry.job.stands_back:
            self.ages.drop(entry)

    def first(self, passed: Container[str] = ()) -> QueuedJob | None:
        if not passed:
            return self.jobs.first()
        return next((entry for entry in self.jobs if entry.job.id not in passed), None)

    def longest(self, *, alone: bool) -> Longest | None:
        """Return the interactive entry that has waited longest; `alone`: whatever turns its client had."""
        if isinstance(self.ages, AgesByClient):
            return self.ages.longest(alone=alone)
        first = None if self.ages is None else self.ages.first()
        return None if first is None else (first, first.job.arrival_s)
