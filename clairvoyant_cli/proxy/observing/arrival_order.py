"""Replays the ended requests first-come-first-served: each, in order of arrival, takes the slot that is free
first, for as long as it really held one. Service times do not depend on the order, so this needs no model.
"""

import heapq
from collections import deque
from dataclasses import dataclass

from clairvoyant_cli.proxy.queue.exchange import Exchange

MAX_PENDING = 10_000


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """A request's wait and service time in the replay, in seconds."""

    exchange: Exchange
    wait_s: float
    service_s: float


class Shadow:
    """The replay."""

    def __init__(self, slots: int) -> None:
        self._free_at: list[float] = [0.0] * slots
        self._pending: deque[Exchange] = deque()

    def resize(self, slots: int) -> None:
        """Follow the backend's number of slots."""
        free_at = sorted(self._free_at)
        # A new slot is free as early as any; one list in one go, however many there are.
        self._free_at = ([free_at[0]] * (slots - len(free_at)) + free_at)[-slots:]

    def arrived(self, exchange: Exchange) -> None:
        """Add an arrival. Behind a request that is held for ever, the oldest are dropped."""
        self._pending.append(exchange)
        if len(self._pending) > MAX_PENDING:
            self._pending.popleft()

    def ended(self) -> list[ShadowRun]:
        """Return the new runs, up to the first request that has not ended."""
        runs = []
        while self._pending and self._pending[0].ended_s is not None:
            exchange = self._pending.popleft()
            if exchange.dispatched_s is None or exchange.ended_s is None:
                continue  # it left the queue unserved, in either order
            service_s = exchange.service_s(exchange.ended_s)
            start_s = max(exchange.job.arrival_s, self._free_at[0])
            heapq.heapreplace(self._free_at, start_s + service_s)
            runs.append(ShadowRun(exchange, start_s - exchange.job.arrival_s, service_s))
        return runs
