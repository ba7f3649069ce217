"""What a living daemon says that its order gained: of a burst, over pauses and outages."""

import asyncio
import json
import time
from contextlib import AsyncExitStack

import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.proxy.observing.gain import Gain, midnight_before
from clairvoyant_cli.proxy.observing.tally import Tally
from clairvoyant_cli.scheduler.arrival_order import Compared
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.ended import ended
from tests.fakes.raw_http import post
from tests.fakes.replay_backend import Engine, Replay, Speed, tabled
from tests.fakes.serving import asked, replaying, serving, until

HOUR_S = 3600.0


def chat(prompt: str, tokens: int) -> bytes:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": "replay", "messages": messages, "options": {"num_predict": tokens}, "stream": False}
    return post("/api/chat", json.dumps(body).encode())


LENGTHS = tabled({"0.9 long": 300, "0.1 short": 20, "0.0 first": 20})
BURST = (chat("0.0 first", 20), *[chat("0.9 long", 300)] * 3, *[chat("0.1 short", 20)] * 3)


def engine() -> Engine:
    return Engine(speed=Speed(decode_tokens_per_s=2000.0), answer_tokens=LENGTHS)


def assert_books_agree(state: Snapshot) -> None:
    gain = state.gain
    assert gain.short_s == state.stats_paired[0].wait.p50
    assert sum(each.wait.n for each in state.stats_paired) == state.counters.completed


@pytest.mark.parametrize("policy", ["sjf", "fcfs"])
def test_a_pause_in_a_burst_of_seven_is_nobodys_gain_or_loss(policy: str) -> None:
    async def scene() -> float:
        clock = asyncio.get_running_loop().time
        async with replaying(engine(), slots=1, policy=policy, tau=0.0, clock=clock) as daemon:
            daemon.dispatcher.scheduler.pause()
            daemon.dispatcher.moved()
            async with asked(daemon, *BURST):
                await asyncio.sleep(386.0)
                daemon.operation.resume()
                daemon.dispatcher.moved()
                state = await until(daemon, lambda s: s.counters.completed == 3)
                assert_books_agree(state)
                state = await until(daemon, lambda s: s.gain.answers_today == 7)
            assert_books_agree(state)
            assert not state.gain.estimated_today
        return state.gain.saved_today_s

    saved_s = run_virtually(scene())
    assert abs(saved_s) < 0.05 if policy == "fcfs" else 0.5 < saved_s < 5.0


async def test_an_outage_in_which_nothing_is_served_changes_nothing() -> None:
    late_s = [0.0]
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(AsyncExitStack())
        url = await server.enter_async_context(serve_app(Replay(engine()).app))
        clock = lambda: time.monotonic() + late_s[0]  # noqa: E731
        daemon = await stack.enter_async_context(serving(url, slots=1, policy="sjf", clock=clock))
        await stack.enter_async_context(asked(daemon, *BURST))
        state = await until(daemon, lambda s: s.gain.answers_today >= 2)
        await server.aclose()
        daemon.pool.first.probe_due.set()
        before = (await until(daemon, lambda s: s.backends[0].state == "down" and not s.running)).gain
        late_s[0] = 5 * 3600.0
        after = daemon.snapshot()
        assert_books_agree(after)
        assert after.queue
        assert after.gain.saved_today_s == pytest.approx(before.saved_today_s, abs=0.05)
        assert state.gain.answers_today >= 2


@pytest.mark.posix
@pytest.mark.parametrize(
    ("noon", "day_s"),
    [(1_774_776_000.0, 23 * HOUR_S), (1_792_926_000.0, 25 * HOUR_S), (1_781_784_000.0, 24 * HOUR_S)],
)
def test_a_day_on_which_the_clocks_change_is_shorter_or_longer(
    noon: float, day_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as berlin:
        berlin.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        found_s = midnight_before(noon + 20 * HOUR_S) - midnight_before(noon)
    time.tzset()
    assert found_s == day_s


def test_yesterday_is_there_after_midnight_and_the_last_hour_goes_on() -> None:
    now = [midnight_before(time.time()) + HOUR_S]
    gain = Gain(Tally(lambda: now[0]))
    now[0] -= 1.5 * HOUR_S  # half an hour before midnight
    gain.compared(pair(now[0], 2.0))
    assert gain.state().answers_today == 1
    now[0] += 0.75 * HOUR_S
    gain.compared(pair(now[0], -1.0))
    gain.compared(pair(now[0] - 0.5 * HOUR_S, 4.0))  # of before a restart
    state = gain.state()
    assert (state.answers_today, state.saved_today_s) == (1, -1.0)
    assert (state.answers_yesterday, state.saved_yesterday_s) == (2, 6.0)
    assert gain.by_class[0][0].wait.n == 3
    gain.compared(pair(now[0] - 0.25 * HOUR_S, 7.0))  # at midnight
    now[0] += 2.0
    state = gain.state()
    assert (state.answers_today, state.answers_yesterday) == (2, 2)
    now[0] += 48 * HOUR_S
    assert gain.state().answers_yesterday == 0


def pair(at: float, saved_s: float) -> Compared:
    return Compared(ended(finished_at=at, waited_s=1.0), saved_s, 1.0 + saved_s)


def test_answers_that_are_not_compared_yet_count_as_estimated() -> None:
    """They are in the state as long as they are estimated, and in no sum that stays."""
    at = midnight_before(time.time()) + HOUR_S
    gain = Gain(Tally(lambda: at))
    for _ in range(10):
        gain.compared(pair(at, 2.0))
    left = ended(waited_s=3.0)
    state = gain.state(1, lambda: [Compared(left, -1.0, 2.0)])
    assert (state.answers_today, state.estimated_today) == (11, 1)
    assert (state.saved_today_s, state.waited_today_s) == (19.0, 13.0)
    assert gain.by_class[0][0].wait.n == gain.by_class[1][0].wait.n == 11
    state = gain.state(0)
    assert (state.answers_today, state.estimated_today, state.saved_today_s) == (10, 0, 20.0)
