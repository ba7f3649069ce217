"""When what waits would start if another policy ordered it: the scheduler played on, by its own predictions.

Rule 1: nothing comes in between, every answer is as long as predicted, and none is cut for another.
Rule 2: of a long queue one job in so many is played, and its time counts as many times: the medians hold.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import ceil

from clairvoyant_cli.scheduler.placement import left_s
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queue import Scheduler

MAX_PLAYED = 200
"""Jobs that are played: some ten milliseconds for a policy."""


def starts(scheduler: Scheduler, policy: Policy, now: float) -> Iterator[tuple[str, float]]:
    """Yield the ids of what waits unheld, or of some of it, each with the predicted seconds until it starts;
    of what cannot start any more, nothing.
    """
    every = max(1, ceil(len(scheduler) / MAX_PLAYED))
    trial = scheduler.under(policy, now, every)
    ends = [(now + left_s(entry, now), job_id) for job_id, entry in trial.running.items()]
    heapify(ends)
    at = now
    while True:
        while (dispatch := trial.next(at)) is not None:
            job_id = dispatch.job.id
            yield job_id, (at - now) * every
            heappush(ends, (at + trial.running[job_id].expected_s, job_id))
        if not ends:
            return
        at, ended = heappop(ends)
        trial.finish(ended, at)
