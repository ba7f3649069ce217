"""What `status --json` prints, and so `top` shows, beside what servers and clients know: random schedules.

The default run looks at a few; `python -m tests.perf.perf_soak schedules` at two hundred.
"""

import asyncio
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.commands.report import used
from clairvoyant_cli.proxy.observing.gain import midnight_before
from clairvoyant_cli.state.snapshot import Snapshot
from profiles.database import reading
from profiles.history import Span, newest
from profiles.ledger import Ledger
from tests.fakes.chaos import LONG_NAME
from tests.fakes.figures_on_screen import wrong_figures
from tests.fakes.watched_schedule import DEEDS, Watched, watched
from tests.tui.board import SIZES, Script, settled, still
from tui.formatting import count

REQUESTS, RHO = 24, 0.9
# Two servers are no case of "fcfs": a request may wait for the better of them, which the gain counts.
WITHOUT_TROUBLE = (("boost", 1), ("boost", 2), ("sjf", 1))
WITH_TROUBLE = (("fcfs", 1, 1), ("fcfs", 1, 2), ("sjf", 2, 1), ("boost", 1, 2))


def seen(
    policy: str,
    seed: int,
    requests: int = REQUESTS,
    *,
    burst: bool = False,
    lost: str = "",
    model: str = "replay",
    **how: object,
) -> Watched:
    async def run() -> Watched:
        async with watched(policy, seed, **how) as schedule:  # type: ignore[arg-type]
            await schedule.run(requests, RHO, burst=burst, lost=lost, model=model)
        return schedule

    schedule = run_virtually(run())
    assert not schedule.faults, schedule.faults[:10]
    return schedule


def check_calm(policy: str, slots: int, seed: int) -> None:
    check_saving(seen(policy, seed, slots=slots))


def check_saving(schedule: Watched) -> None:
    """The published saving is that of the clients' times and the server's journal."""
    gain = schedule.gain
    assert gain.answers_today == len(schedule.visitors)
    assert gain.estimated_today == 0
    assert gain.saved_today_s == pytest.approx(schedule.saved_s(), abs=0.05)


def check_trouble(policy: str, servers: int, slots: int, seed: int) -> None:
    """Order of arrival gains nothing whatever happens, and the books are never ahead of the answers."""
    schedule = seen(policy, seed, servers=servers, slots=slots, deeds=DEEDS, cuts=policy == "boost")
    assert schedule.done["killed"] or schedule.done["pause"]
    for look in schedule.looks:
        assert look.gain.answers_today <= look.counters.completed
        if policy == "fcfs":
            assert abs(look.gain.saved_today_s) < 1e-3


@pytest.mark.parametrize(("policy", "slots"), WITHOUT_TROUBLE[1:])  # the first is one of those below
def test_the_saving_is_that_of_the_clients_times(policy: str, slots: int) -> None:
    check_calm(policy, slots, seed=1)


@pytest.mark.parametrize(("policy", "servers", "slots"), WITH_TROUBLE)
def test_the_state_agrees_with_servers_and_clients_in_trouble(policy: str, servers: int, slots: int) -> None:
    check_trouble(policy, servers, slots, seed=1)


