"""First-come-first-served over the same requests, in the order they came."""

from typing import cast

import pytest

from clairvoyant_cli.proxy.observing.arrival_order import MAX_PENDING, Shadow
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.scheduler.job import Job


class Run:
    """As much of an exchange as the shadow looks at."""

    def __init__(self, arrival_s: float, start_s: float | None, end_s: float | None) -> None:
        self.job = Job("r", arrival_s)
        self.dispatched_s = start_s
        self.ended_s = end_s

    def service_s(self, now: float) -> float:
        return 0.0 if self.dispatched_s is None else now - self.dispatched_s


def run(arrival_s: float, start_s: float | None = None, end_s: float | None = None) -> Exchange:
    return cast(Exchange, Run(arrival_s, start_s, end_s))


def waits(shadow: Shadow) -> list[float]:
    return [each.wait_s for each in shadow.ended()]


def test_the_short_one_behind_the_long_one_would_have_waited() -> None:
    shadow = Shadow(1)
    long, short = run(0, 2, 12), run(1, 1, 2)
    shadow.arrived(long)
    shadow.arrived(short)
    assert waits(shadow) == [0, 9]


def test_two_slots_serve_two_at_once() -> None:
    shadow = Shadow(2)
    for each in (run(0, 0, 10), run(0, 0, 4), run(0, 4, 5)):
        shadow.arrived(each)
    assert waits(shadow) == [0, 0, 4]


def test_nothing_is_said_of_what_came_after_an_unfinished_request() -> None:
    shadow = Shadow(1)
    first, second = run(0, 0), run(1, 3, 4)
    shadow.arrived(first)
    shadow.arrived(second)
    assert waits(shadow) == []
    cast(Run, first).ended_s = 3
    assert waits(shadow) == [0, 2]


def test_who_left_unserved_took_no_slot() -> None:
    shadow = Shadow(1)
    shadow.arrived(run(0, None, 5))
    shadow.arrived(run(1, 5, 6))
    assert waits(shadow) == [0]


def test_a_request_held_for_ever_does_not_hold_all_that_come_after() -> None:
    shadow = Shadow(1)
    shadow.arrived(run(0))
    for number in range(MAX_PENDING):
        shadow.arrived(run(number, number, number))
    assert len(waits(shadow)) == MAX_PENDING


def test_slots_come_and_go() -> None:
    shadow = Shadow(1)
    shadow.resize(3)
    for _ in range(3):
        shadow.arrived(run(0, 0, 9))
    assert waits(shadow) == [0, 0, 0]
    shadow.resize(1)
    shadow.arrived(run(0, 9, 10))
    assert waits(shadow) == [9]


@pytest.mark.timeout(20)
def test_slots_are_added_in_one_go() -> None:
    shadow = Shadow(2)
    shadow._free_at = [3.0, 1.0]
    shadow.resize(4)
    assert sorted(shadow._free_at) == [1.0, 1.0, 1.0, 3.0]
    shadow.resize(1)
    assert shadow._free_at == [3.0]
    shadow.resize(1_000_000)
    assert shadow._free_at == [3.0] * 1_000_000
