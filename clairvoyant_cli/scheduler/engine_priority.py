"""What becomes of requests in an engine that runs several at once and orders the rest by their numbers."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inside:
    """A request that an engine has: the `number` it was sent with, lowest first; seconds it is still to take
    once it runs; whether it is seen to run. An answer that does not stream may run unseen, `unseen_s` so far.
    """

    id: str
    number: float
    remaining_s: float
    begun: bool
    unseen_s: float = 0.0


def ends_in_s(requests: Iterable[Inside], sequences: int) -> dict[str, float]:
    """Return in how many seconds each will have ended, if the engine runs so many at once and no more come.

    Those that are seen to run do; others run in the order of their numbers, each in the place that is free
    first.
    """
    ends: dict[str, float] = {}
    waiting: list[Inside] = []
    for each in requests:
        if each.begun:
            ends[each.id] = each.remaining_s
        else:
            waiting.append(each)
    free = sorted(ends.values())[-sequences:] if len(ends) > sequences else list(ends.values())
    free += [0.0] * (sequences - len(free))
    heapq.heapify(free)
    for each in sorted(waiting, key=lambda each: each.number):
        ran_s = each.unseen_s if free[0] == 0.0 else 0.0
        ends[each.id] = free[0] + max(0.0, each.remaining_s - ran_s)
        heapq.heapreplace(free, ends[each.id])
    return ends
