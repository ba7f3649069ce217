"""The journal converts times of the event loop to wall clock times."""

import asyncio

from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.proxy.journal import COALESCE_S, Journal, Tally
from clairvoyant_cli.proxy.observing.request_stats import RequestStats


def test_times_follow_the_current_wall_clock() -> None:
    wall_s, loop_s = 1_790_000_000.0, 1000.0
    request_stats = RequestStats(Journal(lambda: loop_s, wall=lambda: wall_s))
    for set_by_s in (0.0, 8 * 3600.0, -3 * 86_400.0):
        wall_s += set_by_s + 5.0
        loop_s += 5.0
        assert request_stats.journal.at(loop_s) == wall_s
        assert request_stats.journal.at(loop_s - 2.0) == wall_s - 2.0


def test_frequent_events_are_told_by_their_number_once_a_minute() -> None:
    told: list[int] = []

    async def play() -> None:
        tally = Tally(told.append)
        for _ in range(16):
            tally.add()
            await asyncio.sleep(1.0)
        assert told == []
        await asyncio.sleep(COALESCE_S)
        assert told == [16]
        tally.add()
        await asyncio.sleep(COALESCE_S + 1.0)

    run_virtually(play())
    assert told == [16, 1]
