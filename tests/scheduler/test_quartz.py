"""The policy `quartz`: routed as it comes, by upper quantiles that are watched."""

from collections import Counter
from random import Random

import pytest

from clairvoyant_cli.proxy.queue.operation import MIN_JUDGED, Coverage
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from tests.scheduler.test_placement import started


def quartz(servers: int, capacity: int = 100) -> Scheduler:
    slots = {f"w{n}": 1 for n in range(servers)}
    return Scheduler(POLICIES["quartz"], servers=slots, capacity=capacity)


def waiting_for(scheduler: Scheduler) -> dict[str, str]:
    return {entry.id: entry.routed for entry in scheduler.waiting()}


def test_the_lower_quantile_goes_first() -> None:
    scheduler = quartz(1)
    scheduler.submit(Job("wide", 0.0, cost_s=2.0, cost_high_s=9.0), 0.0)
    scheduler.submit(Job("narrow", 0.0, cost_s=3.0, cost_high_s=4.0), 0.0)
    assert started(scheduler, 0.0) == {"narrow": "w0"}


def test_a_job_is_routed_to_the_better_of_two_workers() -> None:
    scheduler = quartz(8, 1000)
    for number in range(400):
        scheduler.submit(Job(str(number), 0.0, cost_s=1.0, cost_high_s=2.0), 0.0)
    counts = Counter(waiting_for(scheduler).values())
    assert set(counts) == {f"w{n}" for n in range(8)}
    assert max(counts.values()) <= 400 / 8 + 5  # one choice alone would leave some with 65
    placed = started(scheduler, 0.0)
    assert len(placed) == 8


def test_jobs_of_a_removed_worker_are_routed_again() -> None:
    for goes in ({"slots": 0}, {"slots": 1, "last_resort": True}):
        scheduler = quartz(2)
        for number in range(40):
            scheduler.submit(Job(str(number), 0.0, cost_s=1.0, cost_high_s=2.0), 0.0)
        assert set(waiting_for(scheduler).values()) == {"w0", "w1"}
        scheduler.set_slots("w0", goes["slots"], last_resort="last_resort" in goes)
        assert set(waiting_for(scheduler).values()) == {"w1"}
        assert started(scheduler, 0.0) == {"0": "w1"}


def test_an_unroutable_job_goes_to_the_first_able_worker() -> None:
    scheduler = quartz(2)
    for server_id in ("w0", "w1"):
        scheduler.set_slots(server_id, 0)
    scheduler.submit(Job("x", 0.0, cost_s=1.0), 0.0)
    assert started(scheduler, 0.0) == {}
    scheduler.set_slots("w1", 1)
    assert started(scheduler, 0.0) == {"x": "w1"}


@pytest.mark.parametrize("spread", [0.3, 1.2])
def test_corrected_quantiles_have_their_nominal_coverage(spread: float) -> None:
    rng, coverage, missed = Random(1), Coverage(), 0
    for number in range(4000):
        actual_s = rng.lognormvariate(0.0, spread)
        quantile_s = coverage.corrected("short", 1.0)
        missed += number >= 1000 and actual_s > quantile_s
        coverage.learn("short", quantile_s, actual_s)
    assert missed / 3000 == pytest.approx(0.05, abs=0.01)
    assert coverage.trusted


def test_missed_quantiles_lose_and_regain_trust() -> None:
    coverage = Coverage()
    for number in range(MIN_JUDGED):
        assert coverage.trusted
        coverage.learn("long", 1.0, 0.5 if number % 5 else 2.0)
    assert not coverage.trusted
    for _ in range(MIN_JUDGED * 2):
        coverage.learn("long", 1.0, 0.5)
    assert coverage.trusted
