"""Ranges of forecasts follow the forecasts that came true, and nothing else."""

from clairvoyant_cli.scheduler.forecast_ranges import ForecastRanges, Range
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import Wait

WAIT = Wait(10.0, 0.5, 10.0, 0.0)


class Waits:
    """Jobs that wait one after the other, each forecast to wait ten seconds."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(POLICIES["fcfs"], servers={"a": 1})
        self.ranges = ForecastRanges()
        self.now, self.number = 1000.0, 0

    def begin(self) -> Range:
        """Let the next one wait; return its range."""
        self.number += 1
        self.scheduler.submit(Job(f"{self.number}", self.now), self.now)
        self.ranges.learn_outcomes(self.scheduler, self.now)
        return self.ranges.of_wait(self.scheduler.waiting()[0], WAIT)

    def start(self, after_s: float) -> None:
        self.now += after_s
        assert self.scheduler.next(self.now) is not None
        self.ranges.learn_outcomes(self.scheduler, self.now)
        self.scheduler.finish(f"{self.number}", self.now + 1.0)
        self.now += 2.0


def test_a_range_moves_to_where_the_starts_are() -> None:
    waits = Waits()
    first = waits.begin()
    assert first.low_s < first.mid_s == 10.0 < first.high_s
    waits.start(20.0)
    for _ in range(300):
        waits.begin()
        waits.start(20.0)
    last = waits.begin()
    assert 2.0 * first.low_s < last.low_s < 21.0
    assert 19.0 < last.high_s < 25.0


def test_what_outlasts_its_range_counts_before_it_starts() -> None:
    waits = Waits()
    before = waits.begin()
    waits.ranges.learn_outcomes(waits.scheduler, waits.now + 2.0 * before.high_s)
    assert waits.begin().high_s > before.high_s


def test_requests_that_leave_or_are_held_and_pauses_teach_nothing() -> None:
    waits = Waits()
    before = waits.begin()
    waits.scheduler.cancel("1", waits.now)
    waits.ranges.learn_outcomes(waits.scheduler, waits.now + 100.0)
    assert waits.begin() == before
    waits.scheduler.hold("2", waits.now)
    waits.ranges.learn_outcomes(waits.scheduler, waits.now + 200.0)
    waits.scheduler.cancel("2", waits.now)
    assert waits.begin() == before
    waits.scheduler.pause()
    waits.ranges.learn_outcomes(waits.scheduler, waits.now + 300.0)
    waits.scheduler.resume()
    waits.ranges.learn_outcomes(waits.scheduler, waits.now + 400.0)
    assert waits.ranges.of_wait(waits.scheduler.waiting()[0], WAIT) == before


def test_the_time_left_of_an_answer_is_learned_too() -> None:
    waits = Waits()
    found = []
    for _ in range(300):
        waits.number += 1
        waits.scheduler.submit(
            Job(f"{waits.number}", waits.now, cost_s=5.0, tokens=200.0, tokens_q90=300.0), waits.now
        )
        assert waits.scheduler.next(waits.now) is not None
        waits.ranges.learn_outcomes(waits.scheduler, waits.now + 1.0)
        found.append(waits.ranges.of_run(waits.scheduler.running[f"{waits.number}"]))
        waits.scheduler.finish(f"{waits.number}", waits.now + 21.0)
        waits.ranges.learn_outcomes(waits.scheduler, waits.now + 22.0)
        waits.now += 30.0
    assert found[0].low_s < found[0].mid_s < 5.0 < found[0].high_s
    assert found[-1].low_s < 20.5
    assert found[-1].high_s > 19.5
    assert found[-1].mid_s > 15.0
