"""The default policy: arrival order with a head start for short answers, and the rate that it learns."""

import pytest

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import (
    LEAST,
    POLICIES,
    SHARE,
    SPARE,
    USUAL_RATE,
    TailRate,
    boosted,
)
from clairvoyant_cli.scheduler.queue import Scheduler


def waiting(arrival_s: float, cost_s: float) -> Job:
    return Job("", arrival_s, cost_s=cost_s, queued_s=arrival_s)


def test_long_answers_keep_the_order_of_arrival_and_short_ones_pass() -> None:
    key = boosted(0.1)
    assert key(waiting(0.0, 60.0)) < key(waiting(1.0, 50.0))
    assert key(waiting(1.0, 1.0)) < key(waiting(0.0, 60.0))


def test_with_more_slots_the_head_start_is_that_of_one_faster_slot() -> None:
    assert boosted(0.1, slots=4)(waiting(0.0, 8.0)) == pytest.approx(boosted(0.1)(waiting(0.0, 2.0)))


def fed(gap_s: float, service_s: float, slots: int = 1, answers: int = 100) -> TailRate:
    rate = TailRate()
    for number in range(answers):
        rate.arrivals_s.append(number * gap_s)
        rate.served(service_s, slots, number * gap_s)
    return rate


@pytest.mark.parametrize(
    ("gap_s", "slots", "spare"),
    [(10.0, 1, 0.2), (20.0, 1, SPARE[1]), (6.0, 1, SPARE[0]), (2.5, 4, 0.2)],
    ids=["load 0.8", "little load", "overload", "four slots"],
)
def test_the_rate_follows_the_load_and_the_service_time(gap_s: float, slots: int, spare: float) -> None:
    found = fed(gap_s, service_s=8.0, slots=slots)
    # The rate moves in steps of a fifth, and the newest arrival is not a gap old.
    assert found.rate == pytest.approx(SHARE * spare / (8.0 / slots), rel=0.3)
    assert found.slots == slots


def test_few_answers_do_not_change_the_usual_rate() -> None:
    assert fed(1.0, service_s=100.0, answers=LEAST - 1).rate == USUAL_RATE


def test_a_scheduler_places_waiting_jobs_again_when_the_rate_changes() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"w": 1}, tau_s=None)
    now = 0.0
    for number in range(2 * LEAST):
        scheduler.submit(Job(f"done{number}", now, cost_s=0.2), now)
        dispatch = scheduler.next(now)
        assert dispatch is not None
        now += 0.2
        if number == LEAST:
            scheduler.submit(Job("waits", now, cost_s=0.2, priority=9), now)
        scheduler.finish(dispatch.job.id, now)
    [entry] = scheduler.waiting()
    assert scheduler.tail.rate > USUAL_RATE
    assert entry.key == pytest.approx(boosted(scheduler.tail.rate)(entry))


@pytest.mark.parametrize(("resume_s", "cut"), [(0.05, True), (20.0, True), (40.0, False)])
def test_a_cut_is_weighed_in_seconds_of_service_and_not_of_head_start(resume_s: float, cut: bool) -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"w": 1}, tau_s=None)
    scheduler.submit(Job("long", 0.0, cost_s=30.0, tokens=1200.0), 0.0)
    scheduler.next(0.0)
    scheduler.submit(Job("short", 1.0, cost_s=0.5, tokens=20.0), 1.0)
    scheduler.progress("long", 40.0, resume_s=resume_s)
    long, [short] = scheduler.running["long"].job, scheduler.waiting()
    assert boosted()(long) - boosted()(short) > 100.0
    assert bool(scheduler.preemptions(1.0)) is cut


def test_a_job_that_would_start_again_at_once_is_not_cut() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"w": 1}, tau_s=None)
    scheduler.submit(Job("old", 0.0, cost_s=30.0, tokens=1200.0), 0.0)
    scheduler.next(0.0)
    scheduler.submit(Job("new", 900.0, cost_s=0.5, tokens=20.0), 900.0)
    scheduler.progress("old", 40.0)
    assert not scheduler.preemptions(900.0)
