"""Which job is dropped when the queue is full."""

import pytest

from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import ClientFullError, Job, QueueFullError
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


def full_of(*jobs: Job, policy: str = "bounded", tau_s: float | None = None, **tenants: Tenant) -> Scheduler:
    """Return a scheduler without a slot that has room for just these jobs."""
    scheduler = Scheduler(
        POLICIES[policy], workers={"a": 0}, capacity=len(jobs), tau_s=tau_s, tenants=tenants
    )
    for job in jobs:
        assert scheduler.submit(job, job.arrival_s) is None
    return scheduler


def job(name: str, cost_s: float = 1.0, *, at: float = 0.0, priority: int = 0) -> Job:
    """Return a job of the client whose name is the first letter."""
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


def test_the_last_job_of_the_longest_queue_is_dropped() -> None:
    scheduler = full_of(job("a1", 3.0), job("a2", 9.0), job("a3", 1.0), job("b1", 50.0))
    assert displaced(scheduler, job("c1", 20.0)) == "a2"


@pytest.mark.parametrize("policy", POLICIES)
def test_the_dropped_job_is_the_last_by_policy(policy: str) -> None:
    jobs = [
        Job(f"a{n}", n / 10, n * 0.1, 8.0 / (n + 1), tokens=9.0 - n, client="a", urgency=n) for n in range(8)
    ]
    scheduler = full_of(*jobs, policy=policy)
    assert scheduler.next(1.0) is None
    last = list(scheduler.waiting())[-1].job.id
    assert displaced(scheduler, job("b"), 1.0) == last


def test_a_client_with_as_many_jobs_drops_nobody() -> None:
    scheduler = full_of(job("a1"), job("a2"), job("b1"), job("b2"))
    assert displaced(scheduler, job("b3", 100.0)) == "nobody"
    assert displaced(scheduler, job("c1", 100.0)) == "a2"


def test_a_clients_only_job_is_not_dropped() -> None:
    assert displaced(full_of(job("a1", 9.0), job("b1", 9.0)), job("c1")) == "nobody"


def test_alone_a_client_keeps_its_first_jobs() -> None:
    scheduler = full_of(job("a1", 3.0), job("a2", 9.0))
    assert displaced(scheduler, job("a3", 20.0)) == "nobody"
    assert displaced(scheduler, job("a4", 1.0)) == "a2"
    assert displaced(scheduler, job("a5", 2.0)) == "a1"


def test_a_lower_priority_is_dropped_first() -> None:
    scheduler = full_of(job("a1", 9.0), job("a2", 1.0, priority=10), job("a3", 5.0))
    assert displaced(scheduler, job("b1", 30.0)) == "a2"


def test_a_weight_is_a_larger_share() -> None:
    jobs = [job(f"a{n}") for n in range(4)] + [job(f"b{n}") for n in range(3)]
    heavy = full_of(*jobs, a=Tenant(weight=2.0))
    assert displaced(heavy, job("c1", 9.0))[0] == "b"
    assert displaced(full_of(*jobs), job("c1", 9.0))[0] == "a"


def test_promoted_and_held_jobs_stay_and_overdue_ones_are_dropped_last() -> None:
    scheduler = full_of(job("a1", 9.0), job("a2", 8.0), job("a3", 7.0), job("a4", 2.0, at=5.0), tau_s=10.0)
    scheduler.promote("a1", 6.0)
    scheduler.hold("a2", 6.0)
    assert displaced(scheduler, job("b1", 50.0, at=11.0), 11.0) == "a4"
    assert displaced(scheduler, job("c1", 1.0, at=12.0), 12.0) == "a3"
    assert displaced(scheduler, job("d1", 1.0, at=12.0), 12.0) == "nobody"
    scheduler.release("a2", 30.0)
    assert displaced(scheduler, job("d2", 1.0, at=30.0), 30.0) == "a2"