@pytest.mark.parametrize(
    ("requests", "load"),
    [(37, {"burst": True}), (48, {}), (30, {"servers": 5, "lost": "w3"})],
    ids=["burst", "poisson", "outage"],
)
def test_verdict_headline_and_ranks_hold_at_each_moment(requests: int, load: dict[str, Any]) -> None:
    """The sentence is checked beside each look: nothing is well while a request is past tau."""
    schedule = seen("boost", 1, requests, **load)
    if "lost" not in load:
        check_saving(schedule)
        for at_s, look in zip(schedule.looked_s, schedule.looks, strict=True):
            saved_s = look.gain.saved_today_s
            if look.gain.estimated_today <= 0.1 * look.gain.answers_today and abs(saved_s) > 1.0:
                assert saved_s * schedule.saved_s(at_s) > 0.0, (at_s, saved_s)
        starts = [*schedule.next_starts()]
        assert len(starts) > 10
        # The keys change when an answer ends, as `boost` learns from it: the start follows the new ones.
        assert not [each for each in starts if each[0] != each[1] and not each[2]]
        assert sum(first == started for first, started, _ in starts) >= 0.9 * len(starts)
    sentences = [look.verdict.text for look in schedule.looks]
    if "burst" in load:
        assert not any("Backlog" in each for each in sentences), sentences


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
async def test_every_figure_on_screen_is_the_states(size: tuple[int, int]) -> None:
    looks = await asyncio.to_thread(seen_in_trouble)
    app = still(Script())
    async with app.run_test(size=size) as pilot:
        for look in looks[:: max(1, len(looks) // 12)]:
            app.take(look)
            text = await settled(app, pilot)
            assert not [*wrong_figures(text, look)], text


@cache
def seen_in_trouble() -> list[Snapshot]:
    """States of a schedule with two servers, outages, pauses and clients that leave."""
    return seen("boost", 3, servers=2, slots=2, deeds=DEEDS).looks


@pytest.mark.parametrize("size", [(40, 24), *SIZES], ids=lambda size: "x".join(map(str, size)))
async def test_ids_and_tokens_stay_beside_long_names(size: tuple[int, int]) -> None:
    looks = await asyncio.to_thread(seen_with_long_names)
    app = still(Script())
    async with app.run_test(size=size) as pilot:
        for look in looks[:: max(1, len(looks) // 4)]:
            app.take(look)
            text = await settled(app, pilot)
            assert size not in SIZES or not [*wrong_figures(text, look)], text
            for row in look.queue[:2]:
                [line] = [line for line in text.split("\n") if f" {row.id} " in line]
                assert f"~{count(row.predicted.expected_tokens)} " in line


@cache
def seen_with_long_names() -> list[Snapshot]:
    """States of a burst for a model with a long name."""
    looks = seen("boost", 2, slots=2, burst=True, model=LONG_NAME).looks
    assert {row.model for look in looks for row in look.alive} == {LONG_NAME}
    return looks


def test_after_a_restart_the_gain_goes_on_from_what_was_gained_before(tmp_path: Path) -> None:
    """Each answer counts once, and never with another sign than that of the clients' times."""
    saved_s = 0.0
    for run in (1, 2):
        ledger = Ledger(tmp_path / "db.sqlite")
        schedule = seen(
            "boost", run, persistence=ledger, began_at=midnight_before(time.time()) + 3600.0 * run
        )
        ledger.close()
        assert_programs_are_those_of_the_report(schedule.looks[-1], tmp_path / "db.sqlite")
        for at_s, look in zip(schedule.looked_s, schedule.looks, strict=True):
            then_s = saved_s + schedule.saved_s(at_s)
            if (
                look.gain.estimated_today <= 0.1 * look.gain.answers_today
                and abs(look.gain.saved_today_s) > 1.0
            ):
                assert look.gain.saved_today_s * then_s > 0.0
        saved_s += schedule.saved_s()
        assert schedule.gain.answers_today == run * REQUESTS
        assert schedule.gain.saved_today_s == pytest.approx(saved_s, abs=0.05)


def assert_programs_are_those_of_the_report(state: Snapshot, path: Path) -> None:
    with reading(path) as connection:
        rows = newest(connection, Span(state.taken_at - 86_400.0), 10_000)
    assert not state.alive
    listed = {each.name: each.day for each in state.programs.listed}
    assert {name: use.slot_s for name, use in listed.items()} == pytest.approx(
        {use.program: use.slot_s for use in used(rows)}, abs=0.01
    )
    saved_s = sum(row.saved_s or 0.0 for row in rows)
    assert sum(use.saved_s for use in listed.values()) == pytest.approx(saved_s, abs=0.01)


async def test_wrong_figures_are_found() -> None:
    look = max(
        await asyncio.to_thread(seen_in_trouble),
        key=lambda look: (look.gain.answers_today > 3, bool(look.running), len(look.queue)),
    )
    app = still(Script())
    async with app.run_test(size=SIZES[-1]) as pilot:
        app.take(look)
        text = await settled(app, pilot)
    older = tuple(replace(row, age_s=row.age_s + 100.0) for row in look.queue)
    longer = tuple(replace(row, tokens=row.tokens + 7) for row in look.running)
    others: dict[str, Any] = {
        "queue": older,
        "running": longer,
        "utilisation": 0.123,
        "policy": "fcfs",
        "gain": replace(look.gain, saved_today_s=look.gain.saved_today_s + 1e4),
        "tau": replace(look.tau, firings_total=99),
        "counters": replace(look.counters, completed=look.counters.completed + 1),
        "stats_paired": look.stats_paired[::-1],
    }
    for name, wrong in others.items():
        assert [*wrong_figures(text, replace(look, **{name: wrong}))], name
