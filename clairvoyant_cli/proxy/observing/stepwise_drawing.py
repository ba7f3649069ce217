"""What takes long to draw, drawn in steps: between two of them whoever waits for a token gets it.

Rule 1: what is drawn is drawn once for all who have asked for the same by then, and after they asked.
Rule 2: a step is some milliseconds of work at most, and leaves nothing half done: what it is about may have
gone by the next.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

DRAWING_SHARE = 25
"""A long queue takes longer to draw and is drawn less often, however many ask: never more than 4 % of the
daemon's time for the states, nor for the metrics."""

MAX_REST_S = 5.0
"""A reader is not left without word until it takes the daemon for gone, however much there is to draw."""

TURN_S = 0.004
"""How much of one turn of the loop goes into drawing; the step that has been begun by then is finished."""

PAUSE_SHARE = 4
"""Between two turns it rests for so many times as long as the last took: an answer passes through the loop in
several turns, and is to meet one step of a drawing, not all."""

PAUSE_S = 0.01
"""The same for what nobody waits for."""

ValueT = TypeVar("ValueT")
WhatT = TypeVar("WhatT", bound=Hashable)
Steps: TypeAlias = Generator[None, None, ValueT]
"""Work that yields between its steps, and returns what comes of it."""


def at_once(steps: Steps[ValueT]) -> ValueT:
    """Return what comes of all steps, done one after the other."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: ValueT = end.value
            return value


async def in_turns(steps: Steps[ValueT]) -> ValueT:
    """Return what comes of all steps, with a pause after each."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: ValueT = end.value
            return value
        await asyncio.sleep(PAUSE_S)


class Drawings(Generic[WhatT]):
    """Draws what is asked for, and hands it to one asker after the other.

    What one is handed was drawn after one asked: who has acted sees what came of it.
    """

    def __init__(
        self,
        draw: Callable[[WhatT], Steps[bytes]],
        clock: Callable[[], float],
        worked: Callable[[], float] = time.thread_time,
        share: int = DRAWING_SHARE,
    ) -> None:
        """It rests `share` times as long as a drawing took. `worked` tells the seconds that this thread has
        worked: where others keep the processor, a drawing takes a second in which it works for a few
        hundredths, and need not rest for more than those.
        """
        self._draw = draw
        self._clock = clock
        self._worked = worked
        self._share = share
        self._coming: dict[WhatT, asyncio.Future[bytes]] = {}
        self._turn = asyncio.Lock()
        self._rests_until_s = 0.0
        self._under_way: Iterator[None] | None = None
        self._spent_s = 0.0

    async def next(self, what: WhatT) -> bytes:
        """Return the next drawing of something."""
        if not self._coming and self._under_way is None:
            self._begin_later()
        if what not in self._coming:
            self._coming[what] = asyncio.get_running_loop().create_future()
        data = await asyncio.shield(self._coming[what])
        async with self._turn:
            # Megabytes for each of a thousand askers are written in as many turns of the loop, not in one.
            await asyncio.sleep(0)
        return data

    def _begin_later(self) -> None:
        rest_s = max(0.0, self._rests_until_s - self._clock())
        asyncio.get_running_loop().call_later(rest_s, self._begin)

    def _begin(self) -> None:
        coming, self._coming = self._coming, {}
        self._under_way = self._all(coming)
        self._spent_s = 0.0
        self._go_on(self._under_way)

    def _go_on(self, steps: Iterator[None]) -> None:
        """Work for the part of a turn that drawing may have, and go on in the next."""
        begun_s, spent_s, done = self._worked(), 0.0, False
        while not done and spent_s < TURN_S:
            done = next(steps, steps) is steps
            spent_s = self._worked() - begun_s
        self._spent_s += spent_s
        if not done:
            asyncio.get_running_loop().call_later(PAUSE_SHARE * spent_s, self._go_on, steps)
            return
        self._rests_until_s = self._clock() + min(MAX_REST_S, self._share * self._spent_s)
        self._under_way = None
        if self._coming:
            self._begin_later()

    def _all(self, coming: dict[WhatT, asyncio.Future[bytes]]) -> Iterator[None]:
        for what, drawing in coming.items():
            try:
                drawing.set_result((yield from self._draw(what)))
            except Exception as error:
                drawing.set_exception(error)
            yield
