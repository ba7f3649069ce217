"""Which job is dropped when the queue is full."""

import pytest

from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import ClientFullError, Job, QueueFullError
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


def full_of(*jobs: Job, policy: str = "boost", tau_s: float | None = None, **tenants: Tenant) -> Scheduler:
    """Return a scheduler without a slot that has room for just these jobs."""
    scheduler = Scheduler(
        POLICIES[policy], servers={"a": 0}, capacity=len(jobs), tau_s=tau_s, tenants=tenants
    )
    for job in jobs:
        assert scheduler.submit(job, job.arrival_s) is None
    return scheduler


def job(name: str, cost_s: float = 1.0, *, at: float = 0.0, priority: int = 0) -> Job:
    return Job(name, at, cost_s=cost_s, client=name[0], priority=priority)


def displaced(scheduler: Scheduler, newcomer: Job, now: float = 0.0) -> str:
    """Submit a job to a full queue and return who gave way; "nobody" if it was refused."""
    before = len(scheduler)
    try:
        gone = scheduler.submit(newcomer, now)
    except QueueFullError:
        assert newcomer.id not in scheduler
        gone = None
    else:
        assert newcomer.id in scheduler
    assert len(scheduler) == before
    if gone is None:
        return "nobody"
    assert gone.id not in scheduler
    return gone.id


def test_the_newest_job_of_the_client_with_most_is_dropped() -> None:
    scheduler = full_of(job("a1", at=1.0), job("a3", at=3.0), job("a2", at=2.0), job("b1", at=4.0))
    assert displaced(scheduler, job("c1", 20.0, at=5.0), 5.0) == "a3"
    assert displaced(scheduler, job("d1", 0.1, at=6.0), 6.0) == "a2"
    assert displaced(scheduler, job("e1", 0.1, at=7.0), 7.0) == "nobody"


def test_the_new_job_counts_for_its_client() -> None:
    scheduler = full_of(job("a1"), job("a2"), job("a3"), job("b1"))
    assert displaced(scheduler, job("a4", 0.1)) == "nobody"
    assert displaced(scheduler, job("b2")) == "a3"


def test_alone_a_client_fills_the_queue_and_keeps_it() -> None:
    scheduler = full_of(job("a1", 3.0), job("a2", 9.0))
    assert displaced(scheduler, job("a3", 1.0, priority=-10)) == "nobody"
    assert displaced(scheduler, job("b1", 1.0)) == "a2"
    assert displaced(scheduler, job("c1", 1.0)) == "nobody"


def test_of_several_clients_with_most_the_newest_job_is_dropped() -> None:
    scheduler = full_of(*(job(f"{name}{n}", at=float(n)) for n in range(3) for name in "ab"))
    assert displaced(scheduler, job("c1", at=9.0), 9.0) == "b2"
    assert displaced(scheduler, job("c2", at=9.0), 9.0) == "a2"


@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_policy_prefers_does_not_matter(policy: str) -> None:
    jobs = [Job(f"a{n}", n / 10, n * 0.1, 8.0 / (n + 1), client="a", urgency=n) for n in range(8)]
    assert displaced(full_of(*jobs, policy=policy, tau_s=0.1), job("b"), 9.0) == "a7"


def test_a_weight_is_no_larger_share() -> None:
    scheduler = full_of(job("a1"), job("a2"), job("b1"), a=Tenant(weight=9.0))
    assert displaced(scheduler, job("c1")) == "a2"


def test_the_operators_choices_stay() -> None:
    scheduler = full_of(*(job(f"a{n}", at=float(n)) for n in range(4)))
    scheduler.promote("a3", 4.0)
    scheduler.hold("a2", 4.0)
    assert displaced(scheduler, job("b1", at=5.0), 5.0) == "a1"
    scheduler.hold("a0", 5.0)
    assert displaced(scheduler, job("c1", at=5.0), 5.0) == "nobody"
    scheduler.release("a2", 5.0)
    assert displaced(scheduler, job("c1", at=5.0), 5.0) == "a2"


def test_a_job_that_returns_is_as_old_as_it_was() -> None:
    scheduler = full_of(*(job(f"a{n}", at=float(n)) for n in range(3)))
    scheduler.set_slots("a", 1)
    assert scheduler.next(3.0) is not None
    scheduler.requeue("a0", 4.0)
    assert displaced(scheduler, job("b1", at=5.0), 5.0) == "a2"


