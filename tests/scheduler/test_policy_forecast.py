"""Forecasts of start times under another policy."""

import pytest

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import MAX_PLAYED, starts


def queue(policy: str = "fcfs", *costs_s: float, slots: int = 1) -> Scheduler:
    scheduler = Scheduler(POLICIES[policy], servers={"mac": slots}, capacity=10_000)
    for number, cost_s in enumerate(costs_s):
        scheduler.submit(Job(f"j{number}", 0.0, cost_s / 100.0, cost_s, cost_s), 0.0)
        scheduler.next(0.0)
    return scheduler


def test_forecast_starts_follow_predicted_ends() -> None:
    scheduler = queue("fcfs", 4.0, 10.0, 1.0, 2.0)
    assert dict(starts(scheduler, POLICIES["fcfs"], 1.0)) == {"j1": 3.0, "j2": 13.0, "j3": 14.0}
    assert dict(starts(scheduler, POLICIES["sjf"], 1.0)) == {"j2": 3.0, "j3": 4.0, "j1": 6.0}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_forecast_does_not_change_the_queue(policy: str) -> None:
    scheduler = queue("sjf", 4.0, 10.0, 1.0, 2.0)
    scheduler.hold("j3", 0.0)
    assert {job_id for job_id, _ in starts(scheduler, POLICIES[policy], 1.0)} == {"j1", "j2"}
    assert scheduler.policy is POLICIES["sjf"]
    assert list(scheduler.running) == ["j0"]
    assert [entry.id for entry in scheduler.waiting()] == ["j2", "j1", "j3"]
    scheduler.finish("j0", 4.0)
    dispatch = scheduler.next(4.0)
    assert dispatch is not None
    assert dispatch.job.id == "j2"


def test_a_long_queue_is_sampled_and_the_median_holds() -> None:
    scheduler = queue("fcfs", *[1.0] * (10 * MAX_PLAYED + 4), slots=4)
    played = sorted(start_s for _, start_s in starts(scheduler, POLICIES["fcfs"], 0.0))
    assert len(played) <= MAX_PLAYED
    assert played[len(played) // 2] == pytest.approx(10 * MAX_PLAYED / 4 / 2, rel=0.05)
