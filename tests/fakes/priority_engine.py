"""An engine that orders its own queue by a number in each request, as vLLM does: in virtual time."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, how long its answer takes, and how long it was predicted to take; seconds."""

    at_s: float
    service_s: float
    cost_s: float


def ends_of(
    arrivals: Sequence[Arrival], number: Callable[[Arrival], float], sequences: int = 1
) -> list[float]:
    """Return when each answer ends. Lowest number first, ties by arrival; nothing that runs is stopped."""
    free = [0.0] * sequences
    waiting: list[tuple[float, int]] = []
    ends, coming = [inf] * len(arrivals), 0
    while coming < len(arrivals) or waiting:
        now = free[0] if waiting else max(free[0], arrivals[coming].at_s)
        while coming < len(arrivals) and arrivals[coming].at_s <= now:
            heapq.heappush(waiting, (number(arrivals[coming]), coming))
            coming += 1
        which = heapq.heappop(waiting)[1]
        ends[which] = now + arrivals[which].service_s
        heapq.heapreplace(free, ends[which])
    return ends
