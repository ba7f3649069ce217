"""Watches one server: whether it is up, and when a slot of it is really free."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from clairvoyant_cli.backends.adapter import LOADING, ObservedServer
from clairvoyant_cli.backends.discovery import recognise
from clairvoyant_cli.backends.prober import TIMED_OUT, Ask, Prober, asking_once
from clairvoyant_cli.protocols.probes import BusySlots

log = logging.getLogger("clairvoyant")

UP_EVERY_S = 5.0
ENGINE_EVERY_S = 1.0  # for an engine with its own queue, while it has requests
DOWN_EVERY_S = 1.0
# A server that is away is asked every second, and less often the longer it is: its return is noticed within
# a tenth of its absence.
AWAY_SHARE = 0.1
MAX_DOWN_EVERY_S = 15.0
# Pause between questions to llama.cpp's /slots. Each restarts the 1 s timer by which it notices that an
# unstreamed client has left, so it must exceed a second.
SLOTS_EVERY_S = 1.25
FIRST_LOOK_AFTER_S = 0.005  # pause before the second look, doubled each time: a stream ends at its next token
MAX_STOP_S = 3.0  # that an abandoned answer may occupy its slot: llama.cpp ends the batch of a prompt first
# A stream ends at its next token. It may take four times as long as recent ones, each of which counts a
# fifth less than the next.
LEAST_STOP_S = 1.0
STOP_MARGIN = 4.0
STOP_KEPT = 0.8
SHARED = "another program seems to use it: more of its slots are busy than this proxy uses"
SILENT = "its /slots timed out"

STARTED_FOR_S = 0.2  # a request sent this long ago is counted by /slots, if it has one
LEADS_BACK = "its address leads back to this proxy; give --backend the LLM server itself"


@dataclass(eq=False)
class ServerWatch:
    """Keeps a server's state current and waits for slots that must drain.

    `at_work`: whether the server is answering a request; `on_trial` sends one waiting request to a server
    that was loading; `in_company`: whether there are others; `look_closer` learns more of one that is up.
    """

    server: ObservedServer
    prober: Prober
    on_change: Callable[[], None]
    at_work: Callable[[], bool] = lambda: False
    on_trial: Callable[[], None] = lambda: None
    in_company: Callable[[], bool] = lambda: False
    look_closer: Callable[[Ask], Awaitable[None]] | None = None
    clock: Callable[[], float] = time.monotonic
    _up_s: float = field(init=False)
    _stop_s: float = 0.0
    _look: asyncio.Event = field(default_factory=asyncio.Event)
    _came_back: bool = False
    _announced: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        self._up_s = self.clock()

    def look_now(self) -> None:
        self._look.set()

    def lost(self, why: str) -> None:
        """No connection could be made: it is down until the next look."""
        self.server.state, self.server.detail = "down", why
        self._announce()
        self.look_now()

    def not_ready(self) -> None:
        """A request was answered with "not ready": only trial requests are sent from now on."""
        self.server.state, self.server.detail = "loading", LOADING
        self._announce()

    def came_back(self, mark: bytes) -> bool:
        """Whether a received probe is this server's own: its address leads back to this proxy."""
        ours = mark == self.prober.mark
        if ours:
            self._came_back = self.server.leads_back = True
        return ours

    def answered(self) -> None:
        """A request was answered: the server is up, whatever it reports."""
        if self.server.state == "loading":
            self.server.state, self.server.detail = "up", ""
            self._announce()

    async def run(self) -> None:
        while True:
            await self._refresh()
            self._announce()
            if self.server.state == "loading":
                self.on_trial()
            server, now = self.server, self.clock()
            pause_s = max(DOWN_EVERY_S, min(AWAY_SHARE * (now - self._up_s), MAX_DOWN_EVERY_S))
            if server.state == "up":
                self._up_s = now
                pause_s = ENGINE_EVERY_S if server.stamps is not None and self.at_work() else UP_EVERY_S
            self._look.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look.wait()

    async def _refresh(self) -> None:
        server = self.server
        before = server.state
        self._came_back = False
        if server.guessed and await recognise(self.prober, server):
            log.info("found %s %s at %s", server.adapter.name, server.version, server.upstream.url)
        ask = asking_once(self.prober.asking(server.upstream.url, server.prefix))
        await server.adapter.refresh(ask, server)
        if server.detail == TIMED_OUT and before == "up" and self.at_work():
            server.state = "up"  # its only thread is busy with a request
        server.leads_back = self._came_back
        if server.leads_back:
            server.state, server.detail = "down", LEADS_BACK
        if server.state == "up" and self.in_company():
            await server.adapter.list_models(ask, server)
        if server.state == "up" and self.look_closer is not None:
            await self.look_closer(ask)
        server.seen = server.seen or server.state in ("up", "loading")

    def _announce(self) -> None:
        server = self.server
        news = (server.state, server.room, server.at_once, server.models, server.offered)
        if news != self._announced:
            self._announced = news
            self.on_change()

    async def slots_settled(
        self, others_started_at: Callable[[], list[float]], *, streamed: bool = False
    ) -> str:
        """Wait until an abandoned answer has left its slot of llama.cpp, or for as long as that may take;
        return what prevented seeing it, "" if nothing did.

        It has left when no more of the slots that were busy at first are at the same task than other requests
        are there. `others_started_at` returns when those were sent; the latest may not be counted yet.
        `streamed` says that the answer was a stream.
        """
        if not self.server.adapter.REPORTS_SLOTS:
            return ""
        begun_s, said = self.clock(), SILENT
        pause_s = FIRST_LOOK_AFTER_S if streamed else SLOTS_EVERY_S
        bound_s = max(LEAST_STOP_S, STOP_MARGIN * self._stop_s) if streamed else MAX_STOP_S
        held: BusySlots | None = None
        ask = self.prober.asking(self.server.upstream.url, self.server.prefix)
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_STOP_S):
                while True:
                    asked_s = self.clock()
                    busy = await self.server.adapter.busy_slots(ask)
                    if busy is None:
                        return ""
                    held = busy if held is None else held & busy
                    started = others_started_at()
                    before = sum(begun_s - at >= STARTED_FOR_S for at in started)
                    said = SHARED if len(busy) > len(started) else ""
                    counted = all(asked_s - at >= STARTED_FOR_S for at in started)
                    took_s = asked_s - begun_s
                    if len(held) <= before or (counted and not said):
                        if streamed:
                            self._stop_s = max(took_s, STOP_KEPT * self._stop_s)
                        break
                    if took_s >= bound_s:
                        break
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, SLOTS_EVERY_S)
        return said
