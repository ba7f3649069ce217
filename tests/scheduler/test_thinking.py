"""A running job that has stopped thinking is expected to end when its answer does."""

import pytest

from clairvoyant_cli.scheduler.forecast_ranges import ForecastRanges
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


def started() -> Scheduler:
    """A job that runs from 0 on, of a thousand tokens in a hundred seconds."""
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1})
    scheduler.submit(Job("long", 0.0, cost_s=100.0, tokens=1000.0, tokens_q90=2000.0), 0.0)
    assert scheduler.next(0.0) is not None
    return scheduler


def test_preemption_and_forecasts_expect_the_answer_alone() -> None:
    scheduler = started()
    run = scheduler.running["long"]
    scheduler.progress("long", 600.0)
    assert run.left_s(60.0) == pytest.approx(run.job.remaining_s, rel=0.01)
    assert run.job.remaining_s > 50.0
    scheduler.thought("long", 600.0, 50.0, 100.0, 60.0)
    assert run.left_s(60.0) == run.job.remaining_s == pytest.approx(5.0)
    scheduler.progress("long", 640.0)
    assert run.left_s(64.0) == pytest.approx(run.job.remaining_s)
    assert 0.0 < run.job.remaining_s < 5.0
    ranges = ForecastRanges()
    ranges.learn_outcomes(scheduler, 64.0)
    assert ranges.of_run(run).high_s < 20.0
    assert scheduler.fleet.servers["a"].next_free_s(64.0) == run.left_s(64.0)


def test_a_job_that_starts_over_thinks_again_and_one_that_was_cut_does_not() -> None:
    scheduler = started()
    scheduler.progress("long", 600.0)
    scheduler.thought("long", 600.0, 50.0, 100.0, 60.0)
    scheduler.requeue("long", 61.0, preempted=True)
    assert (run := scheduler.next(70.0)) is not None
    assert run.left_s(70.0) == pytest.approx(run.job.remaining_s)
    assert run.job.remaining_s < 6.0
    scheduler.requeue("long", 71.0)
    assert run.job.thought is None


class Slow:
    """A server that takes five times as long as the fastest one."""

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        return tokens / 2.0


def test_preemption_on_a_slow_server_counts_its_seconds() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1})
    scheduler.fleet.servers["a"].speed = Slow()
    for name, tokens in (("long", 1000.0), ("short", 990.0)):
        scheduler.submit(Job(name, 0.0, cost_s=tokens / 10.0, tokens=tokens, tokens_q90=1.5 * tokens), 0.0)
    scheduler.hold("short", 0.0)
    assert scheduler.next(0.0) is not None
    run = scheduler.running["long"]
    assert run.left_s() == run.left_s(0.0) == 500.0
    scheduler.progress("long", 300.0)
    assert run.left_s() == pytest.approx(run.left_s(150.0))
    scheduler.thought("long", 300.0, 50.0, 60.0, 150.0)
    assert run.left_s() == run.left_s(150.0) == 25.0
    scheduler.reprioritise("short", -1, 150.0)
    scheduler.release("short", 150.0)
    scheduler.progress("long", 300.0, resume_s=20.0)
    assert scheduler.preemptions(150.0), "25 s are left"
    scheduler.progress("long", 300.0, resume_s=30.0)
    assert not scheduler.preemptions(150.0)
