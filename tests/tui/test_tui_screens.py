"""The whole screen, line by line, at three sizes, against what it looked like when somebody looked; a state
that changes while it is watched is drawn as if it had always been so.

After a change of the looks: run with CLAIRVOYANT_REDRAW=1, look at the difference, and commit it.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.segment import Segment
from rich.style import Style

from clairvoyant_cli.demo.simulated_machine import simulated_machine
from clairvoyant_cli.state.snapshot import (
    LevelState,
    Percentiles,
    ServiceLevelState,
    SessionsState,
    SessionState,
    Snapshot,
    UrgencyState,
    WaitingState,
)
from clairvoyant_cli.state.source import Disconnected
from tests.tui.board import SIZES, bench, busy, played, screen_text, settled, stage
from tests.tui.moving_picture import MovingPicture
from tests.tui.scene import SCENARIOS, judged
from tui.layout import LEAST_WIDTH
from tui.widgets.canvas import Canvas

GOLDEN = Path(__file__).parent / "golden"
SMALL, MIDDLE, LARGE = SIZES
CASES = [  # scenario, GPUs, size
    *(("busy", 1, size) for size in SIZES),
    *(("overloaded", 1, size) for size in SIZES),
    *(("empty", 1, size) for size in SIZES),
    ("no_gpu", 0, MIDDLE),
    ("two_gpus", 2, SMALL),
    ("two_gpus", 2, LARGE),
    ("disconnected", 1, SMALL),
    ("disconnected", 1, MIDDLE),
]
sized = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")


def same(name: str, text: str) -> None:
    """Compare with the golden file; under CLAIRVOYANT_REDRAW write it."""
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("CLAIRVOYANT_REDRAW"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("case", "gpus", "size"), CASES)
async def test_screen_looks_as_it_did(case: str, gpus: int, size: tuple[int, int]) -> None:
    async with bench(*played(case if case in SCENARIOS else "busy", gpus), size=size) as it:
        if case in ("no_gpu", "two_gpus"):
            await it.press("4")
        if case == "disconnected":
            it.app.take(Disconnected("no daemon answers"))
        same(f"{case}_{size[0]}x{size[1]}", await settled(it.app, it.pilot))


async def test_deck_shows_each_panel_at_80x24() -> None:
    async with bench(*played("busy", 1), size=(80, 24)) as it:
        for deck in "45678":
            await it.press(deck)
            same(f"deck_{deck}_80x24", it.text)


@pytest.mark.parametrize(
    ("name", "key", "size"),
    [
        ("help", "question_mark", MIDDLE),
        ("detail", "enter", MIDDLE),
        ("clients", "c", MIDDLE),
        ("clients", "c", SMALL),
        ("policy", "m", SMALL),
        ("policy", "m", MIDDLE),
        ("past", "left_square_bracket", MIDDLE),
        ("sort_by", "s", MIDDLE),
    ],
)
async def test_pages(name: str, key: str, size: tuple[int, int]) -> None:
    seen = played("busy" if name in ("help", "detail") else "overloaded", 1)
    watched = stage("overloaded")
    async with bench(*seen, size=size) as it:
        if name == "past":
            watched.advance(60.0)
            it.app.take(watched.snapshot())
        await it.press("j", key)
        same(f"page_{name}_{size[0]}x{size[1]}", it.text)


async def test_any_size_draws() -> None:
    async with bench(*played("overloaded", 2, seconds=20), size=(20, 5)) as it:
        for size in ((40, 8), (60, 12), (60, 20), (108, 34), (168, 46), (300, 100), (110, 20)):
            await it.pilot.resize_terminal(*size)
            assert it.snapshot.verdict.text[:5] in await settled(it.app, it.pilot)


# -- a daemon that changes --------------------------------------------------------------------------------

LONG = 5_000
SENT = 1_024


def long_queue(state: Snapshot) -> Snapshot:
    rows = (
        replace(
            state.queue[rank % len(state.queue)],
            id=f"r{rank:05}",
            rank=rank,
            rank_fcfs=LONG + 1 - rank,
            eta_s=rank * 2.0,
        )
        for rank in range(1, SENT + 1)
    )
    waiting = WaitingState(LONG, short=2_000, medium=2_000, long=1_000, clear_s=11_000.0)
    return replace(state, queue=tuple(rows), waiting=waiting, queue_capacity=6_000)


def more_slots(state: Snapshot) -> Snapshot:
    running = (replace(state.running[n % 4], id=f"{n}-{state.running[n % 4].id}", slot=n) for n in range(8))
    return replace(state, backends=(replace(state.backends[0], slots=8, busy=8),), running=tuple(running))


def loading(state: Snapshot) -> Snapshot:
    return replace(state, running=(), backends=(replace(state.backends[0], state="loading", busy=0),))


def urgent(state: Snapshot) -> Snapshot:
    """Levels matter, and a request of level 0 waits longer than it may."""
    said = [(0, "rule"), (1, "client"), (None, ""), (2, "predictor"), (4, "operator")]
    told = [said[min(n, 4)] for n in range(len(state.queue))]
    queue = tuple(
        replace(row, urgency=level, urgency_by=by) for row, (level, by) in zip(state.queue, told, strict=True)
    )
    counts = Counter(2 if level is None else level for level, _ in told)
    levels = tuple(LevelState(n, counts[n], 0, 14.0 * bool(counts[n]), Percentiles()) for n in range(5))
    urgency = UrgencyState(levels, "shipped", 10.0, 1, heeded=True)
    return replace(state, policy="urgency", queue=queue, urgency=urgency)


def promise_broken(state: Snapshot) -> Snapshot:
    """More first tokens come late than may, and one of two servers is drained."""
    level = ServiceLevelState("ttft-p95=2s", alert=True, recent_missed=0.12, refused=7)
    other = replace(state.backends[0], name="desk", models=(), busy=0, standing="draining")
    return replace(state, service_level=level, backends=(*state.backends, other))


def in_turns(state: Snapshot) -> Snapshot:
    listed = (
        SessionState("s12", "cursor", "running", 41, 31_400.0, 38_200.0, 592_000.0, 6.2),
        SessionState("s14", "10.0.0.17", "held", 7, 9_800.0, 11_050.0, 40_400.0, 1.4, 0.21, calls_tool=True),
        SessionState("s15", "cursor", "parked", 3, 22_000.0, 44_100.0, 6_300.0, 48.0),
        SessionState("s9", "cursor", "parked", 18, 17_300.0, 21_900.0, 188_000.0, 12.0, parent="s15"),
        SessionState("s2", "zed", "resting", 1, 2_400.0, 2_380.0, 0.0, 252.0),
    )
    of = {"s12": ("opencode", 540.0), "s14": ("claude-code", 3_700.0), "s15": ("codex", 64.0)}
    saving = tuple(
        replace(each, saved_s=each.cached_tokens / 2_400.0, program=program, age_s=age_s)
        for each in listed
        for program, age_s in [of.get(each.parent or each.id, ("", 0.0))]
    )
    sessions = SessionsState(2, 2, 117_630.0, 826_700.0, 44_000.0, saving, 826_700.0 / 2_400.0)
    parked = (replace(row, cause="session") for row in state.queue[:2])
    return judged(replace(state, sessions=sessions, queue=(*parked, *state.queue[2:])))


CHANGES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "long_queue": long_queue,
    "draining": lambda state: replace(state, mode="draining"),
    "paused": lambda state: replace(state, mode="paused", running=()),
    "more_slots": more_slots,
    "loading": loading,
    "urgent": urgent,
    "promise_broken": promise_broken,
    "in_turns": in_turns,
}


@sized
async def test_a_change_is_drawn_as_if_it_had_always_been_so(size: tuple[int, int]) -> None:
    async with bench(*played("busy", 1), size=size) as it:
        for change, changed in CHANGES.items():
            it.app.take(judged(changed(it.snapshot)))
            text = await settled(it.app, it.pilot)
            if size == (120, 40):
                same(f"after_{change}", text)
            it.board.on_resize()
            for canvas in it.board.query(Canvas):
                canvas.redraw(entirely=True)
            assert await settled(it.app, it.pilot) == text, change
            it.app.take(it.snapshot)
            await settled(it.app, it.pilot)


async def test_the_sessions_are_in_the_deck_of_a_small_screen_while_there_are_any() -> None:
    snapshot, history, hardware = played("busy", 1)
    async with bench(in_turns(snapshot), history, hardware, size=(80, 24)) as it:
        await it.press("a")
        same("deck_a_80x24", it.text)
        it.app.take(snapshot)
        assert "sessions" not in await settled(it.app, it.pilot)
        assert it.board.focused is it.table
        await it.press("a")
        assert "no session of an agent yet" in it.text


async def test_rows_that_the_queue_does_not_need_are_those_of_ended_requests() -> None:
    snapshot, _, hardware = played("busy", 1)
    short = judged(replace(snapshot, queue=snapshot.queue[:3], waiting=WaitingState(3)))
    async with bench(short, hardware=hardware, size=(120, 50)) as it:
        rows = it.text.count("✓ done")
        assert all(row.id in it.text for row in short.queue)
        for state, later_s, more in ((snapshot, 1.0, False), (short, 20.0, False), (short, 60.0, True)):
            it.app.take(replace(state, uptime_s=snapshot.uptime_s + later_s))
            text = await settled(it.app, it.pilot)
            assert (text.count("✓ done") == rows) is more, "panels do not jump with every answer"
            assert all(row.id in text for row in state.queue[:10])


async def test_hardware_that_appears_later_gets_its_room() -> None:
    async with bench() as it:
        it.app.take_hardware(simulated_machine(2)())
        it.app.draw()
        assert (await settled(it.app, it.pilot)).count("vram") == 2


async def test_of_a_long_queue_the_first_rows_are_shown_and_filtered() -> None:
    async with bench(long_queue(busy())) as it:
        await it.press("G")
        assert "first 1,024 of 5,000" in it.text
        assert f"r{SENT:05}" in it.text
        assert it.table.current == it.snapshot.queue[-1]
        await it.press("home", "slash", *"r00007", "enter")
        assert "1 of 1,024" in it.text


def test_a_recording_draws_once_what_stays_and_moves_what_changes() -> None:
    picture = MovingPicture(20, 2, "#000000", 1.0)
    for text in ("one", "one", "two"):
        picture.take([[Segment("it stays")], [Segment(f"  {text} <", Style(color="red", bold=True))]])
    svg = ElementTree.fromstring(picture.svg())  # noqa: S314 - our own
    words = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["it stays", "one <", "two <"]
    style = svg.findtext("{http://www.w3.org/2000/svg}style")
    assert style is not None
    assert "0.00%{visibility:visible}66.67%{visibility:hidden}" in style
    assert "0.00%{visibility:hidden}66.67%{visibility:visible}" in style


async def test_a_terminal_may_have_any_size_for_a_while() -> None:
    async with bench(*played("busy", 1), size=(80, 24)) as it:
        before = await settled(it.app, it.pilot)
        focused = it.app.focused
        for size in ((1, 1), (1, 24), (8, 24), (12, 30), (LEAST_WIDTH - 1, 24), (LEAST_WIDTH, 3), (100, 1)):
            await it.pilot.resize_terminal(*size)
            shown = "narrow: top needs"[: size[0] - 1] or "…"
            for _ in range(100):  # a busy machine draws a size later
                await it.pilot.pause()
                text = screen_text(it.app)
                fits = all(len(line) <= size[0] for line in text.split("\n"))
                if fits and text.startswith(shown) is (size[0] < LEAST_WIDTH):
                    break
            else:
                raise AssertionError((size, text))
        await it.pilot.resize_terminal(80, 24)
        for _ in range(20):
            if (again := await settled(it.app, it.pilot)) == before:
                break
        assert (again, it.app.focused) == (before, focused)
