"""Answer tokens of a day: counted, bounded, and forgotten at midnight."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from clairvoyant_cli.proxy.access.daily_quota import DailyTokens, midnight_after, midnight_before
from clairvoyant_cli.scheduler.client_counts import MAX_CLIENTS

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@dataclass
class Clock:
    """A wall clock that is set by hand."""

    now: float = 1_781_784_000.0  # 2026-06-18 14:00 in Berlin

    def __call__(self) -> float:
        return self.now


def test_what_is_under_way_counts_as_predicted_and_what_has_ended_as_it_was() -> None:
    today = DailyTokens(Clock())
    today.begun("ann", 500)
    today.begun("ann", 100)
    assert (today.had("ann"), today.spent("ann"), today.spent("ben")) == (0, 600, 0)
    today.ended("ann", 500, 20)
    assert (today.had("ann"), today.spent("ann")) == (20, 120)
    today.ended("ann", 100, 0)
    assert (today.had("ann"), today.spent("ann"), today._under_way) == (20, 20, {})
    assert today.clients == {"ann"}


def test_the_day_ends_at_local_midnight() -> None:
    clock = Clock()
    today = DailyTokens(clock)
    today.ended("ann", 0, 50)
    assert today.refusal(40).retry_after_s == 10 * HOUR_S
    assert "in 10 h 00 min" in today.refusal(40).message
    clock.now += 10 * HOUR_S - 1
    assert today.had("ann") == 50
    assert "in 1 min" in today.refusal(40).message
    clock.now += 1
    assert (today.had("ann"), today.clients) == (0, frozenset())
    assert today.refusal(40).retry_after_s == 24 * HOUR_S


@pytest.mark.parametrize(
    ("noon", "day_s"),
    [(1_774_776_000.0, 23 * HOUR_S), (1_792_926_000.0, 25 * HOUR_S), (1_781_784_000.0, 24 * HOUR_S)],
)
def test_a_day_on_which_the_clocks_change_is_shorter_or_longer(noon: float, day_s: float) -> None:
    assert midnight_after(noon) - midnight_before(noon) == day_s
    clock = Clock(noon)
    today = DailyTokens(clock)
    today.ended("ann", 0, 5)
    clock.now = midnight_after(noon) - 1
    assert today.had("ann") == 5


def test_a_clock_that_is_set_back_by_more_than_a_day_begins_another_day() -> None:
    clock = Clock()
    today = DailyTokens(clock)
    today.ended("ann", 0, 5)
    clock.now -= 2 * HOUR_S
    assert today.had("ann") == 5
    clock.now -= 48 * HOUR_S
    assert today.had("ann") == 0
    assert today.refusal(1).retry_after_s == 12 * HOUR_S


def test_what_was_had_before_the_start_counts_for_this_day_alone() -> None:
    clock = Clock()
    today = DailyTokens(clock)
    today.earlier = {"ann": 70}.__getitem__
    assert today.had("ann") == 70
    today.begun("ann", 9)
    today.ended("ann", 9, 5)
    assert today.spent("ann") == 75
    clock.now += 10 * HOUR_S
    assert today.had("ann") == 0


def test_of_too_many_clients_those_with_the_most_tokens_are_kept() -> None:
    today = DailyTokens(Clock())
    for number in range(10 * MAX_CLIENTS):
        today.ended(f"c{number}", 0, 1 + number % 7)
    today.ended("ann", 0, 1000)
    for number in range(10 * MAX_CLIENTS):
        today.ended(f"d{number}", 0, 1)
    assert len(today.clients) <= MAX_CLIENTS
    assert today.had("ann") == 1000
