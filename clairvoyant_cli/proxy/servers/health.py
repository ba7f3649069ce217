"""How many requests a server is trusted with, and how long it has been away.

A server that fails at once is free at once and would attract every request.
Rule 1: one that comes back starts with one slot and doubles them each time an answer begins.
Rule 2: one that failed `TROUBLE_AFTER` times in a row rests, longer each time, and is then tried with one.
Rule 3: so does one at which a request is overdue, at once. Until an answer comes it gets one at a time.
But for that, all hold only while other servers can do its work (`ServerLifecycle`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.config import MAX_SLOTS

TROUBLE_AFTER = 3  # failures in a row; one may be the request's own fault, two those of a client that retries
FIRST_REST_S = 1.0
MAX_REST_S = 60.0
MAX_HUNG_REST_S = 900.0  # each trial costs a request the time until it is overdue


@dataclass(slots=True)
class Health:
    """How far one server is trusted."""

    changed: Callable[[], None] = lambda: None  # called when it is trusted again
    hung: int = 0  # how often in a row a request was overdue; it gets one at a time until an answer comes
    hung_s: float = 0.0  # when that was last noticed
    give_up: Callable[[], None] = lambda: None  # called once when an outage exceeds `grace_s`
    # A server that restarts is back in seconds: requests that wait for it keep their places until then, as in
    # HAProxy's queues.
    grace_s: float = 0.0
    # By an operator: "draining" gets only what no other can serve, "leaving" is also removed once it is idle.
    withdrawn: str = ""
    slots: int = MAX_SLOTS  # the most requests that it is sent at once
    failures: int = 0  # in a row
    given_up: bool = False  # it has been away for longer than `grace_s`
    _rest: asyncio.TimerHandle | None = None
    _outage: asyncio.TimerHandle | None = None

    @property
    def rests(self) -> bool:
        """Whether it gets nothing for a while, as it failed."""
        return self._rest is not None

    @property
    def given_up_in_s(self) -> float | None:
        """Seconds until it is given up, 0.0 once it was; None while it is there."""
        if self._outage is None:
            return 0.0 if self.given_up else None
        return max(0.0, self._outage.when() - asyncio.get_running_loop().time())

    def set_away(self, *, away: bool) -> None:
        """Record whether it is away."""
        if away and self.given_up_in_s is None:
            self._outage = asyncio.get_running_loop().call_later(self.grace_s, self._expire)
        elif not away and self.given_up_in_s is not None:
            if self.hung:
                self.forget()
            if self._outage is not None:
                self._outage.cancel()
            self._outage, self.given_up, self.slots = None, False, 1

    def began(self) -> None:
        """An answer has begun that is not a server error."""
        if self.slots < MAX_SLOTS:
            self.slots *= 2
            self.changed()

    def failed(self) -> bool:
        """A request has failed: return whether its slots or rest changed. It does not count during a rest."""
        if self.rests:
            return False
        self.failures += 1
        if self.failures < TROUBLE_AFTER:
            return False
        self._rest_for(min(FIRST_REST_S * 2.0 ** (self.failures - TROUBLE_AFTER), MAX_REST_S))
        return True

    def hangs(self, now: float) -> None:
        """A request is overdue, which does not count twice while the server rests for it."""
        if not (self.hung and self.rests):
            self.hung, self.hung_s = self.hung + 1, now
            self._rest_for(min(MAX_REST_S * 2.0 ** (self.hung - 1), MAX_HUNG_REST_S))

    def _rest_for(self, rest_s: float) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self.slots = 1
        self._rest = asyncio.get_running_loop().call_later(rest_s, self._rested)

    def forget(self) -> None:
        """Trust it as if it had never failed."""
        if self._rest is not None:
            self._rest.cancel()
        self._rest, self.failures, self.hung, self.slots = None, 0, 0, MAX_SLOTS

    def _rested(self) -> None:
        self._rest = None
        self.changed()

    def _expire(self) -> None:
        self._outage, self.given_up = None, True
        self.give_up()
