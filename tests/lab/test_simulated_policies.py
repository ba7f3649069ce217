"""Policies that are simulated only: turns, and routing at arrival."""

from collections import Counter

from clairvoyant_lab.baselines import SimulatedJob
from clairvoyant_lab.simulator.policies import SIMULATED_POLICIES, RoutedPolicy, TurnPolicy

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.queue import Scheduler


def turns(name: str, slots: int) -> tuple[TurnPolicy, Scheduler]:
    policy = SIMULATED_POLICIES[name]
    assert isinstance(policy, TurnPolicy)
    return policy, Scheduler(policy, servers={"a": slots})


def test_round_robin_passes_the_slot_on_after_a_quantum() -> None:
    policy, scheduler = turns("rr", 1)
    for number in range(3):
        scheduler.submit(Job(str(number), float(number)), 2.0)
    order, now = [], 10.0
    for _ in range(6):
        dispatch = scheduler.next(now)
        assert dispatch is not None
        order.append(dispatch.job.id)
        tokens = dispatch.job.done_tokens
        scheduler.progress(dispatch.job.id, tokens + 99)
        assert policy.preemptions(scheduler) == []
        scheduler.progress(dispatch.job.id, tokens + 100)
        for preempt in policy.preemptions(scheduler):
            scheduler.requeue(preempt.job.id, now)
        now += 1.0
    assert order == ["0", "1", "2", "0", "1", "2"]


def test_rr_sjf_breaks_ties_of_waiting_time_by_length_and_preempts_the_longest() -> None:
    policy, scheduler = turns("rr-sjf", 2)
    for number, tokens in enumerate([400.0, 100.0, 300.0, 200.0]):
        scheduler.submit(Job(str(number), 0.0, tokens=tokens), 0.0)
    scheduler.next(0.0)
    scheduler.next(0.0)
    assert set(scheduler.running) == {"1", "3"}
    for job_id in ("1", "3"):
        scheduler.progress(job_id, 100.0)
    assert policy.preemptions(scheduler) == [scheduler.running["3"], scheduler.running["1"]]


def test_a_job_is_routed_to_the_better_of_two_servers() -> None:
    policy = SIMULATED_POLICIES["quartz"]
    assert isinstance(policy, RoutedPolicy)
    scheduler = Scheduler(policy, servers={f"w{n}": 1 for n in range(8)})
    for number in range(400):
        job = SimulatedJob(str(number), 0.0, cost_s=1.0, cost_high_s=2.0)
        scheduler.submit(policy.routed(job, 0.0, scheduler), 0.0)
    counts = Counter(job.pinned for job in scheduler)
    assert len(counts) == 8
    assert max(counts.values()) <= 400 / 8 + 5, "one choice alone would leave some with 65"
