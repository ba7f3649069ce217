"""Which job is dropped when the queue is full."""

from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import Job, QueueFullError
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
    scheduler.fleet.set_slots("a", 1)
    assert scheduler.next(3.0) is not None
    scheduler.requeue("a0", 4.0)
    assert displaced(scheduler, job("b1", at=5.0), 5.0) == "a2"


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
