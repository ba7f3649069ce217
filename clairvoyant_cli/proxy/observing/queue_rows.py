"""Builds the queue's part of the state: its rows, why each is where it is, totals; and notices a backlog."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean

from clairvoyant_cli.proxy.observing.request_views import RequestViews
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.scheduler.arrival_order import MAX_TURNS
from clairvoyant_cli.scheduler.explain import Standing, Standings, why
from clairvoyant_cli.scheduler.forecast_ranges import ForecastRanges
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.state.snapshot import ArrivalTurn, QueuedRequest, Snapshot, WaitingState

MAX_ROWS, STREAMED_ROWS = 1024, 256
"""Rows of one state, in scheduling order: the whole queue at its default limit, and as many as dashboards get
several times a second. All totals are of the whole queue.
"""

AT_ONCE = 100
"""Rows that are built in one step: a row takes some 0.02 ms, and the forecast of its start as much."""

SAMPLE_S = 10.0
STANDS_S = 180.0
"""The time over which arrivals are compared with service."""

HELD_SHARE = 0.8
"""A backlog is over once the queue is shorter than this share of what it was."""


@dataclass(slots=True)
class Backlog:
    """How long as many requests have arrived as were served, from samples of the queue's length: its mean
    over the last minute is not below those of the two minutes before. Held and background requests and
    parked sessions do not count, nor time during which nothing could start.
    """

    scheduler: Scheduler
    clock: Callable[[], float]
    per_minute: float | None = None  # by how many it grows; None in the first minutes
    _since_s: float = 0.0
    _stands: bool = False
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def stands_for_s(self) -> float | None:
        """Seconds since the queue was last empty; None if that was a short time ago, or it gets shorter."""
        return self.clock() - self._since_s if self._stands else None

    def look(self) -> None:
        """Look at the queue, at each change of it and every few seconds."""
        scheduler, samples, now = self.scheduler, self._samples, self.clock()
        if scheduler.queue.interactive and samples and now - samples[-1][0] < SAMPLE_S:
            return
        able = scheduler.queue.interactive and not scheduler.paused and any(scheduler.slots.values())
        length = sum(each.interactive and each.ready for each in scheduler) if able else 0
        if not length:
            samples.clear()
            self._stands, self.per_minute = False, None
            return
        if not samples:
            self._since_s = now
        samples.append((now, length))
        while len(samples) > 1 and samples[1][0] <= now - STANDS_S:
            samples.popleft()
        if now - samples[0][0] >= STANDS_S:
            lengths = [length for _, length in samples]
            third = max(1, len(lengths) // 3)
            first, last = fmean(lengths[:third]), fmean(lengths[-third:])
            self.per_minute = (last - first) * 1.5 * 60.0 / (now - samples[0][0])  # between their middles
            before = max(first, fmean(lengths[third:-third] or lengths[:third]))
            self._stands = last >= before * (HELD_SHARE if self._stands else 1.0)


@dataclass(slots=True)
class WaitingRows:
    """The queue at one moment."""

    operation: Operation
    pool: ServerPool
    views: RequestViews
    now: float
    ranges: ForecastRanges
    standings: Standings = field(init=False)
    exchanges: list[Exchange] = field(init=False)

    def __post_init__(self) -> None:
        dispatcher = self.operation.dispatcher
        running = dispatcher.scheduler.running
        work_s = sum(run.left_s(self.now) for run in running.values())
        slots = max(1, self.pool.at_once)
        self.standings = Standings(dispatcher.scheduler, self.now, work_s, slots, self.ranges)
        self.exchanges = [dispatcher.live[job.id] for job in self.standings.jobs]

    def totals(self) -> WaitingState:
        """Return the totals of the whole queue; those stranded if a server is away."""
        entries = self.standings.jobs
        away = any(server.health.given_up_in_s is not None for server in self.pool)
        ends_s = [self._refused_in_s(each) for each in self.exchanges] if away else []
        refused_s = [each for each in ends_s if each is not None]
        classes = Counter([each.asked.prediction.length_class.value for each in self.exchanges])
        return WaitingState(
            total=len(entries),
            held=sum([each.held for each in entries]),
            short=classes["short"],
            medium=classes["medium"],
            long=classes["long"],
            late=self.standings.late,
            stranded=len(refused_s),
            refused_in_s=min(refused_s, default=None),
        )

    def _refused_in_s(self, exchange: Exchange) -> float | None:
        return self.pool.refused_in_s(exchange, self.operation.patience_s(exchange))

    def steps(self, number: int) -> Iterator[list[QueuedRequest]]:
        """Yield the first rows, some at a time, and an empty list before them after every few milliseconds of
        work. The queue may change meanwhile: what has left it by then has no row.
        """
        number = min(number, len(self.standings))
        for some in range(AT_ONCE, number, AT_ONCE):
            self.standings.forecast(some)
            yield []
        self.standings.order(number)
        for at in range(0, number, AT_ONCE):
            some_of = self.standings[at : min(at + AT_ONCE, number)]
            yield [self._row(each) for each in some_of if self._waits(each.job.id)]

    def _waits(self, job_id: str) -> bool:
        exchange = self.operation.dispatcher.live.get(job_id)
        return exchange is not None and exchange.attempt is None

    def first(self, number: int) -> list[Exchange]:
        """Return the requests that start first, of those that are still here."""
        live = self.operation.dispatcher.live
        return [live[each.job.id] for each in self.standings[:number] if each.job.id in live]

    def _row(self, standing: Standing) -> QueuedRequest:
        exchange = self.operation.dispatcher.live[standing.job.id]
        said = why(standing, self.operation.dispatcher.scheduler, self.pool.name_of)
        refused_in_s = self._refused_in_s(exchange) if standing.start is None else None
        return self.views.queued(exchange, standing, self.now, why=said, refused_in_s=refused_in_s)


def clearing(state: Snapshot, work_s: float) -> WaitingState:
    """Return the totals with when all requests that are here are done, by the forecasts of the rows. Those
    that are not listed follow them. `work_s` is the predicted work of all.
    """
    ends = [(row.eta_low_s, row.eta_s, row.eta_high_s, 0.0) for row in state.running]
    ends += [(row.eta_low_s, row.eta_s, row.eta_high_s, row.expected_s or 0.0) for row in state.queue]
    known = [
        (low_s + more_s, mid_s + more_s, high_s + more_s)
        for low_s, mid_s, high_s, more_s in ends
        if low_s is not None and mid_s is not None and high_s is not None
    ]
    listed_s = sum(row.eta_s or 0.0 for row in state.running) + sum(
        row.expected_s or 0.0 for row in state.queue
    )
    rest_s = max(work_s - listed_s, 0.0) / max(1, state.slots[1]) if state.waits > len(state.queue) else 0.0
    low_s, mid_s, high_s = (
        (max(each) + rest_s for each in zip(*known, strict=True)) if known else (rest_s,) * 3
    )
    return replace(state.waiting, clear_s=mid_s, clear_low_s=low_s, clear_high_s=high_s)


def to_come(state: Snapshot) -> Iterator[ArrivalTurn]:
    """Yield when running requests end, and when and where the first of the queue have their slots then."""
    now, free_at = state.taken_at, dict[tuple[str, int], float]()
    for server in state.backends:
        free_at |= {(server.name, slot): 0.0 for slot in range(server.slots)}
    for run in state.running:
        if run.slot is not None and run.eta_s:
            free_at[run.backend, run.slot] = now + run.eta_s
            yield ArrivalTurn(run.id, run.backend, run.slot, run.waited_s, now, now + run.eta_s)
    for row in sorted(state.queue[:MAX_TURNS], key=lambda row: row.eta_s or 0.0):
        able = [slot for slot in free_at if not row.backends or slot[0] in row.backends]
        if row.eta_s is None or row.expected_s is None or not able:
            continue
        slot = min(able, key=free_at.__getitem__)
        begun_at = max(now + row.eta_s, free_at[slot])
        free_at[slot] = begun_at + row.expected_s
        yield ArrivalTurn(row.id, *slot, row.age_s + row.eta_s, begun_at, free_at[slot])
