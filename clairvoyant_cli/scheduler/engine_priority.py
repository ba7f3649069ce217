"""Priorities for an engine that orders its own queue, and when its requests will have ended.

Such an engine (vLLM, SGLang) orders requests by a number that is sent with each of them and cannot be changed
later. So the number must age by itself, as arrival times do, and include the predicted cost c, as
shortest-first does:

    due = arrival + w(c),    w(c) = s ln(c / g), clipped to half a window W on either side of 0

where m and g are the mean and the geometric mean of predicted costs, and s = 8 m. The lowest number runs
first; later arrivals start from a later time, so that fewer and fewer of them pass a given request.

No request starves: i passes j only where due_i < due_j, that is arrival_i - arrival_j < w(c_j) - w(c_i) <= W.
A request that arrives W or more after j runs after j, whatever either costs. An engine that answers one
request at a time, has V seconds of work when j arrives and receives at most sigma + rho t seconds of work in
any t seconds after, completes nothing else before j: j starts within V + sigma + rho W, plus or minus the
running request.

The logarithm depends on the factor between costs, which is what a prediction knows, and keeps w within a few
means where costs span a factor of a thousand. A linear w = a c gains as much for short requests and makes the
longest ones wait longer.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from math import log

MEANS_A_FACTOR_E = 8.0
"""s in means: an answer e times as long lets requests pass that arrive up to eight mean answers later.
With 4, short answers gain a sixth less; with 16, long ones pay a third more for little
(docs/bench/engine-order.md)."""

WINDOW_MEANS = 20.0
"""W in means, unless tau is set: reached by costs of two sevenths of the geometric mean, and of 3.5 times."""


def due_s(
    arrival_s: float,
    cost_s: float,
    mean_s: float,
    window_s: float | None = None,
    middle_s: float | None = None,
) -> float:
    """Return when a request is due, on the clock of its arrival; the lowest goes first.

    `cost_s`, `mean_s` and `middle_s` are predicted seconds above 0: its own, the mean and the geometric mean,
    None for the mean. `window_s` is W, None for 20 means. A window of 0 gives arrival order.
    """
    half_s = (WINDOW_MEANS * mean_s if window_s is None else window_s) / 2.0
    weighted_s = MEANS_A_FACTOR_E * mean_s * log(cost_s / (middle_s or mean_s))
    return arrival_s + min(half_s, max(-half_s, weighted_s))


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request inside an engine: its priority `number`, the seconds of service left, and whether tokens of
    it have been seen. An unstreamed answer may have run unseen for `unseen_s`.
    """

    id: str
    number: float
    remaining_s: float
    begun: bool
    unseen_s: float = 0.0


def ends_in_s(requests: Iterable[EngineRequest], sequences: int) -> dict[str, float]:
    """Return the seconds until each request ends, if the engine runs `sequences` at once and none arrive.

    Requests with `begun` run already; the others start in the order of their numbers as places fall free.
    """
    ends: dict[str, float] = {}
    waiting: list[EngineRequest] = []
    for request in requests:
        if request.begun:
            ends[request.id] = request.remaining_s
        else:
            waiting.append(request)
    free = sorted(ends.values())[-sequences:] if len(ends) > sequences else list(ends.values())
    free += [0.0] * (sequences - len(free))
    heapq.heapify(free)
    for request in sorted(waiting, key=lambda request: request.number):
        ran_s = request.unseen_s if free[0] == 0.0 else 0.0
        ends[request.id] = free[0] + max(0.0, request.remaining_s - ran_s)
        heapq.heapreplace(free, ends[request.id])
    return ends
