"""Priorities for an engine: their order, and that no request starves."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.backends.kinds.sglang import SgLang
from clairvoyant_cli.backends.kinds.vllm import Vllm
from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.scheduler.engine_priority import WINDOW_MEANS, EngineRequest, due_s, ends_in_s

COSTS = st.floats(1e-3, 1e4)
TIMES = st.floats(0.0, 4e9)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: when it comes, how long its answer takes, and how long it was predicted to take; seconds."""

    at_s: float
    service_s: float
    cost_s: float


def ends_of(arrivals: Sequence[Arrival], number: Callable[[Arrival], float]) -> list[float]:
    """Return when each answer of an engine ends that takes the lowest number first, and ties by arrival."""
    free_s = 0.0
    waiting: list[tuple[float, int]] = []
    ends, coming = [inf] * len(arrivals), 0
    while coming < len(arrivals) or waiting:
        now = free_s if waiting else max(free_s, arrivals[coming].at_s)
        while coming < len(arrivals) and arrivals[coming].at_s <= now:
            heapq.heappush(waiting, (number(arrivals[coming]), coming))
            coming += 1
        which = heapq.heappop(waiting)[1]
        free_s = ends[which] = now + arrivals[which].service_s
    return ends


@given(TIMES, COSTS, COSTS, COSTS, st.none() | st.floats(0.0, 1e4))
def test_a_request_one_window_later_goes_after(
    at_s: float, cost_s: float, other_s: float, mean_s: float, window_s: float | None
) -> None:
    later_s = at_s + (WINDOW_MEANS * mean_s if window_s is None else window_s) + 1e-3
    assert due_s(at_s, cost_s, mean_s, window_s) < due_s(later_s, other_s, mean_s, window_s)


def test_a_long_request_among_short_ones_starts_within_the_bound() -> None:
    mean_s, window_s = 1.0, 20.0
    # A second of short ones for each second, for ever: by cost alone the long one would never start.
    short = [Arrival(each / 2.0, 0.5, 0.5) for each in range(2000)]
    arrivals = sorted([*short, Arrival(3.01, 30.0, 30.0)], key=lambda each: each.at_s)
    which = next(at for at, each in enumerate(arrivals) if each.cost_s == 30.0)
    ends = ends_of(arrivals, lambda each: due_s(each.at_s, each.cost_s, mean_s, window_s))
    started_s = ends[which] - 30.0
    work_s, sigma_s, running_s = 0.5, 0.5, 0.5
    assert 3.01 + window_s / 2 < started_s <= 3.01 + work_s + sigma_s + window_s + running_s
    by_cost = ends_of(arrivals, lambda each: each.cost_s)
    assert by_cost[which] == max(by_cost)


@given(st.lists(st.tuples(TIMES, st.integers(-100, 100)), min_size=2, max_size=2))
def test_numbers_order_by_level_then_by_time_in_either_direction_and_every_reader_has_them(
    wanted: list[tuple[float, int]],
) -> None:
    (one_s, level), (other_s, other) = wanted
    for priority in (Vllm.PRIORITY, SgLang.PRIORITY):
        assert isinstance(priority, Priority)
        numbers = [priority.number(one_s, 0.0, level), priority.number(other_s, 0.0, other)]
        assert all(abs(number) < 1 << 53 for number in numbers)
        if abs(one_s - other_s) > 1.0 or level != other:
            sooner = (level, one_s) < (other, other_s)
            assert (numbers[0] < numbers[1]) is (sooner is priority.lower_first)


def test_when_an_engine_will_have_answered_follows_its_numbers() -> None:
    inside = [
        EngineRequest("runs", 7.0, 10.0, begun=True),
        EngineRequest("late", 9.0, 2.0, begun=False),
        EngineRequest("soon", 1.0, 3.0, begun=False),
    ]
    assert ends_in_s(inside, 1) == {"runs": 10.0, "soon": 13.0, "late": 15.0}
    assert ends_in_s(inside, 2) == {"runs": 10.0, "soon": 3.0, "late": 5.0}
    assert ends_in_s([], 4) == {}


def test_unseen_running_requests_count_as_running() -> None:
    unseen = EngineRequest("unstreamed", 1.0, 8.0, begun=False, unseen_s=5.0)
    waits = EngineRequest("waits", 2.0, 1.0, begun=False, unseen_s=5.0)
    assert ends_in_s([unseen, waits], 1) == {"unstreamed": 3.0, "waits": 4.0}
    crowd = [EngineRequest(str(each), 0.0, float(each), begun=True) for each in (1, 2, 3)]
    assert ends_in_s([*crowd, waits], 2)["waits"] == 3.0
