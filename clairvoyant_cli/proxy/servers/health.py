"""How many requests a server is trusted with, and how long it has been away.

A server that fails at once is free at once and would attract every request.
Rule 1: one that comes back starts with one slot and doubles them each time an answer begins.
Rule 2: one that failed `TROUBLE_AFTER` times in a row rests, longer each time, and is then tried with one.
Both hold only while other servers can do its work (`ServerLifecycle`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.config import MAX_SLOTS

TROUBLE_AFTER = 3  # failures in a row; one may be the request's own fault, two those of a client that retries
FIRST_REST_S = 1.0
MAX_REST_S = 60.0


@dataclass(slots=True)
class Health:
    """A server may be sent `slots` requests at once, none while it `rests`. `changed` is called when that
    changes.
    """

    changed: Callable[[], None] = lambda: None
    slots: int = MAX_SLOTS
    failures: int = 0
    _rest: asyncio.TimerHandle | None = None

    @property
    def rests(self) -> bool:
        return self._rest is not None

    def came_back(self) -> None:
        self.slots = 1

    def began(self) -> None:
        """An answer has begun that is not a server error."""
        if self.slots < MAX_SLOTS:
            self.slots *= 2
            self.changed()

    def answered(self) -> None:
        self.failures = 0

    def failed(self) -> None:
        """A request has failed. While the server rests, failures do not count."""
        if self.rests:
            return
        self.failures += 1
        if self.failures < TROUBLE_AFTER:
            return
        self.slots = 1
        rest_s = min(FIRST_REST_S * 2.0 ** (self.failures - TROUBLE_AFTER), MAX_REST_S)
        self._rest = asyncio.get_running_loop().call_later(rest_s, self._rested)
        self.changed()

    def forget(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._rest, self.failures, self.slots = None, 0, MAX_SLOTS

    def _rested(self) -> None:
        self._rest = None
        self.changed()


@dataclass(slots=True)
class Outage:
    """How long a server has been away. `give_up` is called once, when that exceeds `grace_s`. A server that
    restarts is back in seconds, and requests that wait for it keep their places, as in HAProxy's queues.
    """

    grace_s: float = 0.0
    give_up: Callable[[], None] = lambda: None
    over: bool = False
    _ends: asyncio.TimerHandle | None = None

    @property
    def lasts(self) -> bool:
        """Whether the server is away and requests wait for it."""
        return self._ends is not None

    @property
    def left_s(self) -> float | None:
        """Seconds until it is given up, 0.0 once it was; None while the server is there."""
        if self._ends is None:
            return 0.0 if self.over else None
        return max(0.0, self._ends.when() - asyncio.get_running_loop().time())

    def note(self, *, away: bool) -> None:
        if away and self._ends is None and not self.over:
            self._ends = asyncio.get_running_loop().call_later(self.grace_s, self._expire)
        elif not away:
            if self._ends is not None:
                self._ends.cancel()
            self._ends, self.over = None, False

    def _expire(self) -> None:
        self._ends = None
        self.over = True
        self.give_up()
