"""A living daemon that changes while it is watched: what the screen says of it, at three sizes in turn.

What moves (ids, times, counts of tokens) is not looked at: each step waits until the words stand there.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clairvoyant_lab.asgi_server import serve_app
from textual.pilot import Pilot

import tui.app
from clairvoyant_cli.demo.simulated_machine import simulated_machine
from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.source import DaemonSource
from tests.fakes.raw_http import chat, raw_client
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.serving import ByFirstWord, asked, replaying, serving, until
from tests.proxy.test_cut_answers import LONG, SHORT, body, preempting
from tests.tui.board import SIZES, screen_text
from tui.app import Top

LENGTHS = tabled({"0.9 endless": 100_000, "0.1 short": 3})
PICTURES = "CLAIRVOYANT_PICTURES"
"""A folder that the variable of this name gives gets each screen as a picture, to be looked at."""


class Watching(Top):
    """Tells each time that it has drawn."""

    CSS_PATH = str(Path(tui.app.__file__).with_name("app.tcss"))

    def __init__(self, url: str) -> None:
        super().__init__(DaemonSource(url))
        self.drawn = asyncio.Event()

    def draw(self) -> None:
        super().draw()
        self.drawn.set()


@dataclass(slots=True)
class Watched:
    """A screen that is attached to a daemon, at one size after the other."""

    app: Watching
    pilot: Pilot[None]
    steps: int = 0

    async def shows(self, step: str, *words: str, wide: str = "") -> None:
        """Wait until words stand there, at the next size; `wide` at the largest, which has all panels."""
        self.steps += 1
        for columns, rows in dict.fromkeys((SIZES[self.steps % len(SIZES)], SIZES[-1] if wide else SIZES[0])):
            await self.pilot.resize_terminal(columns, rows)
            wanted = (*words, wide) if columns >= 120 else words
            text = ""
            try:
                async with asyncio.timeout(60):
                    while not _stands(text := screen_text(self.app), wanted, columns):
                        self.app.drawn.clear()
                        await self.app.drawn.wait()
                        await self.pilot.pause()
            except TimeoutError:
                raise AssertionError(f"{step}: not all of {wanted} in\n{text}") from None
            if folder := os.environ.get(PICTURES):
                path = Path(folder) / f"{step}_{columns}x{rows}.svg"
                path.write_text(self.app.export_screenshot(), encoding="utf-8")


def _stands(text: str, words: tuple[str, ...], columns: int) -> bool:
    """Whether words stand on a screen that has been drawn at this width: its rules reach to the edge."""
    return max(len(line) for line in text.split("\n")) == columns and all(word in text for word in words)


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watched]:
    app = Watching(url)
    async with app.run_test(size=SIZES[0]) as pilot:
        yield Watched(app, pilot)


async def test_the_screen_follows_a_daemon_through_what_happens_to_it() -> None:
    first, second = (Replay(Engine(slots, answer_tokens=LENGTHS)) for slots in (4, 4))
    for backend in (first, second):
        backend.engine.freeze()
    async with (
        serve_app(first.app) as url,
        serve_app(second.app) as second_url,
        serving(url, slots=4) as daemon,
        ControlClient(daemon.base_url, daemon.access.run_token) as control,
        watching(daemon.base_url) as screen,
    ):

        async def act(action: str, **arguments: Any) -> None:
            await control.act(action, arguments)

        await screen.shows("idle", "All well", "Idle.", "slots □□□□ 0/4")
        async with asked(daemon, *[chat("0.9 endless")] * 5, *[chat("0.1 short")] * 3):
            await screen.shows("busy", "slots ■■■■ 4/4", "waiting 4", "3S 1L")
            screen.app.take_hardware(simulated_machine(2)())
            await screen.shows("hardware", "waiting 4", wide="2 GPUs")
            await act("policy", policy="fcfs")
            await screen.shows("by_arrival", "order fcfs", "waiting 4")
            await act("pause")
            await screen.shows("paused", "Paused by an operator, 4 waiting")
            await act("resume")
            await act("backend", do="add", url=second_url, name="second", slots=4)
            await screen.shows("grown", "■■■■■■■■ 8/8", "waiting 0", wide="second")
            await act("drain")
            await screen.shows("draining", "Draining: new requests are rejected")
            await act("resume")
            await screen.shows("resumed", "order fcfs", "8/8")
        await screen.shows("left", "slots □□□□□□□□ 0/8", wide="← left")
        daemon.control.stop()
        await screen.shows("gone", "no daemon")


async def test_the_screen_comes_back_with_a_daemon_that_is_started_again() -> None:
    async with serve_app(Replay(Engine(4)).app) as url, AsyncExitStack() as first:
        daemon = await first.enter_async_context(serving(url, slots=4))
        async with watching(daemon.base_url) as screen:
            await screen.shows("up", "All well")
            await first.aclose()
            await screen.shows("away", " no daemon ", "retrying")
            async with serving(url, slots=2, listen=daemon.base_url.removeprefix("http://")):
                await screen.shows("back", "All well", "slots □□ 0/2")


async def test_screen_warns_of_a_late_urgent_request() -> None:
    backend = Replay(Engine(4, answer_tokens=LENGTHS))
    backend.engine.freeze()
    async with (
        replaying(backend, ByFirstWord(), slots=4) as daemon,
        ControlClient(daemon.base_url, daemon.access.run_token) as control,
        watching(daemon.base_url) as screen,
        asked(daemon, *[chat("0.9 endless")] * 6),
    ):
        daemon.stats.urgency_target_s = 0.05
        await control.act("policy", {"policy": "urgency"})
        waits = daemon.snapshot().queue[-1].id
        await control.act("urgency", {"id": waits, "level": 0})
        await screen.shows("late", "A request of level 0 has waited", wide="level 0:1 2:1")
        row = next(line for line in screen_text(screen.app).split("\n") if waits in line)
        assert row.split()[0] == "1"


async def test_the_screen_shows_an_answer_that_was_cut_and_goes_on() -> None:
    async with (
        preempting() as (daemon, engine),
        watching(daemon.base_url) as screen,
        raw_client(daemon.base_url) as long,
        raw_client(daemon.base_url) as short,
    ):
        long.send(body("/api/chat", LONG, stream=True))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 5)
        short.send(body("/api/chat", SHORT, stream=True, tokens=800))
        await until(daemon, lambda s: s.counters.cuts == 1)
        engine.freeze()
        state = await until(daemon, lambda s: bool(s.running) and [row.cuts for row in s.queue] == [1])
        [suspended] = state.queue
        await screen.shows("cut", "waiting 1", suspended.id, "½")
        engine.thaw()
        await until(daemon, lambda s: s.counters.resumes == 1)
        engine.freeze()
        await screen.shows("goes_on", "waiting 0", f"▶ {suspended.id}")
        engine.thaw()
        assert (await long.response()).whole