def test_a_client_with_an_overdue_full_queue_does_not_lock_out_others() -> None:
    scheduler = full_of(*(job(f"a{n}", 9.0 - n, at=float(n)) for n in range(6)), tau_s=5.0)
    gone = [displaced(scheduler, job(f"b{n}", 50.0, at=20.0), 20.0) for n in range(4)]
    assert gone == ["a5", "a4", "a3", "nobody"]
    assert displaced(scheduler, job("a6", 0.1, at=20.0), 20.0) == "nobody"


def test_overdue_jobs_are_set_aside_and_not_lost() -> None:
    scheduler = full_of(*(job(f"a{n}", at=float(n)) for n in range(5)), tau_s=5.0)
    assert displaced(scheduler, job("b1", at=20.0), 20.0) == "a4"
    scheduler.cancel("a3", 20.0)
    scheduler.promote("a2", 20.0)
    assert scheduler.submit(job("b2", 9.0, at=20.0), 20.0) is None
    assert displaced(scheduler, job("c1", at=20.0), 20.0) == "a1"
    scheduler.set_slots("a", 1)
    dispatch = scheduler.next(20.0)
    assert dispatch is not None
    assert dispatch.job.id == "a2"


def test_overdue_jobs_are_spared_up_to_a_fair_share() -> None:
    """The fair share of three clients in a queue of six is two: b has that, or one more."""

    def gives_way(of_a: int, of_b: int) -> str:
        jobs = [*(job(f"a{n}") for n in range(of_a)), *(job(f"b{n}", at=1.0) for n in range(of_b))]
        scheduler = full_of(*jobs, tau_s=5.0)
        for number in range(of_a):
            scheduler.hold(f"a{number}", 1.0)
        return displaced(scheduler, job("c1", at=20.0), 20.0)

    assert (gives_way(4, 2), gives_way(3, 3)) == ("nobody", "b2")


def test_a_weight_is_a_larger_fair_share() -> None:
    jobs = [*(job(f"a{n}") for n in range(3)), *(job(f"b{n}", at=1.0) for n in range(3))]
    scheduler = full_of(*jobs, tau_s=5.0, b=Tenant(weight=2.0))
    for number in range(3):
        scheduler.hold(f"a{number}", 1.0)
    assert displaced(scheduler, job("c1", at=20.0), 20.0) == "nobody"
    scheduler.set_tenants({"b": Tenant(weight=1.0)}, 20.0)
    assert displaced(scheduler, job("c1", at=20.0), 20.0) == "b2"


def test_an_only_job_that_is_overdue_stays_whatever_its_weight() -> None:
    light = Tenant(weight=0.1)
    assert displaced(full_of(job("a1"), tau_s=5.0, a=light), job("b1", at=9.0), 9.0) == "nobody"
    assert displaced(full_of(job("a1"), tau_s=50.0, a=light), job("b1", at=9.0), 9.0) == "a1"
    assert displaced(full_of(job("a1"), job("a2"), tau_s=5.0, a=light), job("b1", at=9.0), 9.0) == "a2"


def test_a_released_only_job_may_be_dropped() -> None:
    scheduler = full_of(job("a1"), a=Tenant(weight=0.1))
    scheduler.hold("a1", 0.0)
    assert displaced(scheduler, job("b1")) == "nobody"
    scheduler.release("a1", 0.0)
    assert displaced(scheduler, job("b1")) == "a1"


def test_many_small_clients_do_not_hide_a_large_one() -> None:
    light = {name: Tenant(weight=0.1) for name in "cdefghijklmn"}
    young = [job(f"a{n}", at=5.0) for n in range(4)]
    scheduler = full_of(*(job(f"{name}1") for name in light), *young, tau_s=5.0)
    scheduler.set_tenants(light, 0.0)
    assert displaced(scheduler, job("b1", at=9.0), 9.0) == "a3"
    assert displaced(scheduler, job("b2", at=9.0), 9.0) == "a2"
    scheduler.cancel("a1", 9.0)
    scheduler.submit(job("c2", at=9.0), 9.0)
    assert displaced(scheduler, job("o1", at=9.0), 9.0) == "c2"


