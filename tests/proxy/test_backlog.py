"""A queue that does not get shorter is noticed, and for how long it has stood."""

import pytest

from clairvoyant_cli.proxy.observing.queue_rows import SAMPLE_S, STANDS_S, Backlog
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


class Clocked:
    """A scheduler with one slot that is taken, and a backlog that is looked at every two seconds."""

    def __init__(self) -> None:
        self.now, self.count = 0.0, 0
        self.scheduler = Scheduler(POLICIES["sjf"], servers={"a": 1}, capacity=100)
        self.backlog = Backlog(self.scheduler, lambda: self.now)
        self.come(1)
        self.scheduler.next(0.0)

    def come(self, jobs: int, *, background: bool = False) -> list[str]:
        """Submit a number of requests; return their ids."""
        ids = [str(self.count + each) for each in range(jobs)]
        self.count += jobs
        for each in ids:
            self.scheduler.submit(Job(each, self.now, 1.0, background_levels=background), self.now)
        self.backlog.look()
        return ids

    def go(self, ids: list[str]) -> None:
        for each in ids:
            self.scheduler.cancel(each, self.now)
        self.backlog.look()

    def passes(self, seconds: float) -> float | None:
        """Let time pass; return for how long the queue has stood."""
        until = self.now + seconds
        while self.now < until:
            self.now += 2.0
            self.backlog.look()
        return self.backlog.stands_for_s


def test_a_queue_that_stands_for_minutes_is_a_backlog_until_it_gets_shorter() -> None:
    it = Clocked()
    ids = it.come(10)
    assert it.passes(STANDS_S - 2 * SAMPLE_S) is None
    assert it.passes(3 * SAMPLE_S) == pytest.approx(STANDS_S + SAMPLE_S)
    assert it.backlog.per_minute == 0.0
    it.go(ids[:1])
    assert it.passes(60.0) is not None
    it.go(ids[1:4])
    assert it.passes(60.0) is None
    assert it.backlog.per_minute == pytest.approx(-2.0, abs=0.5)


def test_a_queue_that_gets_shorter_or_was_empty_is_none() -> None:
    it = Clocked()
    for _ in range(10):
        ids = it.come(5)
        assert it.passes(STANDS_S / 2) is None
        it.go(ids)


@pytest.mark.parametrize("first", [1, 20])
def test_a_burst_that_only_shrinks_is_none(first: int) -> None:
    it = Clocked()
    ids = it.come(first)  # the queue is looked at before the rest of the burst is there
    ids += it.come(37 - first)
    while ids:
        assert it.passes(10.0) is None
        it.go([ids.pop()])


@pytest.mark.parametrize("how", ["background", "held", "parked", "paused", "down"])
def test_what_is_meant_to_wait_and_what_cannot_start_is_none(how: str) -> None:
    it = Clocked()
    ids = it.come(5, background=how == "background")
    if how == "held":
        for each in ids:
            it.scheduler.hold(each, it.now)
    elif how == "parked":
        for entry in it.scheduler.waiting():
            entry.parked = True
    elif how == "paused":
        it.scheduler.pause()
    elif how == "down":
        it.scheduler.fleet.set_slots("a", 0)
    assert it.passes(3 * STANDS_S) is None
