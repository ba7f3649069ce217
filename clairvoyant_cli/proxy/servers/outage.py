"""What becomes of the queue while the backend is away or loads its model: it waits, for a while.

A server that is restarted is back in seconds, and whoever has waited in line keeps his place, as in HAProxy's
queues. One that was never there has no queue worth keeping: its clients are told at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Outage:
    """Counts the time a backend is away. `give_up` is called once when it has been away for `grace_s`."""

    grace_s: float
    give_up: Callable[[], None]
    over: bool = False
    _ends: asyncio.TimerHandle | None = None

    @property
    def lasts(self) -> bool:
        """Whether the backend is away, and requests wait for it."""
        return self._ends is not None

    def note(self, *, away: bool) -> None:
        """Take note of whether the backend is away now."""
        if away and self._ends is None and not self.over:
            self._ends = asyncio.get_running_loop().call_later(self.grace_s, self._expire)
        elif not away:
            if self._ends is not None:
                self._ends.cancel()
            self._ends = None
            self.over = False

    def _expire(self) -> None:
        self._ends = None
        self.over = True
        self.give_up()
