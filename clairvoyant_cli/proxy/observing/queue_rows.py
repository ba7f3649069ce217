"""The queue as the front ends see it: its rows, why each stands where it is, and what all of it comes to."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.stepwise_drawing import Steps
from clairvoyant_cli.proxy.queue.exchange import Exchange, Phase
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.servers.pool import BackendPool
from clairvoyant_cli.scheduler.explain import Cause, Standing, Standings
from clairvoyant_cli.scheduler.job import Move
from clairvoyant_cli.scheduler.placement import left_s
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.queued_job import Entry
from clairvoyant_cli.state.selection import NATURAL, SORTS, Order, group_of, narrowed, select, words_of
from clairvoyant_cli.state.snapshot import MoveRecord, PredictionState, QueuedRequest, WaitingState

MAX_ROWS = 1000
"""Rows of one snapshot. All that waits is counted, and any part of it can be asked for."""

LOOKED_AT = 500
"""Rows that are looked at in one step, to choose among them: some four milliseconds."""

DRAWN = 200
"""Rows that are drawn in one step: some two milliseconds."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the queue that is asked for: up to `rows` rows, from the `first` on (from 1) when it stands
    in an `order`. It `explains` predictions if somebody reads why: that takes a millisecond each.
    """

    first: int = 1
    rows: int = MAX_ROWS
    order: Order = NATURAL
    explains: bool = True


@dataclass(slots=True)
class Row:
    """One of all that waits, as it is looked at to choose among them: a record of each would take too long.
    What each property is, `QueuedRequest` says.
    """

    standings: Standings
    place: int
    entry: Entry
    exchange: Exchange
    pool: BackendPool
    now: float

    @property
    def id(self) -> str:
        return self.exchange.id

    @property
    def rank(self) -> int:
        return self.place + 1

    @property
    def age_s(self) -> float:
        return self.now - self.exchange.job.arrival_s

    @property
    def endpoint(self) -> str:
        return self.exchange.asked.route.name

    @property
    def model(self) -> str:
        return self.pool.model_of(self.exchange)

    @property
    def client(self) -> str:
        return self.exchange.client

    @property
    def predicted(self) -> PredictionState:
        return self.exchange.prediction_state

    @property
    def eta_s(self) -> float | None:
        return self.standings.start_s(self.place)

    @property
    def held(self) -> bool:
        return self.entry.held

    @property
    def promoted(self) -> bool:
        return self.entry.promoted

    @property
    def priority(self) -> int:
        entry = self.entry
        return entry.job.priority if entry.promoted else int(entry.rank)

    @property
    def cuts(self) -> int:
        return len(self.exchange.cuts)

    @property
    def urgency(self) -> int | None:
        return self.entry.job.urgency

    @property
    def backends(self) -> tuple[str, ...]:
        job = self.entry.job
        return (job.worker,) if job.worker else tuple(sorted(job.able))

    @property
    def rank_fcfs(self) -> int:
        return self.standings.rank_fcfs(self.place)


@dataclass(slots=True)
class WaitingRows:
    """Draws what waits at one moment: `standings`, and of each the exchange."""

    operation: Operation
    pool: BackendPool
    stats: RequestStats
    now: float
    standings: Standings = field(init=False)
    _exchanges: list[Exchange] = field(init=False)

    def __post_init__(self) -> None:
        dispatcher = self.operation.dispatcher
        self.standings = Standings(dispatcher.scheduler, self.now, sum(self._left_s()), self._slots())
        self._exchanges = [dispatcher.live[entry.job.id] for entry in self.standings.entries]

    def _slots(self) -> int:
        return max(1, self.pool.at_once)

    def _left_s(self) -> Iterator[float]:
        """Yield the predicted seconds until each running request ends."""
        running = self.operation.dispatcher.scheduler.running
        for exchange in self.operation.dispatcher.live.values():
            if exchange.attempt is not None:
                yield left_s(running[exchange.id], self.now)

    def summed(self) -> WaitingState:
        """Return what all that waits comes to."""
        entries = self.standings.entries
        classes = Counter([each.prediction_state.length_class for each in self._exchanges])
        return WaitingState(
            total=len(entries),
            held=sum([each.held for each in entries]),
            suspended=sum([each.cuts > 0 for each in entries]),
            short=classes["short"],
            medium=classes["medium"],
            long=classes["long"],
            clear_s=self.standings.work_s / self._slots(),
        )

    def chosen(self, order: Order) -> Steps[Sequence[Row]]:
        """Return those of all that wait that stand in an order, as it has them."""
        found: list[Row] = []
        for first in range(0, len(self._exchanges), LOOKED_AT):
            rows = self.rows(slice(first, first + LOOKED_AT))
            found += narrowed(rows, order, words=words_of, group=group_of)
            yield
        as_sorted = Order(order.by, order.reverse)
        return select(found, as_sorted, words=words_of, group=group_of, sort=SORTS.get(order.by))

    def rows(self, part: slice) -> list[Row]:
        """Return what waits, or a part of it."""
        entries, exchanges = self.standings.entries, self._exchanges
        return [
            Row(self.standings, place, entries[place], exchanges[place], self.pool, self.now)
            for place in range(len(entries))[part]
        ]

    def drawn(self, rows: Sequence[Row]) -> Steps[tuple[QueuedRequest, ...]]:
        """Return rows drawn, but for what has gone by the end."""
        drawn: list[tuple[QueuedRequest, Exchange]] = []
        for first in range(0, len(rows), DRAWN):
            waits = (row for row in rows[first : first + DRAWN] if row.exchange.phase is Phase.QUEUED)
            drawn += [(self._draw(row), row.exchange) for row in waits]
            yield
        return tuple(row for row, exchange in drawn if exchange.phase is Phase.QUEUED)

    def _draw(self, row: Row) -> QueuedRequest:
        standing, exchange = row.standings[row.place], row.exchange
        return QueuedRequest(
            id=row.id,
            rank=row.rank,
            age_s=row.age_s,
            endpoint=row.endpoint,
            model=row.model,
            client=row.client,
            predicted=row.predicted,
            key=standing.entry.key,
            eta_s=row.eta_s,
            held=row.held,
            promoted=row.promoted,
            priority=row.priority,
            streaming=exchange.asked.parsed.stream,
            prompt_tokens=exchange.asked.parsed.prompt_tokens,
            moves=moves(tuple(standing.entry.moves), self.stats),
            prompt=exchange.asked.prompt,
            tokens=exchange.tokens,
            cuts=row.cuts,
            parts=self.stats.parts(exchange),
            cause=standing.cause.value,
            why=why(standing, self.operation.dispatcher.scheduler),
            urgency=row.urgency,
            urgency_by=standing.entry.job.urgency_by,
            backends=row.backends,
            rank_fcfs=row.rank_fcfs,
            eta_fcfs_s=standing.start_fcfs_s,
        )


def why(standing: Standing, scheduler: Scheduler) -> str:
    """Say in words what a standing rests on."""
    cause, late = standing.cause, f"Past tau for {standing.overdue_s or 0.0:.0f} s"
    if cause is Cause.HELD:
        return "Held by the operator until it is released."
    if cause is Cause.CANNOT:
        text = _why_not(standing, scheduler)
    elif cause is Cause.PROMOTED:
        text = "Sent to the top by the operator."
    elif cause is Cause.GUARD:
        text = f"{late}: the guard starts it next."
    elif cause is Cause.OVERDUE:
        text = f"{late}, {_why_not_yet(standing, scheduler)} {_before(standing)}"
    else:
        text = _before(standing)
        if standing.overdue_s is not None and standing.rank > 1:
            text += f" Past tau in {-standing.overdue_s:.0f} s."
    if standing.entry.job.stands_back and not standing.entry.promoted:
        text += " It stands back: nobody waits for it. After tau, one start in four is for such."
    return f"Paused: nothing is started. {text}" if scheduler.paused else text


def _why_not(standing: Standing, scheduler: Scheduler) -> str:
    job = standing.entry.job
    if job.worker and not scheduler.slots.get(job.worker):
        return f"It goes on where its beginning is, on {job.worker}, which takes no work now."
    if not any(scheduler.slots.values()):
        return "No server takes work now."
    return f"Its client has all the slots it may have ({scheduler.clients.get(job.client, (0, 0))[1]})."


def _why_not_yet(standing: Standing, scheduler: Scheduler) -> str:
    guard = scheduler.policy.guard
    if scheduler.policy.by_share:
        return "the guard starts one request of each client in tau, while several clients wait."
    if standing.overdue_more or guard is None:
        others = plural(standing.overdue_more, "other")
        return f"and {others} by more: the guard takes those first."
    if scheduler.line.since_promotion < guard.every:
        return f"the guard's turn comes after {guard.every - scheduler.line.since_promotion} more by policy."
    return (
        f"but the guard starts it only once it has waited {guard.stretch:g} times as long as the request "
        "that the policy would start."
    )


def moves(of: tuple[Move, ...], stats: RequestStats) -> tuple[MoveRecord, ...]:
    """Date the steps of a request through the queue."""
    return tuple(MoveRecord(stats.journal.at(move.at_s), move.kind.value, move.note) for move in of)


def _before(standing: Standing) -> str:
    urgent, by_policy = standing.ahead_urgent, standing.ahead_policy
    if not urgent and not by_policy:
        return "Nothing stands before it: it takes the next free slot."
    if not urgent:
        return f"Before it: {by_policy} that the policy puts first."
    text = f"Before it: {urgent} more urgent"
    return f"{text}, and {by_policy} that the policy puts first." if by_policy else f"{text}."
