"""Limits the share of an event loop turn spent on parsing client input, however many clients send at once."""

import asyncio
from time import perf_counter

TURN_S = 0.004
"""How long a turn of the loop may be spent on reading; what has been begun by then is read to its end."""


class LoopTurn:
    """Measures what a turn of the loop is spent on, as a context manager round each piece of such work."""

    def __init__(self, allowed_s: float = TURN_S) -> None:
        self._allowed_s = allowed_s
        self._spent_s = 0.0
        self._began_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<LoopTurn {self._spent_s * 1000:.1f} of {self._allowed_s * 1000:g} ms>"

    def __enter__(self) -> None:
        self._began_s = perf_counter()

    def __exit__(self, *exc: object) -> None:
        self.charge(perf_counter() - self._began_s)

    def charge(self, seconds: float) -> None:
        """Add to the time spent. It accumulates over turns, so that an idle daemon need not count them."""
        self._spent_s += seconds
        if self._spent_s >= self._allowed_s:
            loop = asyncio.get_running_loop()
            if self._loop is not loop:
                self._loop = loop
                loop.call_soon(self._next)

    @property
    def over(self) -> bool:
        """Whether the present turn has no time left."""
        return self._spent_s >= self._allowed_s and self._loop is asyncio.get_running_loop()

    async def next(self) -> None:
        """Return in a turn that has time left: at once, if the present one has."""
        while self.over:  # noqa: ASYNC110 - an event would wake all in the same turn
            await asyncio.sleep(0)

    def _next(self) -> None:
        self._spent_s = 0.0
        self._loop = None


READING = LoopTurn()  # parsing of heads, chunks and bodies
