"""What the order of answering has saved whom, and cost whom, against order of arrival.

The counterfactual is that of the live dashboard: each request, in order of arrival, takes the slot of its
server that falls free first, for as long as it really held one. It supposes that an answer takes the same
time whenever it runs, which holds where a slot's speed does not depend on the others.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from profiles.percentiles import percentile
from profiles.records import Finished

HAND_OVER_S = 0.02
"""A slot that is taken so soon before it falls free was not a second one: clocks are read at either end."""

RARE_SHARE = 0.01
"""Of a server's busy time: more at once for less than that is no slot more."""

CLASSES = ("short", "medium", "long")


@dataclass(frozen=True, slots=True)
class Compared:
    """An answered request: its time from arrival to its end as it was, and in order of arrival."""

    finished: Finished
    sojourn_s: float
    in_order_s: float


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that have a class, a client or a model in common; seconds. Negative savings are costs."""

    name: str
    requests: int
    mean_s: float
    in_order_mean_s: float
    p95_s: float
    in_order_p95_s: float
    saved_s: float

    @property
    def change(self) -> float:
        """How much longer its answers took on average than in order of arrival; -0.5 is half the time."""
        return self.mean_s / self.in_order_mean_s - 1 if self.in_order_mean_s else 0.0


def compare(rows: Iterable[Finished]) -> list[Compared]:
    """Return the answered requests beside what order of arrival would have given them.

    Requests that held a slot and were given up count in that order, too, but are not compared.
    """
    by_backend: dict[str, list[Finished]] = defaultdict(list)
    for row in rows:
        if _service_s(row) > 0:
            by_backend[row.backend].append(row)
    return [each for ran in by_backend.values() for each in _compared(ran)]


def group(compared: Sequence[Compared], of: Callable[[Finished], str]) -> list[Group]:
    """Return the groups, those first that were saved most."""
    groups: dict[str, list[Compared]] = defaultdict(list)
    for each in compared:
        groups[of(each.finished)].append(each)
    return sorted((_group(name, found) for name, found in groups.items()), key=lambda each: -each.saved_s)


def slots_used(rows: Iterable[Finished]) -> int:
    """Return how many requests a server worked on at once, for more than moments."""
    changes: list[tuple[float, int]] = []
    for row in rows:
        begun_s = row.finished_at - _service_s(row) + HAND_OVER_S
        if not row.cuts and begun_s < row.finished_at:  # one that was cut held no slot for a while
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