def test_tau_means_nothing_under_a_policy_without_a_guard() -> None:
    scheduler = full_of(job("a1"), job("a2"), policy="fcfs", tau_s=1.0)
    assert displaced(scheduler, job("b1", at=99.0), 99.0) == "a2"


def test_a_spared_client_passes_the_drop_to_the_next() -> None:
    scheduler = full_of(*(job(f"a{n}") for n in range(3)), job("b1", at=9.0), job("b2", at=9.0), tau_s=5.0)
    for number in range(3):
        scheduler.promote(f"a{number}", 9.0)
    assert displaced(scheduler, job("c1", at=10.0), 10.0) == "b2"


def test_the_operators_choices_stay_whatever_they_are() -> None:
    scheduler = full_of(job("a1", 9.0), job("a2", 8.0), job("a3", 7.0))
    for job_id in ("a1", "a2"):
        scheduler.promote(job_id, 0.0)
    scheduler.hold("a3", 0.0)
    assert displaced(scheduler, job("b1")) == "nobody"
    scheduler.reprioritise("a2", 0, 0.0)
    assert displaced(scheduler, job("b1")) == "a2"


def test_a_spared_client_is_considered_again() -> None:
    scheduler = full_of(*(job(f"a{n}") for n in range(3)), job("b1"), job("b2"))
    for number in range(3):
        scheduler.hold(f"a{number}", 0.0)
    assert displaced(scheduler, job("c1")) == "b2"
    for number in range(3):
        scheduler.release(f"a{number}", 0.0)
    assert displaced(scheduler, job("d1")) == "a2"


def test_a_shrunk_queue_is_not_the_longest() -> None:
    scheduler = full_of(*(job(f"a{n}") for n in range(4)), job("b1"), job("b2"))
    for number in range(3):
        scheduler.cancel(f"a{number}", 0.0)
    for name in ("b3", "c1", "d1"):
        scheduler.submit(job(name), 0.0)
    assert displaced(scheduler, job("e1")) == "b3"


def test_a_new_weight_applies_to_waiting_jobs() -> None:
    scheduler = full_of(*(job(f"a{n}") for n in range(4)), *(job(f"b{n}") for n in range(3)))
    scheduler.set_tenants({"a": Tenant(weight=2.0)}, 0.0)
    assert displaced(scheduler, job("c1")) == "b2"


def test_queue_lengths_follow_every_operation() -> None:
    scheduler = full_of(job("a1", 1.0), job("a2", 2.0), job("a3", 3.0))
    scheduler.reprioritise("a1", 5, 0.0)
    assert displaced(scheduler, job("b1")) == "a1"
    scheduler.set_policy(POLICIES["fcfs"], 1.0)
    scheduler.set_slots("a", 1)
    for expected in ("a2", "a3", "b1"):
        dispatch = scheduler.next(1.0)
        assert dispatch is not None
        assert dispatch.job.id == expected
        scheduler.finish(expected, 1.0)
    assert scheduler.clients == {}


def test_a_dropped_job_is_not_charged() -> None:
    scheduler = full_of(job("a1", 60.0), job("a2", 60.0), policy="fair")
    displaced(scheduler, job("b1", 1.0))
    assert scheduler.accounts.used_s("a", 0.0) == pytest.approx(60.0)


