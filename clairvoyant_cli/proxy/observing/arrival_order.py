"""Replays the ended requests first-come-first-served, and compares the waits.

Each request, in order of arrival, takes the slot that is free first, for as long as it really held one.
Service times do not depend on the order, so this needs no model.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from clairvoyant_cli.proxy.access.daily_quota import LONGEST_DAY_S, midnight_after
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.state.snapshot import GainState
from predictor.record import LengthClass

MAX_PENDING = 10_000
WINDOW_S = 3600.0
MINUTES = 60
MAX_RUNS = 2000
"""Requests of each class that are looked at; of more in an hour, the newest."""

STATE_EVERY_S = 1.0


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
        """Add an arrival. Beyond MAX_PENDING the oldest is dropped: a held request would block the replay."""
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


@dataclass(frozen=True, slots=True)
class Waits:
    """A request's wait, its wait first-come-first-served, and when it ended on the wall clock."""

    at: float
    ours_s: float
    fcfs_s: float


@dataclass(slots=True)
class Gain:
    """The waits of the last hour, and the seconds saved today. `clock` is the wall clock."""

    clock: Callable[[], float] = time.time
    _by_class: Mapping[LengthClass, deque[Waits]] = field(
        default_factory=lambda: {each: deque(maxlen=MAX_RUNS) for each in LengthClass}
    )
    _saved_s: float = 0.0
    _until: float = 0.0
    _state: tuple[float, GainState] = (float("-inf"), GainState())

    def ran(self, run: ShadowRun) -> None:
        """Add a request once its wait first-come-first-served is known."""
        exchange = run.exchange
        if exchange.job.stands_back:
            return  # background requests are meant to wait
        ours_s = exchange.waited_s(exchange.ended_s or 0.0)
        self.enter(LengthClass.of(exchange.totals.tokens or 0), ours_s, run.wait_s)

    def enter(self, kind: LengthClass, ours_s: float, fcfs_s: float) -> None:
        """Add the waits of a request of a class."""
        self._turn_over()
        self._by_class[kind].append(Waits(self.clock(), ours_s, fcfs_s))
        self._saved_s += fcfs_s - ours_s

    def state(self) -> GainState:
        """Return the comparison; at most a second old."""
        self._turn_over()
        now = self.clock()
        if not 0.0 <= now - self._state[0] < STATE_EVERY_S:
            self._state = (now, self._compared(now))
        return self._state[1]

    def _compared(self, now: float) -> GainState:
        for runs in self._by_class.values():
            while runs and not now - WINDOW_S <= runs[0].at <= now:
                runs.popleft()
        short, long = self._by_class[LengthClass.SHORT], self._by_class[LengthClass.LONG]
        if not short:
            return GainState(saved_today_s=self._saved_s)
        return GainState(
            short_s=median(each.ours_s for each in short),
            short_fcfs_s=median(each.fcfs_s for each in short),
            long_paid_s=median(each.ours_s - each.fcfs_s for each in long) if long else None,
            saved_today_s=self._saved_s,
            minutes=_by_minute(short, now),
        )

    def _turn_over(self) -> None:
        now = self.clock()
        if now >= self._until or now < self._until - LONGEST_DAY_S:
            self._saved_s = 0.0
            self._until = midnight_after(now)


def _by_minute(runs: Iterable[Waits], now: float) -> tuple[tuple[float, float] | None, ...]:
    """Return the mean waits, ours and by arrival, of each minute, the newest last."""
    minutes: list[list[Waits]] = [[] for _ in range(MINUTES)]
    for each in runs:
        age = int((now - each.at) / 60.0)
        if age < MINUTES:
            minutes[-1 - age].append(each)
    return tuple(
        (fmean(each.ours_s for each in of), fmean(each.fcfs_s for each in of)) if of else None
        for of in minutes
    )
