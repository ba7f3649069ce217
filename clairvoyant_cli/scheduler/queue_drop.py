"""Which job is dropped when the queue is full: one of the client with the most waiting jobs per weight.

Rule 1: the client with the longest queue loses a job, and only to a client that would still have fewer
(longest queue drop: Suter et al., INFOCOM 1998; stochastic fairness queueing: McKenney, 1990). So no client
has more than its share while others wait, and a client that is alone may fill the whole queue.
Rule 2: of that client the job that would start last is dropped; never a promoted or held one. Jobs past tau
are spared while others can be dropped. If all are past tau, the latest arrival is dropped if the client has
more than its fair share; otherwise a client that fills the queue would lock out all others. A client's only
job is never dropped.
Rule 3: joining, leaving and finding the job to drop cost O(log n) amortised; dead heap items are removed when
they come up or outnumber the rest.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import fsum

from clairvoyant_cli.scheduler.job import QueueFullError
from clairvoyant_cli.scheduler.lane import SLACK, LazyHeap
from clairvoyant_cli.scheduler.queued_job import QueuedJob

MAX_ASKED = 8
"""Clients looked at before a new job is refused; those whose jobs are all spared have none to drop. Clients
with a single job are not counted."""


class ClientQueue:
    """One client's waiting jobs: their number, and which would start last.

    `listed` is the share it was last listed under, `listing` the number of that item.
    """

    __slots__ = ("client", "last_jobs", "latest_overdue", "listed", "listing", "waiting", "weight")

    def __init__(self, client: str, weight: float) -> None:
        self.client = client
        self.weight = weight
        self.waiting = 0
        self.listed = 0.0
        self.listing = -1
        self.clear()

    @property
    def share(self) -> float:
        return self.waiting / self.weight

    def clear(self) -> None:
        """Forget which jobs may be dropped; the caller adds them again."""
        self.last_jobs, self.latest_overdue = LazyHeap(), LazyHeap()

    def add(self, entry: QueuedJob) -> None:
        self.last_jobs.push(entry, -entry.rank, -entry.key, -entry.seq)
        self.last_jobs.prune(self.waiting)

    def last(self, overdue: Callable[[QueuedJob], bool]) -> QueuedJob | None:
        """Return the job that would start last of those not overdue; None if there is none.

        Overdue jobs are set aside, and stay there if tau changes.
        """
        while (entry := self.last_jobs.first()) is not None and overdue(entry):
            self.last_jobs.pop()
            self.latest_overdue.push(entry, -entry.job.arrival_s, -entry.seq)
            self.latest_overdue.prune(self.waiting)
        return entry


class ClientQueues:
    """The waiting jobs of all clients, with quick access to the client that has most."""

    def __init__(self) -> None:
        self._by_client: dict[str, ClientQueue] = {}
        self._largest: list[tuple[float, int, ClientQueue]] = []
        self._numbers = count()
        self._weight = 0.0

    def waiting(self) -> dict[str, int]:
        return {queue.client: queue.waiting for queue in self._by_client.values()}

    def waiting_of(self, client: str) -> int:
        return self._by_client[client].waiting if client in self._by_client else 0

    def share_of(self, client: str, weight: float) -> float:
        """Return a client's share of the weight of all waiting clients, itself included."""
        return weight / self._weight_with(client, weight)

    def _weight_with(self, client: str, weight: float) -> float:
        return self._weight if client in self._by_client else self._weight + weight

    def join(self, client: str, weight: float) -> None:
        queue = self._by_client.get(client)
        if queue is None:
            queue = self._by_client[client] = ClientQueue(client, weight)
            self._weight += weight
        queue.waiting += 1
        if queue.share > queue.listed:
            self._list(queue)

    def place(self, entry: QueuedJob) -> None:
        """Let a counted job be dropped; call it after its lane has taken it."""
        queue = self._by_client[entry.job.client]
        queue.add(entry)
        if queue.listing < 0:  # its only job was held and may be dropped now
            self._list(queue)

    def leave(self, client: str) -> None:
        """Count a job that leaves the queue. The heap is corrected when the client comes up."""
        queue = self._by_client[client]
        queue.waiting -= 1
        if not queue.waiting:
            del self._by_client[client]
            # An empty queue leaves no rounding error.
            self._weight = self._weight - queue.weight if self._by_client else 0.0

    def reweigh(self, weight_of: Callable[[str], float]) -> None:
        """Change the weights and forget which jobs may be dropped; the caller adds them again."""
        self._largest.clear()
        for queue in self._by_client.values():
            queue.weight = weight_of(queue.client)
            queue.clear()
            self._list(queue)
        self._weight = fsum(queue.weight for queue in self._by_client.values())

    def make_room(
        self, newcomer: QueuedJob, weight: float, capacity: int, overdue: Callable[[QueuedJob], bool]
    ) -> QueuedJob:
        """Return the job to drop for a new one; QueueFullError if there is none.

        Either one of a client that has more than the newcomer's would have, or, where there is none, one of
        the newcomer's own that would start after it. A client's fair share of the capacity is by its weight.
        """
        client = newcomer.job.client
        own, fair_share = self._by_client.get(client), capacity / self._weight_with(client, weight)
        above = (self.waiting_of(client) + 1) / weight
        passed: list[tuple[float, int, ClientQueue]] = []
        found = None
        while found is None and len(passed) < MAX_ASKED:
            queue = self._first()
            if queue is None or queue.share <= above:
                break
            found = queue.last(overdue)
            if found is None and queue.waiting > 1 and queue.share > fair_share:
                found = queue.latest_overdue.first()
            if found is None and queue.waiting > 1:
                passed.append(heappop(self._largest))
            elif found is None:
                heappop(self._largest)
                queue.listed, queue.listing = 0.0, -1
        for item in passed:
            heappush(self._largest, item)
        if found is None:
            found = None if own is None else own.last(overdue)
            if found is None or newcomer.place > found.place:
                raise QueueFullError
        return found

    def _first(self) -> ClientQueue | None:
        """Return the client with most jobs per weight; stale heap items are corrected as they come up."""
        items = self._largest
        while items:
            _, listing, queue = items[0]
            if listing != queue.listing or not queue.waiting:
                heappop(items)
            elif queue.share < queue.listed:
                heapreplace(items, self._item(queue))
            else:
                return queue
        return None

    def _list(self, queue: ClientQueue) -> None:
        heappush(self._largest, self._item(queue))
        if len(self._largest) > SLACK + 2 * len(self._by_client):
            self._largest = [self._item(each) for each in self._by_client.values()]
            heapify(self._largest)

    def _item(self, queue: ClientQueue) -> tuple[float, int, ClientQueue]:
        """Return what lists a queue under its share; an item made before counts no more."""
        queue.listed, queue.listing = queue.share, next(self._numbers)
        return -queue.listed, queue.listing, queue
