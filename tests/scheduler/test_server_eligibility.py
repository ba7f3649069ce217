"""Which servers can run which jobs, servers of last resort, and weights."""

import pytest

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from tests.scheduler.test_placement import started


def fleet(**slots: int) -> Scheduler:
    return Scheduler(POLICIES["fcfs"], servers=slots)


def test_a_job_waits_for_able_workers_without_blocking_others() -> None:
    scheduler = fleet(a=1, b=1, c=1)
    scheduler.submit(Job("1", 0.0, able=frozenset("bc")), 0.0)
    scheduler.submit(Job("2", 1.0, able=frozenset("bc")), 1.0)
    scheduler.submit(Job("3", 2.0, able=frozenset("b")), 2.0)
    scheduler.submit(Job("4", 3.0), 3.0)
    assert started(scheduler, 4.0) == {"1": "b", "2": "c", "4": "a"}
    scheduler.finish("2", 5.0)
    assert started(scheduler, 5.0) == {}
    scheduler.finish("1", 6.0)
    assert started(scheduler, 6.0) == {"3": "b"}


def test_able_workers_may_change_while_a_job_waits() -> None:
    scheduler = fleet(a=1, b=0)
    scheduler.submit(Job("x", 0.0, able=frozenset("b")), 0.0)
    assert started(scheduler, 1.0) == {}
    scheduler.set_able(lambda job: frozenset(), 2.0)
    assert started(scheduler, 2.0) == {"x": "a"}


def test_a_worker_set_apart_takes_only_jobs_that_no_other_can_run() -> None:
    scheduler = fleet(a=1, b=3)
    scheduler.fleet.set_slots("b", 3, last_resort=True)
    for number, job in enumerate(
        (
            Job("any", 0.0),
            Job("waits", 0.0),
            Job("pinned", 0.0, pinned="b"),
            Job("own", 0.0, able=frozenset("b")),
        )
    ):
        scheduler.submit(job, float(number))
    assert started(scheduler, 9.0) == {"any": "a", "pinned": "b", "own": "b"}
    scheduler.fleet.set_slots("a", 0)  # nobody else is there
    assert started(scheduler, 10.0) == {"waits": "b"}


def test_a_heavier_worker_takes_more() -> None:
    scheduler = fleet(light=4, heavy=4)
    scheduler.fleet.set_slots("heavy", 4, weight=3.0)
    for number in range(4):
        scheduler.submit(Job(str(number), 0.0), 0.0)
    assert sorted(started(scheduler, 0.0).values()) == ["heavy", "heavy", "heavy", "light"]


def test_a_worker_is_removed_only_when_idle() -> None:
    scheduler = fleet(a=1, b=1)
    scheduler.submit(Job("x", 0.0, able=frozenset("b")), 0.0)
    assert started(scheduler, 0.0) == {"x": "b"}
    with pytest.raises(ValueError, match="b still runs 1"):
        scheduler.fleet.remove("b")
    scheduler.finish("x", 1.0)
    scheduler.fleet.remove("b")
    assert dict(scheduler.slots) == {"a": 1}


def test_a_worker_with_fixed_models_never_loads() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"swaps": 1, "fixed": 1}, load_s={"m": 8.0, "n": 8.0})
    scheduler.fleet.residency.fixed.add("fixed")
    for number, affinity in enumerate("mnm"):
        job = Job(str(number), 0.0, cost_s=1.0, affinity=affinity, able=frozenset(("swaps", "fixed")))
        scheduler.submit(job, 0.0)
        assert scheduler.fleet.residency.price_s("fixed", affinity) == 0.0
        assert started(scheduler, 0.0)[str(number)] == "fixed"
        scheduler.finish(str(number), 0.0)
