"""What has ended, summed up: who had the slots, and how much of the slots' time was in use."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from clairvoyant_cli.proxy.observing.tally import MAX_PROGRAMS, OTHERS, SHOWN, Tally
from clairvoyant_cli.state.snapshot import ProgramsState
from tests.fakes.ended import ENDED, USE, ended

NOW = 1_790_000_000.0


def state(of: Tally, *live: Any, slots: int = 2) -> ProgramsState:
    return of.programs(live, slots, lambda clock_s: NOW + clock_s)


def used(of: Tally, program: str, since: float, until: float) -> None:
    took_s = until - since
    of.ended(ended(program=program, finished_at=until, sojourn_s=took_s, waited_s=0.0))


def here(program: str, *held: tuple[float, float | None], runs: bool = True) -> Any:
    uses = [SimpleNamespace(run=SimpleNamespace(started_s=since, ended_s=until)) for since, until in held]
    job = SimpleNamespace(program=program)
    return SimpleNamespace(job=job, attempt=uses[-1] if runs else None, held_slots=uses)


def test_slot_time_is_that_of_the_last_hour_and_day_with_what_still_runs() -> None:
    of = Tally(lambda: NOW)
    for program, since_s, until_s in (
        ("ide", -600.0, -300.0),
        ("ide", -7200.0, -7000.0),
        ("web", -90.0, -30.0),
    ):
        used(of, program, NOW + since_s, NOW + until_s)
    of.compared(ended(program="ide", finished_at=NOW - 300.0), 12.0, 0.0)
    of.compared(ended(program="ide", finished_at=NOW - 100.0), 8.0, 0.0)
    used(of, "odd", NOW, NOW - 5.0)
    live = here("", (-40.0, -30.0), (-10.0, None)), here("ide", (-20.0, -15.0), runs=False)
    found = state(of, *live)
    assert [(each.name, round(each.hour.slot_s), round(each.day.slot_s)) for each in found.listed] == [
        ("ide", 305, 505),
        ("web", 60, 60),
        ("-", 20, 20),
    ]
    assert [(each.running, each.waiting) for each in found.listed] == [(0, 1), (0, 0), (1, 0)]
    assert found.listed[0].hour.saved_each_s == 10.0
    assert found.hour_s == pytest.approx(2 * 3600.0, abs=2 * 60.0)
    assert found.day_s == pytest.approx(2 * 7200.0)
    assert sum(found.listed[0].halves_s) == 505


def test_uses_of_an_ended_request_count_unless_the_server_refused_it() -> None:
    of = Tally(lambda: 1007.0)
    of.ended(ended(program="ide", uses=(USE, msgspec.structs.replace(USE, worked=False))))
    assert [(each.name, each.hour.slot_s) for each in state(of).listed] == [("ide", 5.0)]


def test_any_number_of_names_and_any_clock_take_bounded_room() -> None:
    now = [NOW]
    of = Tally(lambda: now[0])
    for n in range(3 * MAX_PROGRAMS):
        used(of, f"p{n:03}", NOW - 1e6, NOW - n)
        used(of, f"p{n:03}", NOW + 1e6, NOW + 1e6 + 1.0)
    found = state(of)
    assert len(found.listed) == SHOWN
    assert found.listed[0].name == OTHERS
    assert found.hour_s >= sum(each.hour.slot_s for each in found.listed)
    now[0] -= 86_400.0 * 3
    assert not state(of).listed, "the clock was set back"
    used(of, "ide", now[0] - 9.0, now[0])
    now[0] += 2.0
    assert [each.name for each in state(of).listed] == ["ide"]


def test_the_load_is_of_all_that_ended_in_five_to_ten_minutes() -> None:
    now = [1000.0]
    of = Tally(lambda: now[0])
    now[0] = 1010.0
    of.ended(ENDED)
    assert of.utilisation(1) == (0.5, 10.0)
    for number in range(100, 4000):  # each for 0.08 s of 0.1 s
        now[0] = 1000.0 + 0.1 * number
        of.ended(ended(finished_at=now[0] - 0.01, sojourn_s=0.08, waited_s=0.0))
    share, over_s = of.utilisation(1)
    assert share == pytest.approx(0.8, rel=0.02)
    assert over_s == pytest.approx(400.0, rel=0.01)
    assert of.utilisation(2, [now[0] - 80.0])[0] == pytest.approx((0.8 + 0.2) / 2, rel=0.02)
    now[0] = 2000.0
    assert of.utilisation(1) == (0.0, 500.0)
