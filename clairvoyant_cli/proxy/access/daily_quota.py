"""Answer tokens per client since local midnight, for daily quotas. Memory is bounded by `client_counts`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.scheduler.client_counts import trimmed

Earlier = Callable[[str], int]  # returns a client's tokens of today before this daemon started


@dataclass(slots=True)
class DailyTokens:
    """Answer tokens by client. `clock` is the wall clock, in epoch seconds."""

    clock: Callable[[], float] = time.time
    _earlier: Earlier | None = None
    _had: dict[str, int] = field(default_factory=dict)
    _under_way: dict[str, int] = field(default_factory=dict)
    _until: float = 0.0

    def __post_init__(self) -> None:
        self._until = midnight_after(self.clock())

    def take_up(self, earlier: Earlier) -> None:
        self._earlier = earlier

    def had(self, client: str) -> int:
        self._turn_over()
        had = self._had.get(client)
        if had is None:
            return 0 if self._earlier is None else self._earlier(client)
        return had

    def spent(self, client: str) -> int:
        """Return a client's tokens since midnight, plus the predicted tokens of its current requests."""
        return self.had(client) + self._under_way.get(client, 0)

    def begun(self, client: str, expected: int) -> None:
        self._under_way[client] = self._under_way.get(client, 0) + expected

    def ended(self, client: str, expected: int, tokens: int) -> None:
        left = self._under_way.pop(client, 0) - expected
        if left > 0:
            self._under_way[client] = left
        if not tokens:
            return
        self._had[client] = self.had(client) + tokens
        self._had = trimmed(self._had)

    @property
    def clients(self) -> frozenset[str]:
        """The clients with tokens since midnight, as far as this daemon saw."""
        self._turn_over()
        return frozenset(self._had)

    def refusal(self, quota: int) -> Refusal:
        wait_s = self._until - self.clock()
        message = (
            f"clairvoyant: this client has used its {quota:,} answer tokens for today; "
            f"the quota resets at midnight, in {_span(wait_s)}"
        )
        return Refusal(429, message, wait_s)

    def _turn_over(self) -> None:
        now = self.clock()
        if now >= self._until or now < self._until - LONGEST_DAY_S:
            self._had.clear()
            self._earlier = None
            self._until = midnight_after(now)


LONGEST_DAY_S = 25 * 3600.0  # the day when clocks are set back


def midnight_before(now: float) -> float:
    """Return when the local day began, in epoch seconds."""
    then = time.localtime(now)
    return time.mktime((then.tm_year, then.tm_mon, then.tm_mday, 0, 0, 0, 0, 0, -1))


def midnight_after(now: float) -> float:
    """Return when the local day ends, in epoch seconds."""
    then = time.localtime(now)
    return time.mktime((then.tm_year, then.tm_mon, then.tm_mday + 1, 0, 0, 0, 0, 0, -1))


def _span(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
