"""A heap of waiting jobs.

Removal is lazy: an item is live while its version is its entry's. Heaps of mostly dead items are rebuilt, so
that every operation is O(log n) amortised and memory is O(live items).
"""

from heapq import heapify, heappop, heappush
from typing import Any

from clairvoyant_cli.scheduler.queued_job import QueuedJob

SLACK = 64
"""Dead items below which a heap is not rebuilt."""


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

    def pop(self) -> None:
        heappop(self._items)
