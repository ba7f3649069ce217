"""Who had the slots."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from clairvoyant_cli.proxy.observing.slot_time import MAX_PROGRAMS, OTHERS, SHOWN, SlotTime
from clairvoyant_cli.state.snapshot import ProgramsState
from tests.fakes.ended import USE, ended

NOW = 1_790_000_000.0


def state(of: SlotTime, *live: Any, slots: int = 2) -> ProgramsState:
    return of.state(live, slots, lambda clock_s: NOW + clock_s)


def here(program: str, *held: tuple[float, float | None], runs: bool = True) -> Any:
    uses = [SimpleNamespace(granted_s=since, ended_s=until) for since, until in held]
    job = SimpleNamespace(program=program)
    return SimpleNamespace(job=job, attempt=uses[-1] if runs else None, held_slots=uses)


def test_slot_time_is_that_of_the_last_hour_and_day_with_what_still_runs() -> None:
    of = SlotTime(lambda: NOW)
    for program, since_s, until_s in (
        ("ide", -600.0, -300.0),
        ("ide", -7200.0, -7000.0),
        ("web", -90.0, -30.0),
    ):
        of.used(program, NOW + since_s, NOW + until_s)
    of.saved("ide", NOW - 300.0, 12.0)
    of.saved("ide", NOW - 100.0, 8.0)
    of.used("odd", NOW, NOW - 5.0)
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
    of = SlotTime(lambda: 1007.0)
    of.ended(ended(program="ide", uses=(USE, msgspec.structs.replace(USE, worked=False))))
    assert [(each.name, each.hour.slot_s) for each in state(of).listed] == [("ide", 5.0)]


def test_any_number_of_names_and_any_clock_take_bounded_room() -> None:
    now = [NOW]
    of = SlotTime(lambda: now[0])
    for n in range(3 * MAX_PROGRAMS):
        of.used(f"p{n:03}", NOW - 1e6, NOW - n)
        of.used(f"p{n:03}", NOW + 1e6, NOW + 1e6 + 1.0)
    found = state(of)
    assert len(found.listed) == SHOWN
    assert found.listed[0].name == OTHERS
    assert found.hour_s >= sum(each.hour.slot_s for each in found.listed)
    now[0] -= 86_400.0 * 2
    assert not state(of).listed, "the clock was set back"
    of.used("ide", now[0] - 9.0, now[0])
    now[0] += 2.0
    assert [each.name for each in state(of).listed] == ["ide"]
