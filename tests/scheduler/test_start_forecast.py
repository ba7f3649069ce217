"""When waiting jobs are predicted to start."""

import pytest

from clairvoyant_cli.scheduler.explain import Standing, Standings
from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from tests.fakes.watched_waits import watched


def job(name: str, cost_s: float, at_s: float = 0.0, **more: object) -> Job:
    return Job(name, at_s, cost_s=cost_s, tokens=cost_s * 40.0, tokens_q90=cost_s * 44.0, **more)  # type: ignore[arg-type]


def busy(*running: Job, policy: str = "boost", slots: int = 1, **options: object) -> Scheduler:
    scheduler = Scheduler(POLICIES[policy], servers={"a": slots}, **options)  # type: ignore[arg-type]
    for each in running:
        scheduler.submit(each, each.arrival_s)
        assert scheduler.next(each.arrival_s) is not None
    return scheduler


def standings(scheduler: Scheduler, now: float) -> dict[str, Standing]:
    return {each.job.id: each for each in Standings(scheduler, now, 0.0, 1)}


def start_s(scheduler: Scheduler, job_id: str, now: float) -> float:
    start = standings(scheduler, now)[job_id].start
    assert start is not None
    assert start.low_s < start.mid_s < start.high_s
    return start.mid_s


def test_a_wait_is_the_work_before_it() -> None:
    scheduler = busy(job("runs", 10.0))
    scheduler.submit(job("short", 5.0), 0.0)
    scheduler.submit(job("long", 50.0), 0.0)
    assert start_s(scheduler, "short", 4.0) == pytest.approx(6.0, rel=0.3)
    assert start_s(scheduler, "long", 4.0) == pytest.approx(11.0, rel=0.3)


def test_an_answer_beyond_its_prediction_still_takes_time() -> None:
    scheduler = busy(job("runs", 10.0))
    scheduler.submit(job("next", 5.0), 0.0)
    waits = [start_s(scheduler, "next", now) for now in (2.0, 6.0, 12.0, 40.0)]
    assert waits[0] > waits[1] > waits[2] > 0.5
    assert waits[3] > waits[2]


def test_the_first_of_several_slots_falls_free_before_any_one_is_expected_to() -> None:
    scheduler = busy(*(job(f"runs{n}", 10.0) for n in range(4)), slots=4)
    scheduler.submit(job("next", 5.0), 0.0)
    scheduler.submit(job("last", 50.0), 0.0)
    assert start_s(scheduler, "next", 0.0) < start_s(scheduler, "last", 0.0) < 10.0


def test_a_long_answer_on_one_slot_does_not_delay_those_on_the_other() -> None:
    scheduler = busy(job("endless", 1000.0), job("runs", 5.0), slots=2)
    for n in range(4):
        scheduler.submit(job(f"{n}", 5.0), 0.0)
    assert start_s(scheduler, "3", 0.0) < 40.0


def arrived(policy: str, tau_s: float | None = None) -> Scheduler:
    """Return a scheduler to which a short job has come each 8 s, half of its time, and a long one at last."""
    scheduler = busy(policy=policy, tau_s=tau_s)
    for n in range(40):
        scheduler.submit(job(f"{n}", 4.0, 8.0 * n), 8.0 * n)
        assert scheduler.next(8.0 * n) is not None
        if n < 39:
            scheduler.finish(f"{n}", 8.0 * n + 4.0)
    scheduler.submit(job("long", 50.0, 312.0), 312.0)
    for n in range(10):
        scheduler.submit(job(f"w{n}", 4.0, 312.0), 312.0)
    return scheduler


def test_newcomers_that_go_before_a_job_are_part_of_its_forecast() -> None:
    long = standings(arrived("boost"), 312.0)["long"]
    assert (long.rank, long.start is not None) == (11, True)
    assert long.ahead is not None
    assert long.ahead > 13.0
    assert start_s(arrived("boost"), "long", 312.0) > 1.3 * 44.0  # the work before it now
    assert standings(arrived("fcfs"), 312.0)["w9"].ahead == pytest.approx(10.0)


def test_the_guard_limits_how_many_go_before_a_job() -> None:
    assert start_s(arrived("boost", 20.0), "long", 312.0) < 0.9 * start_s(arrived("boost"), "long", 312.0)


def test_a_client_at_its_limit_waits_for_its_own_slot() -> None:
    tenants = {"c": Tenant(max_running=1)}
    scheduler = busy(job("own", 60.0, client="c"), job("other", 5.0), slots=2, tenants=tenants)
    scheduler.submit(job("limited", 1.0, client="c"), 0.0)
    scheduler.submit(job("free", 2.0), 0.0)
    assert start_s(scheduler, "free", 0.0) < 10.0 < 30.0 < start_s(scheduler, "limited", 0.0)


def test_a_job_waits_for_a_server_that_can_take_it() -> None:
    scheduler = busy(job("runs", 60.0), policy="boost")
    scheduler.fleet.set_slots("b", 1)
    scheduler.submit(job("short", 5.0, pinned="b"), 0.0)
    scheduler.next(0.0)
    scheduler.submit(job("waits for a", 1.0, able=frozenset({"a"})), 0.0)
    scheduler.submit(job("waits for b", 2.0, able=frozenset({"b"})), 0.0)
    assert start_s(scheduler, "waits for b", 0.0) < 10.0 < 40.0 < start_s(scheduler, "waits for a", 0.0)


def test_a_job_past_tau_whose_server_is_down_delays_no_forecast() -> None:
    scheduler = busy(job("runs", 60.0), policy="sjf", tau_s=5.0)
    scheduler.fleet.set_slots("b", 0)
    scheduler.submit(job("stranded", 1.0, pinned="b"), 0.0)
    scheduler.submit(job("next", 5.0, at_s=1.0), 1.0)
    assert start_s(scheduler, "next", 50.0) < 20.0
    assert standings(scheduler, 50.0)["stranded"].start is None


def test_four_of_five_starts_and_ends_fall_into_their_ranges() -> None:
    cases = (("boost", 1), ("boost", 4), ("boost", 4))
    runs = [watched(policy, "right", 0.8, slots, 7, 300, 4.0) for policy, slots in cases]
    waits, ends = zip(*(run.judged() for run in runs), strict=True)
    assert sum(each.rows for each in waits) > 500
    for judged in (waits, ends):
        covered = sum(each.covered_starts for each in judged) / len(judged)
        assert 0.72 < covered < 0.88
    assert sum(each.near for each in waits) > sum(each.near_plain for each in waits)
