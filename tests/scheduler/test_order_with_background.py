"""The order of the queue with background jobs, at random."""

import random
from dataclasses import replace

import pytest

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.waiting import FORWARD_AFTER

TAU_S = 20.0
GUARDED = [name for name, policy in POLICIES.items() if policy.guard is not None]


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("seed", range(5))
def test_the_background_costs_a_bounded_wait_beside_a_busy_client(name: str, seed: int) -> None:
    longest_s, policy = 8.0, POLICIES[name]

    def started_s(levels: int) -> float:
        rng, now = random.Random(seed), 0.0
        scheduler = Scheduler(policy, servers={"a": 1}, tau_s=TAU_S)
        ours = Job("ours", 0.0, 0.5, 4.0, 40.0, client="curl", background_levels=levels)
        scheduler.submit(ours, 0.0)
        arrivals = sorted(rng.uniform(0.0, 2000.0) for _ in range(480))  # a load of 0.95 at 4 s each
        others = [Job(str(n), at, 0.5, client="chat") for n, at in enumerate(arrivals)]
        for job in others:
            cost_s = rng.uniform(0.1, longest_s)
            job.cost_s, job.tokens, job.p_long = cost_s, 10 * cost_s, cost_s / 8
        scheduler.submit(replace(others[0], id="first", arrival_s=0.0), 0.0)
        while True:
            while others and others[0].arrival_s <= now:
                scheduler.submit(others.pop(0), now)
            if (started := scheduler.next(now)) is None:
                now = others[0].arrival_s
                continue
            if started.job is ours:
                return now
            now += started.job.cost_s
            scheduler.finish(started.job.id, now)

    every = 0 if policy.guard is None else policy.guard.every
    assert started_s(levels=10) - started_s(levels=0) <= TAU_S + (FORWARD_AFTER + every + 2) * longest_s
