"""Answer tokens per client since local midnight, for daily quotas. Memory is bounded by `client_counts`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.scheduler.client_counts import trimmed


@dataclass(slots=True)
class DailyTokens:
    """Answer tokens by client. `clock` is the wall clock, in epoch seconds; `earlier` returns the tokens of
    today from before this daemon started.
    """

    clock: Callable[[], float] = time.time
    earlier: Callable[[str], int] | None = None
    _had: dict[str, int] = field(default_factory=dict)
    _under_way: dict[str, int] = field(default_factory=dict)
    _until: float = 0.0

    def __post_init__(self) -> None:
        self._until = midnight_after(self.clock())

    def had(self, client: str) -> int:
        self._turn_over()
        if (had := self._had.get(client)) is not None:
            return had
        return 0 if self.earlier is None else self.earlier(client)

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
        hours, minutes = divmod(max(1, round(wait_s / 60)), 60)
        span = f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
        used = f"clairvoyant: this client has used its {quota:,} answer tokens for today"
        return Refusal(429, f"{used}; the quota resets at midnight, in {span}", wait_s)

    def _turn_over(self) -> None:
        now = self.clock()
        if now >= self._until or now < self._until - LONGEST_DAY_S:
            self._had.clear()
            self.earlier = None
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
