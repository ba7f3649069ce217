"""Computes time saved or lost against arrival order.

The counterfactual is that of the dashboard: each request, in arrival order, takes the first free slot of its
server for its measured service time. It assumes that service times do not depend on the other slots.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from profiles.percentiles import percentile
from profiles.records import Finished

HAND_OVER_S = 0.02
"""Requests that overlap by less than this used the same slot."""

RARE_SHARE = 0.01
"""A level of concurrency held for a smaller share of the busy time does not count as a slot."""

CLASSES = ("short", "medium", "long")


@dataclass(frozen=True, slots=True)
class Compared:
    """A completed request: its actual sojourn time, and that in arrival order."""

    finished: Finished
    sojourn_s: float
    in_order_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one class, client or model; seconds. Negative savings are losses."""

    name: str
    requests: int
    mean_s: float
    in_order_mean_s: float
    p95_s: float
    in_order_p95_s: float
    saved_s: float

    @property
    def change(self) -> float:
        """Relative change of the mean sojourn time against arrival order; -0.5 is half."""
        return self.mean_s / self.in_order_mean_s - 1 if self.in_order_mean_s else 0.0


def compare(rows: Iterable[Finished]) -> list[Compared]:
    """Return the completed requests with their sojourn times in arrival order.

    Requests that ended early occupy slots in that order too, but are not returned.
    """
    by_backend: dict[str, list[Finished]] = defaultdict(list)
    for row in rows:
        if _service_s(row) > 0:
            by_backend[row.backend].append(row)
    return [each for ran in by_backend.values() for each in _compared(ran)]


def group(compared: Sequence[Compared], of: Callable[[Finished], str]) -> list[Group]:
    """Return the groups, largest saving first."""
    groups: dict[str, list[Compared]] = defaultdict(list)
    for each in compared:
        groups[of(each.finished)].append(each)
    return sorted((_group(name, found) for name, found in groups.items()), key=lambda each: -each.saved_s)


def slots_used(rows: Iterable[Finished]) -> int:
    """Return how many requests a server ran at once."""
    changes: list[tuple[float, int]] = []
    for row in rows:
        begun_s = row.finished_at - _service_s(row) + HAND_OVER_S
        if not row.cuts and begun_s < row.finished_at:  # a preempted request had no slot for a while
            changes += [(begun_s, 1), (row.finished_at, -1)]
    at_level: dict[int, float] = defaultdict(float)
    level, since_s = 0, 0.0
    for at_s, change in sorted(changes):
        at_level[level] += at_s - since_s
        level, since_s = level + change, at_s
    busy_s = sum(spent_s for level, spent_s in at_level.items() if level)
    slots, above_s = max(at_level, default=0), 0.0
    while slots > 1 and above_s + at_level[slots] <= RARE_SHARE * busy_s:
        above_s += at_level[slots]
        slots -= 1
    return max(1, slots)


def _compared(ran: list[Finished]) -> Iterable[Compared]:
    ran.sort(key=lambda row: row.finished_at - row.sojourn_s)
    free_at = [-float("inf")] * slots_used(ran)
    for row in ran:
        arrived_s = row.finished_at - row.sojourn_s
        ended_s = max(arrived_s, free_at[0]) + _service_s(row)
        heapq.heapreplace(free_at, ended_s)
        if row.outcome == "completed" and row.length_class in CLASSES:
            yield Compared(row, row.sojourn_s, ended_s - arrived_s)


def _service_s(row: Finished) -> float:
    return row.sojourn_s - row.waited_s if row.dispatched_by else 0.0


def _group(name: str, found: Sequence[Compared]) -> Group:
    taken = sorted(each.sojourn_s for each in found)
    in_order = sorted(each.in_order_s for each in found)
    return Group(
        name,
        len(found),
        fmean(taken),
        fmean(in_order),
        percentile(taken, 0.95),
        percentile(in_order, 0.95),
        sum(in_order) - sum(taken),
    )
