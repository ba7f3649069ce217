"""A lane: waiting jobs that compete on equal terms, in two heaps, by policy and by age.

Removal is lazy: an item is live while its version is its entry's. Heaps of mostly dead items are rebuilt, so
that every operation is O(log n) amortised and memory is O(live items).
"""

from collections.abc import Container
from heapq import heapify, heappop, heappush

from clairvoyant_cli.scheduler.ages import SLACK, Ages, AgesByClient
from clairvoyant_cli.scheduler.queued_job import LaneId, QueuedJob


class Lane:
    """Waiting jobs of one lane: `live` counts them, `cost_s` sums their predicted seconds.

    `for_all`: any worker may serve them at any time. `ages` has the interactive ones by age.
    """

    __slots__ = ("_by_policy", "ages", "cost_s", "for_all", "for_any_worker", "id", "live")

    def __init__(self, lane_id: LaneId, ages: Ages | AgesByClient | None) -> None:
        """Start empty; `ages` is None for a policy that has no guard."""
        self.id = lane_id
        self.for_any_worker = not (lane_id.worker or lane_id.able)
        self.for_all = self.for_any_worker and not lane_id.client
        self.ages = ages
        self.live = 0
        self.cost_s = 0.0
        self._by_policy: list[tuple[float, float, int, int, QueuedJob]] = []

    def push(self, entry: QueuedJob) -> None:
        """Add an entry. After a change of its rank or key, call `drop` first."""
        entry.version += 1
        self.live += 1
        self.cost_s += entry.job.cost_s
        heappush(self._by_policy, (entry.rank, entry.key, entry.seq, entry.version, entry))
        if self.ages is not None and not entry.job.stands_back:
            self.ages.push(entry)

    def drop(self, entry: QueuedJob) -> None:
        entry.version += 1
        self.live -= 1
        self.cost_s = self.cost_s - entry.job.cost_s if self.live else 0.0
        if len(self._by_policy) > SLACK + 2 * self.live:
            self._by_policy = [item for item in self._by_policy if item[3] == item[4].version]
            heapify(self._by_policy)
        if self.ages is not None and not entry.job.stands_back:
            self.ages.drop(entry)

    def first(self) -> QueuedJob:
        """Return the first entry by policy; IndexError if the lane is empty."""
        heap = self._by_policy
        while heap[0][3] != heap[0][4].version:
            heappop(heap)
        return heap[0][4]

    def first_but(self, passed: Container[str]) -> QueuedJob | None:
        """Return the first entry by policy whose id is not in `passed`; None if there is none.

        Searches from the top of the heap: the cost grows with the number passed over.
        """
        heap = self._by_policy
        frontier = [(*heap[0][:4], 0)] if heap else []
        while frontier:
            *_, version, at = heappop(frontier)
            entry = heap[at][4]
            if version == entry.version and entry.job.id not in passed:
                return entry
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heappush(frontier, (*heap[child][:4], child))
        return None
