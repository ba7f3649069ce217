"""Predicted start times of the waiting jobs under another policy, by simulating the scheduler.

Rule 1: no arrivals, answers as long as predicted, no preemption.
Rule 2: of a long queue only every k-th job is simulated and its time scaled by k; the medians hold.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import ceil

from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queue import Scheduler

MAX_PLAYED = 200
"""Jobs simulated: some ten milliseconds per policy."""


def starts(scheduler: Scheduler, policy: Policy, now: float) -> Iterator[tuple[str, float]]:
    """Yield the ids of unheld waiting jobs that can start, with the predicted seconds until they do."""
    every = max(1, ceil(len(scheduler) / MAX_PLAYED))
    trial = scheduler.under(policy, now, every)
    ends = [(now + entry.left_s(now), job_id) for job_id, entry in trial.running.items()]
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
