"""The order of the queue with background, sessions, urgency, `able` and outages, at random."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain, Parts
from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import Job, QueueFullError, Terms
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import FORWARD_AFTER, Scheduler
from clairvoyant_cli.scheduler.urgency import UrgencySource

TAU_S = 20.0
GUARDED = [name for name, policy in POLICIES.items() if policy.guard is not None]


def chain(conversation: int, turns: int) -> Chain:
    parts = tuple(hash((conversation, turn)) for turn in range(turns))
    ends = tuple(100 * (turn + 1) for turn in range(turns))
    return Chain(parts, ends, Parts(parts, ends))


def any_job(rng: random.Random, number: int, now: float) -> Job:
    conversation, cost_s = rng.randrange(6), rng.lognormvariate(1.0, 1.0)
    return Job(
        str(number),
        now - rng.choice([0.0, 5.0]),
        rng.random(),
        cost_s,
        2 * cost_s,
        50 * cost_s,
        prompt_tokens=2000 * rng.random(),
        client=rng.choice(["", "gold", "bob", "eve"]),
        affinity=rng.choice(["", "m1"]),
        prefix=chain(conversation, rng.randrange(1, 20)) if rng.random() < 0.8 else NO_CHAIN,
        agentic=conversation < 4,
        claimed=rng.choice(["", f"c{conversation}"]),
        parent=rng.choice(["", "c0"]),
        urgency=rng.choice([None, 0, 4]),
        urgency_by=UrgencySource.CLIENT,
        background_levels=rng.choice([0, 0, 10]),
        able=rng.choice([frozenset[str](), frozenset("a")]),
        not_before_s=rng.choice([0.0, now + 0.25]),
    )


def step(scheduler: Scheduler, rng: random.Random, number: int, now: float) -> None:
    waiting, running = [job.id for job in scheduler], list(scheduler.running)
    match rng.choice(["submit", "submit", "submit", "start", "start", "end", "other", "other", "servers"]):
        case "submit":
            try:
                scheduler.submit(any_job(rng, number, now), now)
            except QueueFullError:
                return
        case "start":
            while scheduler.next(now) is not None:
                pass
        case "end" if running:
            job = scheduler.running[rng.choice(running)]
            scheduler.answered(job.id, job.prompt_tokens, 30.0, None, calls_tool=rng.random() < 0.5, now=now)
            scheduler.finish(job.id, now, served=rng.random() < 0.8)
        case "servers":
            scheduler.set_slots(rng.choice("ab"), rng.choice([0, 1, 2]), last_resort=rng.random() < 0.3)
            scheduler.set_policy(POLICIES[rng.choice(list(POLICIES))], now)
        case "other" if waiting or running:
            job_id, level = rng.choice(waiting + running), rng.choice([None, 0, 4])
            scheduler.set_terms(job_id, Terms(rng.choice(["bob", "eve"]), 0, rng.choice([0, 10])), now)
            scheduler.set_urgency(rng.choice(waiting + running), level, UrgencySource.OPERATOR, now)
            if running and rng.random() < 0.3:
                scheduler.requeue(
                    rng.choice(running), now, served=False, able=rng.choice([None, frozenset()])
                )
            elif waiting and rng.random() < 0.5:
                rng.choice([scheduler.promote, scheduler.hold, scheduler.cancel])(rng.choice(waiting), now)


@pytest.mark.parametrize("seed", range(8))
def test_all_counts_agree_after_any_operations(seed: int) -> None:
    rng, now = random.Random(seed), 1000.0
    tenants = {"gold": Tenant(tau_s=5.0, weight=2.0, max_running=1)}
    scheduler = Scheduler(
        POLICIES["boost"],
        servers={"a": 2, "b": 1},
        tau_s=TAU_S,
        capacity=8,
        tenants=tenants,
        load_s={"m1": 5.0},
    )
    for number in range(400):
        now += rng.choice([0.0, 0.01, 0.5, 3.0, 30.0])
        step(scheduler, rng, number, now)
        jobs, running = list(scheduler), list(scheduler.running.values())
        assert scheduler._parked == sum(job.parked for job in jobs)
        assert scheduler.interactive == sum(not job.background_levels for job in jobs)
        assert scheduler._by_client == Counter(job.client for job in jobs)
        assert scheduler._clients_running == Counter(job.client for job in running)
        known = scheduler.sessions.known
        for counts, jobs_there in (("waiting", jobs), ("running", running)):
            here = Counter(job.session for job in jobs_there if job.session)
            assert all(getattr(each, counts) == here[each.id] for each in known.values())
        busy = Counter(known[job.session].parent for job in (*jobs, *running) if job.session in known)
        assert all(each.busy == busy[each.id] for each in known.values())


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize("seed", range(5))
def test_the_background_costs_a_bounded_wait_beside_a_busy_client(name: str, seed: int) -> None:
    longest_s, policy = 8.0, POLICIES[name]

    def started_s(levels: int) -> float:
        rng, now = random.Random(seed), 0.0
        scheduler = Scheduler(policy, servers={"a": 1}, tau_s=TAU_S)
        ours = Job("ours", 0.0, 0.5, 4.0, 8.0, 40.0, client="curl", background_levels=levels)
        scheduler.submit(ours, 0.0)
        arrivals = sorted(rng.uniform(0.0, 2000.0) for _ in range(480))  # a load of 0.95 at 4 s each
        others = [Job(str(n), at, 0.5, client="chat") for n, at in enumerate(arrivals)]
        for job in others:
            cost_s = rng.uniform(0.1, longest_s)
            job.cost_s, job.cost_high_s, job.tokens, job.p_long = cost_s, cost_s, 10 * cost_s, cost_s / 8
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