def test_queue_lengths_follow_every_operation() -> None:
    scheduler = full_of(job("a1", 1.0), job("a2", 2.0), job("a3", 3.0))
    scheduler.reprioritise("a1", 5, 0.0)
    assert displaced(scheduler, job("b1")) == "a3"
    scheduler.set_policy(POLICIES["fcfs"], 1.0)
    scheduler.set_slots("a", 1)
    for expected in ("a2", "b1", "a1"):
        dispatch = scheduler.next(1.0)
        assert dispatch is not None
        assert dispatch.job.id == expected
        scheduler.finish(expected, 1.0)
    assert scheduler.clients == {}


def test_new_limits_apply_to_waiting_jobs() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 3}, tenants={"a": Tenant(max_running=1)})
    for name in ("a1", "a2", "b1", "b2"):
        scheduler.submit(job(name), 0.0)
    first = [scheduler.next(0.0), scheduler.next(0.0)]
    assert [each.job.id for each in first if each is not None] == ["a1", "b1"]
    scheduler.set_tenants({"b": Tenant(max_running=1, max_waiting=1)}, 1.0)
    assert scheduler.clients == {"a": (1, 1), "b": (1, 1)}
    dispatch = scheduler.next(1.0)
    assert dispatch is not None
    assert dispatch.job.id == "a2"
    scheduler.set_slots("a", 9)
    assert scheduler.next(1.0) is None
    with pytest.raises(ClientFullError):
        scheduler.submit(job("b3"), 1.0)


def test_new_priorities_apply_to_waiting_and_requeued_jobs() -> None:
    """But for what the operator has promoted, or given a priority."""
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 1})
    for number, name in enumerate(("a0", "a1", "a2", "a3", "a4", "b1")):
        scheduler.submit(job(name, at=float(number), priority=0 if name == "b1" else -10), float(number))
    assert scheduler.next(9.0) is not None
    scheduler.promote("a2", 9.0)
    scheduler.reprioritise("a3", -10, 9.0)
    scheduler.hold("a4", 9.0)
    scheduler.set_tenants({}, 9.0, priority_of=lambda job: max(job.priority, 50 if job.client == "a" else 0))
    scheduler.requeue("a0", 9.0)
    scheduler.release("a4", 9.0)
    ranks = {entry.id: entry.rank for entry in scheduler.waiting()}
    assert ranks == {"a2": float("-inf"), "a3": -10.0, "b1": 0.0, "a0": 50.0, "a1": 50.0, "a4": 50.0}
    order = []
    while (dispatch := scheduler.next(9.0)) is not None:
        order.append(dispatch.job.id)
        scheduler.finish(dispatch.job.id, 9.0)
    assert order == list(ranks)


def test_a_restored_priority_range_restores_the_place() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 1})
    scheduler.submit(job("a1", priority=-10), 0.0)
    scheduler.set_tenants({}, 1.0, priority_of=lambda job: max(job.priority, 50))
    scheduler.set_tenants({}, 2.0, priority_of=lambda job: max(job.priority, -100))
    [entry] = scheduler.waiting()
    assert entry.rank == -10.0
    assert [move.note for move in entry.moves] == ["", "50", "-10"]


def test_default_rules_apply_per_client() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 9}, everybody=Tenant(max_running=1, max_waiting=1))
    for name in ("a1", "b1"):
        scheduler.submit(job(name), 0.0)
    with pytest.raises(ClientFullError):
        scheduler.submit(job("a2"), 0.0)
    assert {scheduler.next(0.0) is not None for _ in range(2)} == {True}
    scheduler.submit(job("a3"), 0.0)
    assert scheduler.next(0.0) is None


def test_a_new_weight_reorders_the_queue() -> None:
    def next_after(weight: float) -> str:
        scheduler = Scheduler(POLICIES["boost"], servers={"a": 1})
        for client, seconds in (("a", 30.0), ("b", 10.0)):
            scheduler.submit(job(f"{client}0", seconds), 0.0)
            scheduler.next(0.0)
            scheduler.finish(f"{client}0", seconds)
        for name in ("a1", "b1"):
            scheduler.submit(job(name, 1.0), 30.0)
        scheduler.set_tenants({"a": Tenant(weight=weight)}, 30.0)
        dispatch = scheduler.next(30.0)
        assert dispatch is not None
        return dispatch.job.id

    assert (next_after(1.0), next_after(4.0)) == ("b1", "a1")
