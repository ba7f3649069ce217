"""When a request is due: a time that orders it among all that an engine's own queue holds, and never changes.

An engine that orders its queue by a number in each request lets nobody move a request that is there. So the
number must age by itself, as arrival times do, and hold the predicted cost c, as shortest-first does:

    due = arrival + w(c),    w(c) = s ln(c / m), held within half a window W on either side of 0

where m is the mean predicted cost and s = 4 m. Who comes later has a later time to add to, so that whoever
waits is passed by ever fewer.

Nobody starves: i passes j only where due_i < due_j, that is arrival_i - arrival_j < w(c_j) - w(c_i) <= W. Who
comes W or more after j goes after j, whatever either costs. An engine that answers one request at a time, has
V seconds of work when j comes, and gets no more than sigma + rho t seconds of it in any t seconds after, ends
nothing else than that before j: j starts within V + sigma + rho W, give or take the one that runs.

Why the logarithm: it asks by what factor costs differ, which is what a prediction knows, and keeps w within
a few means where costs span a factor of a thousand. A straight line, w = a c, buys the same gain for short
requests with a longer wait of the longest ones: `python -m tests.perf.perf_due` has both.
"""

from math import log

MEANS_A_FACTOR_E = 4.0
"""s in means: an answer that takes e times as long lets pass who comes up to four mean answers later."""

WINDOW_MEANS = 20.0
"""W in means, unless somebody chose one: costs from a twelfth of the mean to twelve times the mean."""


def due_s(arrival_s: float, cost_s: float, mean_s: float, window_s: float | None = None) -> float:
    """Return when a request is due, on the clock of its arrival; the lowest goes first.

    `cost_s` and `mean_s` are predicted seconds, its own and those of all, above 0; `window_s` is W, None for
    twenty means. A window of 0 is the order of arrival.
    """
    half_s = (WINDOW_MEANS * mean_s if window_s is None else window_s) / 2.0
    weighted_s = MEANS_A_FACTOR_E * mean_s * log(cost_s / mean_s)
    return arrival_s + min(half_s, max(-half_s, weighted_s))
