"""A daemon that changes while it is watched: what the screen makes of it, at three sizes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from clairvoyant_cli.state.snapshot import (
    LevelState,
    Percentiles,
    QueuedRequest,
    ServiceLevelState,
    SessionsState,
    SessionState,
    Snapshot,
    UrgencyState,
    WaitingState,
)
from tests.tui.board import SIZES, Script, busy, played, remember, settled, still
from tests.tui.scene import judged
from tests.tui.test_tui_screens import same
from tui.formatting import CLASS_LETTER
from tui.hardware.simulated import simulated_machine
from tui.history import History
from tui.panels.timeline import timeline
from tui.view_state import Link, LinkState, ViewState
from tui.widgets.table import Table

LONG = 5_000
SENT = 1_024


def long_queue(state: Snapshot) -> Snapshot:
    """Return a state in which five thousand wait, of which the first are sent."""
    rows = tuple(_row(state, rank) for rank in range(1, SENT + 1))
    waiting = WaitingState(LONG, short=2_000, medium=2_000, long=1_000, clear_s=11_000.0)
    return judged(replace(state, queue=rows, waiting=waiting, queue_capacity=6_000))


def _row(state: Snapshot, rank: int) -> QueuedRequest:
    of = state.queue[rank % len(state.queue)]
    return replace(of, id=f"r{rank:05}", rank=rank, rank_fcfs=LONG + 1 - rank, eta_s=rank * 2.0)


def draining(state: Snapshot) -> Snapshot:
    """Return a state of a draining daemon."""
    return judged(replace(state, mode="draining"))


def paused(state: Snapshot) -> Snapshot:
    """Return a state in which nothing is started."""
    return judged(replace(state, mode="paused", running=()))


def fallen_back(state: Snapshot) -> Snapshot:
    """Return a state in which arrival order replaces a policy whose upper bounds do not hold."""
    return judged(replace(state, policy="fcfs", displaced_policy="quartz"))


def more_slots(state: Snapshot) -> Snapshot:
    """Return a state of a backend that has got more slots, all of them at work."""
    (backend,) = state.backends
    running = tuple(
        replace(state.running[n % 4], id=f"{n}-{state.running[n % 4].id}", slot=n) for n in range(8)
    )
    return replace(state, backends=(replace(backend, slots=8, busy=8),), running=running)


def loading(state: Snapshot) -> Snapshot:
    """Return a state in which the only server loads its model."""
    (backend,) = state.backends
    return judged(replace(state, running=(), backends=(replace(backend, state="loading", busy=0),)))


def urgent(state: Snapshot) -> Snapshot:
    """Return a state in which levels matter, and one of level 0 waits longer than it may."""
    said = [(0, "rule"), (1, "client"), (None, ""), (2, "predictor"), (4, "operator")]
    queue = tuple(
        replace(row, urgency=said[min(n, 4)][0], urgency_by=said[min(n, 4)][1])
        for n, row in enumerate(state.queue)
    )
    counts = Counter(2 if row.urgency is None else row.urgency for row in queue)
    levels = tuple(
        LevelState(level, counts[level], 0, 14.0 if counts[level] else 0.0, Percentiles())
        for level in range(5)
    )
    urgency = UrgencyState(levels, "shipped", 10.0, 1, heeded=True)
    return judged(replace(state, policy="urgency", queue=queue, urgency=urgency))


def promise_broken(state: Snapshot) -> Snapshot:
    """Return a state in which more first tokens come late than may, and one of two servers is drained."""
    (backend,) = state.backends
    level = ServiceLevelState("ttft-p95=2s", alert=True, recent_missed=0.12, refused=7)
    other = replace(backend, name="desk", models=(), busy=0, standing="draining")
    return judged(replace(state, service_level=level, backends=(backend, other)))


def in_turns(state: Snapshot) -> Snapshot:
    """Return a state in which five sessions take turns, as the cache holds two of them."""
    listed = (
        SessionState(
            "s12",
            "cursor",
            "running",
            41,
            31_400.0,
            38_200.0,
            592_000.0,
            6.2,
            program="opencode",
            age_s=540.0,
        ),
        replace(
            SessionState("s14", "10.0.0.17", "held", 7, 9_800.0, 11_050.0, 40_400.0, 1.4, 0.21),
            program="claude-code",
            calls_tool=True,
            age_s=3_700.0,
        ),
        SessionState(
            "s15", "cursor", "parked", 3, 22_000.0, 44_100.0, 6_300.0, 48.0, program="codex", age_s=64.0
        ),
        SessionState(
            "s9",
            "cursor",
            "parked",
            18,
            17_300.0,
            21_900.0,
            188_000.0,
            12.0,
            program="codex",
            age_s=64.0,
            parent="s15",
        ),
        SessionState("s2", "zed", "resting", 1, 2_400.0, 2_380.0, 0.0, 252.0),
    )
    saving = tuple(replace(each, saved_s=each.cached_tokens / 2_400.0) for each in listed)
    sessions = SessionsState(2, 2, 117_630.0, 826_700.0, 44_000.0, saving, 826_700.0 / 2_400.0)
    parked = (replace(row, cause="session") for row in state.queue[:2])
    return judged(replace(state, sessions=sessions, queue=(*parked, *state.queue[2:])))


CHANGES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "long_queue": long_queue,
    "draining": draining,
    "paused": paused,
    "fallen_back": fallen_back,
    "more_slots": more_slots,
    "loading": loading,
    "urgent": urgent,
    "promise_broken": promise_broken,
    "in_turns": in_turns,
}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_drawn_as_if_it_had_always_been_so(change: str, size: tuple[int, int]) -> None:
    snapshot, history, hardware = played("busy", 1)
    app = still(Script())
    async with app.run_test(size=size) as pilot:
        remember(app, history, hardware)
        app.take(snapshot)
        await settled(app, pilot)
        app.take(CHANGES[change](snapshot))
        text = await settled(app, pilot)
        same(f"after_{change}_{size[0]}x{size[1]}", text)
        await pilot.resize_terminal(size[0] + 1, size[1])
        await pilot.resize_terminal(*size)
        for _ in range(20):  # a busy machine draws the last size later
            if (again := await settled(app, pilot)) == text:
                break
        assert again == text


async def test_the_sessions_are_in_the_deck_of_a_small_screen_while_there_are_any() -> None:
    snapshot, history, hardware = played("busy", 1)
    app = still(Script())
    async with app.run_test(size=(80, 24)) as pilot:
        remember(app, history, hardware)
        app.take(in_turns(snapshot))
        await pilot.press("a")
        same("deck_a_80x24", await settled(app, pilot))
        app.take(snapshot)
        assert "sessions" not in await settled(app, pilot)
        assert app.focused is not None
        assert app.focused.id == "queue"
        await pilot.press("a")
        assert "no session of an agent yet" in await settled(app, pilot)


async def test_rows_that_the_queue_does_not_need_are_the_graphs() -> None:
    snapshot, _, hardware = played("busy", 1)
    short = judged(replace(snapshot, queue=snapshot.queue[:3], waiting=WaitingState(3)))
    app = still(Script())
    async with app.run_test(size=(120, 40)) as pilot:
        remember(app, History(), hardware)
        app.take(short)
        text = await settled(app, pilot)
        assert "0 graph" in text
        assert all(row.id in text for row in short.queue)
        app.take(replace(snapshot, uptime_s=snapshot.uptime_s + 1.0))
        text = await settled(app, pilot)
        assert "0 graph" not in text
        assert all(row.id in text for row in snapshot.queue[:15])
        app.take(replace(short, uptime_s=short.uptime_s + 20.0))
        assert "0 graph" not in await settled(app, pilot), "panels do not jump with every answer"
        app.take(replace(short, uptime_s=short.uptime_s + 60.0))
        assert "0 graph" in await settled(app, pilot)
        await pilot.press("0", "z")
        assert "tokens/s" in await settled(app, pilot)


async def test_hardware_that_appears_later_gets_its_room() -> None:
    snapshot, _, _ = played("busy", 1)
    app = still(Script())
    async with app.run_test(size=(120, 40)) as pilot:
        app.take(snapshot)
        await settled(app, pilot)
        app.take_hardware(simulated_machine(2)())
        app.draw()
        text = await settled(app, pilot)
        assert text.count("vram") == 2


async def test_of_a_long_queue_the_first_rows_are_shown_sorted_and_filtered() -> None:
    app = still(Script())
    async with app.run_test(size=(120, 40)) as pilot:
        app.take(long_queue(busy()))
        await pilot.press("G")
        text = await settled(app, pilot)
        assert "first 1,024 of 5,000" in text
        assert f"r{SENT:05}" in text
        assert app.query_one("#queue", Table).current == _row(busy(), SENT)
        await pilot.press("home", "slash", *"r00007", "enter")
        text = await settled(app, pilot)
        assert "1 of 1,024" in text


async def test_the_ghost_of_arrival_order_stands_beside_each_row() -> None:
    app = still(Script())
    async with app.run_test(size=(120, 40)) as pilot:
        app.take(long_queue(busy()))
        await pilot.press("f")
        text = await settled(app, pilot)
        assert "by arrival" in text
        assert "up 4,999" in text


def test_the_slots_have_lanes_with_what_ran_what_runs_and_when_it_was_predicted_to_end() -> None:
    snapshot, _, _ = played("busy", 1)
    now = snapshot.taken_at
    ended = replace(
        snapshot.recent[-1],
        id="ended",
        finished_at=now - 60.0,
        waited_s=5.0,
        sojourn_s=65.0,
        slot=1,
        expected_s=90.0,
        dispatched_by="tau",
    )
    running = replace(snapshot.running[0], slot=0, elapsed_s=30.0, eta_s=30.0)
    history = History()
    history.take(replace(snapshot, recent=(ended,)))
    state = replace(snapshot, running=(running,))
    view = ViewState(Link(LinkState.LIVE, "here"), state, history=history)
    lines = [line.plain for line in timeline(view, 127, 10)]  # two seconds a cell
    assert lines[1][7 + 75 : 7 + 90] == CLASS_LETTER[running.predicted.length_class] + "█" * 14
    assert lines[1][7 + 90 : 7 + 105] == "▒" * 15
    assert lines[3][7 + 30 : 7 + 60] == CLASS_LETTER[ended.real_class] + "█" * 28 + "▌"
    assert (lines[4][7 + 30], lines[4][7 + 75]) == ("◆", "¦")
    assert "2 more slots" in timeline(view, 127, 4)[0].plain
