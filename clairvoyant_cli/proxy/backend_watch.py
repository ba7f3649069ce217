"""Keeps an eye on the LLM server behind the proxy: whether it is up, and when a slot of it is really free."""

import asyncio
import logging
import time
from collections.abc import Callable

from clairvoyant_cli.backends.adapter import LOADING, Backend
from clairvoyant_cli.backends.discovery import recognise
from clairvoyant_cli.backends.prober import TIMED_OUT, Prober

log = logging.getLogger("clairvoyant")

UP_EVERY_S = 5.0
ENGINE_EVERY_S = 1.0
"""Of an engine that orders its own queue, while it has requests of ours: they are somewhere in there."""

DOWN_EVERY_S = 1.0
AWAY_SHARE = 0.1
MAX_DOWN_EVERY_S = 15.0
"""One that is away is looked for every second, and less often the longer it is: it is noticed to be back no
later than after a tenth more of its absence."""

SLOTS_EVERY_S = 1.25
"""Time between looks at llama.cpp's /slots. Each look restarts the 1 s timer by which the server notices
that the client of an unstreamed request has left, so it must stay above a second."""

FIRST_LOOK_AFTER_S = 0.005
"""Whoever left a stream is noticed at its next token; the first looks come at once, each twice as late."""

LOOKS_TRUSTED = 3
STARTED_FOR_S = 0.2
"""A request sent this long ago is counted by /slots, if it has one."""


LEADS_BACK = "its address leads back to this proxy; give --backend the LLM server itself"


class BackendWatch:
    """Keeps a backend's state current and waits for slots that must drain."""

    def __init__(
        self,
        backend: Backend,
        prober: Prober,
        on_change: Callable[[], None],
        *,
        at_work: Callable[[], bool] = lambda: False,
        on_trial: Callable[[], None] = lambda: None,
        in_company: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at_work` says whether the backend is answering a request of ours; `on_trial` has one waiting
        request sent, to see whether a backend that was loading serves by now; `in_company` says that there
        are others, so that it matters which models each has.
        """
        self.backend = backend
        self._prober = prober
        self._on_change = on_change
        self._at_work = at_work
        self._on_trial = on_trial
        self._in_company = in_company
        self._up_s = clock()
        self._clock = clock
        self._look = asyncio.Event()
        self._came_back = False
        self._announced: tuple[object, ...] = ()

    def look_now(self) -> None:
        """Look at once: something just went wrong."""
        self._look.set()

    def lost(self, why: str) -> None:
        """No connection could be made: it is down until a look says otherwise."""
        self.backend.state, self.backend.detail = "down", why
        self._announce()
        self.look_now()

    def not_ready(self) -> None:
        """A request was answered with "not yet": nothing more is sent but one now and then, to see."""
        self.backend.state, self.backend.detail = "loading", LOADING
        self._announce()

    def came_back(self, mark: bytes) -> bool:
        """Whether a question that reached us is our own: the backend's address leads to ourselves."""
        ours = mark == self._prober.mark
        if ours:
            self._came_back = self.backend.leads_back = True
        return ours

    def answered(self) -> None:
        """A request was answered: whatever it says of itself, it serves."""
        if self.backend.state == "loading":
            self.backend.state, self.backend.detail = "up", ""
            self._announce()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._refresh()
            self._announce()
            if self.backend.state == "loading":
                self._on_trial()
            pause_s = self._pause_s()
            self._look.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            except TimeoutError:
                continue

    def _pause_s(self) -> float:
        now = self._clock()
        if self.backend.state == "up":
            self._up_s = now
            return ENGINE_EVERY_S if self.backend.stamps is not None and self._at_work() else UP_EVERY_S
        return max(DOWN_EVERY_S, min(AWAY_SHARE * (now - self._up_s), MAX_DOWN_EVERY_S))

    async def _refresh(self) -> None:
        backend = self.backend
        before = backend.state
        self._came_back = False
        if backend.guessed and await recognise(self._prober, backend):
            log.info("found %s %s at %s", backend.adapter.name, backend.version, backend.upstream.url)
        await self._prober.refresh(backend)
        if backend.detail == TIMED_OUT and before == "up" and self._at_work():
            backend.state = "up"  # it has but one thread, and that one works for us
        backend.leads_back = self._came_back
        if backend.leads_back:
            backend.state, backend.detail = "down", LEADS_BACK
        if backend.state == "up" and self._in_company():
            await self._prober.list_models(backend)
        backend.seen = backend.seen or backend.state in ("up", "loading")

    def _announce(self) -> None:
        backend = self.backend
        news = (backend.state, backend.room, backend.at_once, backend.models, backend.offered)
        if news != self._announced:
            self._announced = news
            self._on_change()

    async def slots_settled(
        self, others_started_at: Callable[[], list[float]], *, streamed: bool = False
    ) -> None:
        """Return when llama.cpp shows no more busy slots than we have requests in flight there.

        `others_started_at` gives, on the monotonic clock, when those were sent; one just sent may not be
        counted by the server yet, so a look is trusted only when all have been there for a moment, or when
        `LOOKS_TRUSTED` over such a moment say the same: where requests are short, there is always one just
        sent. `streamed` says that what was given up was a stream.
        """
        free, free_since_s = 0, 0.0
        pause_s = FIRST_LOOK_AFTER_S if streamed else SLOTS_EVERY_S
        while self.backend.adapter.REPORTS_SLOTS:
            asked = self._clock()
            busy = await self._prober.busy_slots(self.backend)
            if busy is None:
                return
            started = others_started_at()
            free = free + 1 if busy <= len(started) else 0
            free_since_s = asked if free == 1 else free_since_s
            often = free >= LOOKS_TRUSTED and asked - free_since_s >= STARTED_FOR_S
            if busy == 0 or (free and (often or all(asked - at >= STARTED_FOR_S for at in started))):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, SLOTS_EVERY_S)
