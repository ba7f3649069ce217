"""How far a worker is trusted with requests: one that fails at once would be free at once, and draw them all.

Rule 1: one that comes back begins with one request, and has twice as many each time that it begins to answer.
Rule 2: one that failed `TROUBLE_AFTER` times in a row rests, longer each time, and is then tried with one.
Both hold only where others can do its work meanwhile; that is the pool's to see to.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.config import MAX_SLOTS

TROUBLE_AFTER = 3
"""Failures in a row: one may be the request's own fault, and two of a client that tries it again."""

FIRST_REST_S = 1.0
MAX_REST_S = 60.0


@dataclass(slots=True)
class Health:
    """What a worker may be trusted with: `slots` at once, nothing while it `rests`. `changed` is called when
    that changes, be it by itself.
    """

    changed: Callable[[], None]
    slots: int = MAX_SLOTS
    failures: int = 0
    _rest: asyncio.TimerHandle | None = None

    @property
    def rests(self) -> bool:
        """Whether it had better be left alone."""
        return self._rest is not None

    def came_back(self) -> None:
        """It was away, and is there again."""
        self.slots = 1

    def began(self) -> None:
        """It has begun to answer a request, and the answer is none of its own errors."""
        if self.slots < MAX_SLOTS:
            self.slots *= 2
            self.changed()

    def answered(self) -> None:
        """It has answered a request well."""
        self.failures = 0

    def failed(self) -> None:
        """It has failed a request. Those that ran beside one that made it rest do not count again."""
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
        """Trust it as on the first day."""
        if self._rest is not None:
            self._rest.cancel()
        self._rest, self.failures, self.slots = None, 0, MAX_SLOTS

    def _rested(self) -> None:
        self._rest = None
        self.changed()
