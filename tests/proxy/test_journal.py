"""The journal converts times of the event loop to wall clock times."""

import asyncio

from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.proxy.journal import COALESCE_S, Journal
from tests.fakes.daemon_parts import daemon_parts


def test_times_follow_the_current_wall_clock() -> None:
    wall_s, loop_s = 1_790_000_000.0, 1000.0
    journal = Journal(lambda: loop_s, wall=lambda: wall_s)
    for set_by_s in (0.0, 8 * 3600.0, -3 * 86_400.0):
        wall_s += set_by_s + 5.0
        loop_s += 5.0
        assert journal.at(loop_s) == wall_s
        assert journal.at(loop_s - 2.0) == wall_s - 2.0


def test_promotions_by_tau_are_told_by_their_number_once_a_minute() -> None:
    parts = daemon_parts()

    def told() -> list[str]:
        return [each.text for each in parts.journal.events if "tau promoted" in each.text]

    async def play() -> None:
        for _ in range(16):
            parts.fired()
            await asyncio.sleep(1.0)
        assert told() == []
        await asyncio.sleep(COALESCE_S)
        assert told() == ["tau promoted 16 requests in the last minute"]
        parts.fired()
        await asyncio.sleep(COALESCE_S + 1.0)

    run_virtually(play())
    assert told()[1:] == ["tau promoted 1 request in the last minute"]
