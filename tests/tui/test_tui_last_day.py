"""The page of the last 24 hours: one line for each outage, and a plot of each figure."""

import time
from dataclasses import replace

import pytest

from clairvoyant_cli.state.last_day import STEP_S, STEPS, DayStep, LastDay, Outage
from tests.tui.board import Script, busy, screen_text, settled, still
from tui.panels.last_day import page
from tui.view_state import ViewState

NOW = time.mktime((2026, 3, 2, 8, 0, 0, 0, 0, -1))


def night() -> LastDay:
    """Nothing until 2 o'clock, then twelve requests in each step, of which those of an outage fail."""
    steps = []
    for number in range(STEPS):
        at = NOW - (STEPS - 1 - number) * STEP_S
        hour = time.localtime(at).tm_hour
        works, fails = hour < 8, hour == 3
        saved_s = 60.0 * works
        steps.append(DayStep(at, 12 * works, 12 * fails, 1.5 * works, 3.0 * works, saved_s))
    outage = Outage("ollama", NOW - 5 * 3600.0, NOW - 4 * 3600.0, True, 144, "CUDA error\x1b[2J")
    return LastDay(NOW, tuple(steps), (outage,))


@pytest.mark.parametrize("width", [1, 40, 78, 118, 238])
def test_the_page_says_what_happened_at_any_width(width: int) -> None:
    lines = [line.plain for line in page(night(), ViewState(""), width, 0)]
    text = "\n".join(lines)
    if width >= 78:
        assert "1,152 requests, 144 failed; 1h36 less waiting than in order of arrival" in lines[0]
        assert "03:00-04:00 ollama down, 144 failed: CUDA error" in text
        assert "\x1b" not in text
        assert all(len(line) <= width for line in lines)
        plot = lines[next(n for n, line in enumerate(lines) if line.startswith("slots at work")) + 1 :][:4]
        drawn = [any(row[x] not in " │┤" for row in plot) for x in range(6, width)]
        ago = [drawn[round(share * (width - 7))] for share in (0.3, 0.6, 0.85, 1.0)]
        assert ago == [False, False, True, True]


def test_a_day_without_requests_says_so() -> None:
    lines = [line.plain for line in page(LastDay(NOW), ViewState(""), 78, 0)]
    assert "Nothing has gone wrong." in lines
    assert lines[0].startswith("0 requests")


async def test_its_key_opens_and_closes_it_and_a_daemon_without_history_is_said() -> None:
    source = Script((busy(),), day=replace(night(), taken_at=NOW))
    app = still(source)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("N")
        await app.workers.wait_for_complete([each for each in app.workers if each.group == "last night"])
        assert "03:00-04:00 ollama down" in await settled(app, pilot)
        await pilot.press("N")
        assert "ollama down" not in await settled(app, pilot)
        source.refusal = "this daemon records no history"
        await pilot.press("N")
        await app.workers.wait_for_complete([each for each in app.workers if each.group == "last night"])
        await settled(app, pilot)
        assert "records no history" in screen_text(app)
