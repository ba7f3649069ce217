"""Keeps waits by urgency level, and warns of level-0 requests that wait too long."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.observing.request_stats import percentiles
from clairvoyant_cli.proxy.queue.exchange import Exchange, Phase, RequestEnd
from clairvoyant_cli.scheduler.urgency import LEVELS, level_of
from clairvoyant_cli.state.snapshot import LevelState

WINDOW = 500


@dataclass(slots=True)
class UrgencyStats:
    """Waits by level. Level-0 requests that first wait beyond `target_s` are logged and counted as `late`."""

    clock: Callable[[], float]
    say: Callable[[int, str], None]
    target_s: float
    late: int = 0
    _waits_s: list[deque[float]] = field(
        default_factory=lambda: [deque(maxlen=WINDOW) for _ in range(LEVELS)]
    )
    _watched: set[str] = field(default_factory=set)

    def watch(self, exchange: Exchange) -> None:
        """Watch a queued request of level 0; call it whenever a request becomes one."""
        if exchange.job.urgency != 0 or exchange.phase is not Phase.QUEUED or exchange.cuts:
            return
        if exchange.id not in self._watched:
            self._watched.add(exchange.id)
            due_s = exchange.job.arrival_s + self.target_s - self.clock()
            asyncio.get_running_loop().call_later(max(due_s, 0.0), self._due, exchange)

    def _due(self, exchange: Exchange) -> None:
        if exchange.attempts or exchange.end is not None or exchange.job.urgency != 0:
            self._watched.discard(exchange.id)
            return
        self.late += 1
        age_s = self.clock() - exchange.job.arrival_s
        news = f"request {exchange.id} of level 0 has waited {age_s:.1f} s (target {self.target_s:g} s)"
        self.say(logging.WARNING, news)

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Enter a request that had a slot."""
        self._watched.discard(exchange.id)
        if exchange.dispatched_s is not None:
            self._waits_s[level_of(exchange.job)].append(exchange.waited_s(end.at_s))

    def levels(self, live: list[Exchange]) -> tuple[LevelState, ...]:
        """Return the state of each level, given all live requests."""
        levels, now = [], self.clock()
        by_level: list[list[Exchange]] = [[] for _ in range(LEVELS)]
        for exchange in live:
            by_level[level_of(exchange.job)].append(exchange)
        for level, (here, waits_s) in enumerate(zip(by_level, self._waits_s, strict=True)):
            ages_s = [now - each.job.arrival_s for each in here if each.attempt is None]
            running, longest_s = len(here) - len(ages_s), max(ages_s, default=0.0)
            levels.append(LevelState(level, len(ages_s), running, longest_s, percentiles(list(waits_s))))
        return tuple(levels)