def test_new_limits_apply_to_waiting_jobs() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], workers={"a": 3}, tenants={"a": Tenant(max_running=1)})
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
    scheduler = Scheduler(POLICIES["fcfs"], workers={"a": 1})
    for number, name in enumerate(("a0", "a1", "a2", "a3", "a4", "b1")):
        scheduler.submit(job(name, at=float(number), priority=0 if name == "b1" else -10), float(number))
    assert scheduler.next(9.0) is not None
    scheduler.promote("a2", 9.0)
    scheduler.reprioritise("a3", -10, 9.0)
    scheduler.hold("a4", 9.0)
    scheduler.set_tenants({}, 9.0, priority_of=lambda job: max(job.priority, 50 if job.client == "a" else 0))
    scheduler.requeue("a0", 9.0)
    scheduler.release("a4", 9.0)
    ranks = {entry.job.id: entry.rank for entry in scheduler.waiting()}
    assert ranks == {"a2": float("-inf"), "a3": -10.0, "b1": 0.0, "a0": 50.0, "a1": 50.0, "a4": 50.0}
    order = []
    while (dispatch := scheduler.next(9.0)) is not None:
        order.append(dispatch.job.id)
        scheduler.finish(dispatch.job.id, 9.0)
    assert order == list(ranks)


def test_a_restored_priority_range_restores_the_place() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], workers={"a": 1})
    scheduler.submit(job("a1", priority=-10), 0.0)
    scheduler.set_tenants({}, 1.0, priority_of=lambda job: max(job.priority, 50))
    scheduler.set_tenants({}, 2.0, priority_of=lambda job: max(job.priority, -100))
    [entry] = scheduler.waiting()
    assert entry.rank == -10.0
    assert [move.note for move in entry.moves] == ["", "50", "-10"]


def test_default_rules_apply_per_client() -> None:
    scheduler = Scheduler(POLICIES["fcfs"], workers={"a": 9}, everybody=Tenant(max_running=1, max_waiting=1))
    for name in ("a1", "b1"):
        scheduler.submit(job(name), 0.0)
    with pytest.raises(ClientFullError):
        scheduler.submit(job("a2"), 0.0)
    assert {scheduler.next(0.0) is not None for _ in range(2)} == {True}
    scheduler.submit(job("a3"), 0.0)
    assert scheduler.next(0.0) is None


def test_a_new_weight_reorders_the_queue_under_fair() -> None:
    def next_after(weight: float) -> str:
        scheduler = Scheduler(POLICIES["fair"], workers={"a": 1})
        for name, cost_s in (("a0", 30.0), ("b0", 10.0), ("a1", 1.0), ("b1", 1.0)):
            scheduler.submit(job(name, cost_s), 0.0)
        for each in ("a0", "b0"):
            scheduler.cancel(each, 0.0)
        scheduler.set_tenants({"a": Tenant(weight=weight)}, 0.0)
        dispatch = scheduler.next(0.0)
        assert dispatch is not None
        return dispatch.job.id

    assert (next_after(1.0), next_after(4.0)) == ("b1", "a1")


def test_memory_of_a_full_queue_is_bounded() -> None:
    scheduler = full_of(*(job(f"a{n}") for n in range(20)))
    for number in range(5000):
        displaced(scheduler, Job(str(number), 0.0, cost_s=0.5, client=f"c{number % 200}"))
        scheduler.cancel(str(number), 0.0)
        if len(scheduler) < 20:
            scheduler.submit(Job(f"x{number}", 0.0, cost_s=1.0, client="a"), 0.0)
    queues = scheduler._queues
    assert len(queues._by_client) == 1
    assert len(queues._largest) < 300
    [queue] = queues._by_client.values()
    assert len(queue.last_jobs._items) < 300


def test_memory_of_overdue_jobs_is_bounded() -> None:
    scheduler = full_of(*(job(f"a{n}") for n in range(20)), tau_s=5.0)
    for number in range(2000):
        now = 10.0 * (number + 1)
        newcomer = Job(str(number), now, cost_s=0.5, client=f"c{number % 200}")
        assert displaced(scheduler, newcomer, now)[0] == "a"
        scheduler.cancel(newcomer.id, now)
        scheduler.submit(job(f"a{number + 20}", at=now), now)
    queues = scheduler._queues
    [queue] = queues._by_client.values()
    assert len(queue.latest_overdue._items) + len(queue.last_jobs._items) < 300
    assert queues._weight == queue.weight
    for entry in list(scheduler.waiting()):
        scheduler.cancel(entry.job.id, 1e6)
    assert queues._weight == 0.0
