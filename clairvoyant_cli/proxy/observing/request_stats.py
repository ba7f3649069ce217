"""Keeps recent requests, and waits by class and urgency level, of those served. All bounded."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clairvoyant_cli.protocols import printable as plain
from clairvoyant_cli.proxy.access.clients import ClientCounts
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.observing.request_views import finished_request
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.scheduler.job import Job, MoveKind
from clairvoyant_cli.scheduler.urgency import LEVELS, level_of
from clairvoyant_cli.state.snapshot import MAX_RECENT, ClassStats, FinishedRequest, LevelState, Percentiles
from predictor.record import LengthClass
from profiles.percentiles import percentile

log = logging.getLogger("clairvoyant")

WINDOW, LEVEL_WINDOW = 1000, 500
URGENCY_TARGET_S = 10.0  # a request of level 0 should not wait for longer
STATS_EVERY_S = 1.0


@dataclass(slots=True)
class RequestStats:
    """Recent requests, and times by class."""

    journal: Journal
    urgency_target_s: float = URGENCY_TARGET_S
    late: int = 0  # requests of level 0 that first waited beyond the target
    recent: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    times: dict[LengthClass, deque[tuple[float, float]]] = field(  # waits and sojourn times
        default_factory=lambda: {each: deque(maxlen=WINDOW) for each in LengthClass}
    )
    tokens: ClientCounts = field(default_factory=ClientCounts)
    _waits_s: list[deque[float]] = field(  # by urgency level
        default_factory=lambda: [deque(maxlen=LEVEL_WINDOW) for _ in range(LEVELS)]
    )
    _watched: set[str] = field(default_factory=set)
    _stats: tuple[float, tuple[ClassStats, ...]] | None = None

    def arrived(self, exchange: Exchange) -> None:
        """Count a request that has joined the queue."""
        self.journal.counts["submitted"] += 1
        if exchange.job.urgency == 0:
            self.watch(exchange.job)

    def ended(self, of: Ended) -> None:
        """Record an ended request, and log it."""
        self.journal.counts[of.outcome.value] += 1
        if of.generated > 0:
            self.tokens.add(of.principal, of.generated)
        if of.last is not NOWHERE:
            self._waits_s[of.level].append(of.waited_s)
        if of.counts:
            self.times[LengthClass(of.length_class)].append((of.waited_s, of.sojourn_s))
        self.recent.append(finished_request(of))
        self._watched.discard(of.id)
        log.info("%s", _line(of))

    def watch(self, job: Job) -> None:
        """Watch a queued request of level 0; call it whenever a request becomes one."""
        if job.urgency == 0 and not _has_started(job) and job.id not in self._watched:
            self._watched.add(job.id)
            due_s = job.arrival_s + self.urgency_target_s - self.journal.clock()
            asyncio.get_running_loop().call_later(max(due_s, 0.0), self._due, job)

    def _due(self, job: Job) -> None:
        if job.id not in self._watched:
            return  # it has ended
        if _has_started(job) or job.urgency != 0:
            self._watched.discard(job.id)
            return
        self.late += 1
        age_s = self.journal.clock() - job.arrival_s
        news = f"request {job.id} of level 0 has waited {age_s:.1f} s"
        self.journal.event(logging.WARNING, f"{news} (target {self.urgency_target_s:g} s)")

    def levels(self, waiting: Iterable[Job], running: Iterable[Job]) -> tuple[LevelState, ...]:
        """Return the state of each urgency level, given all jobs that are here."""
        now, runs = self.journal.clock(), Counter(map(level_of, running))
        ages_s: list[list[float]] = [[] for _ in range(LEVELS)]
        for job in waiting:
            ages_s[level_of(job)].append(now - job.arrival_s)
        return tuple(
            LevelState(level, len(ages), runs[level], max(ages, default=0.0), percentiles(waits_s))
            for level, (ages, waits_s) in enumerate(zip(ages_s, self._waits_s, strict=True))
        )

    def stats(self) -> tuple[ClassStats, ...]:
        """Return percentiles by class of the answer, at most 1 s old."""
        now = self.journal.clock()
        if self._stats is None or now - self._stats[0] > STATS_EVERY_S:
            stats = tuple(
                ClassStats(each.value, *map(percentiles, zip(*of, strict=True) if of else ((), ())))
                for each, of in self.times.items()
            )
            self._stats = now, stats
        return self._stats[1]

    def mu_short_s(self) -> float | None:
        """Return the mean sojourn time of recent Short answers (Clairvoyant, section 3.4)."""
        times = self.times[LengthClass.SHORT]
        return sum(sojourn_s for _, sojourn_s in times) / len(times) if times else None


def _has_started(job: Job) -> bool:
    return any(move.kind is MoveKind.DISPATCHED for move in job.moves)


def _line(of: Ended) -> str:
    """Return an ended request as a line of the log."""
    tokens, ttft = "-" if of.tokens is None else of.tokens, "-" if of.ttft_s is None else f"{of.ttft_s:.3f}s"
    urgency = "-" if of.urgency is None else f"{of.urgency}/{of.urgency_by}"
    return (
        f"{of.id} {of.endpoint} {of.status} {of.outcome} model={plain.field(of.model)} "
        f"class={of.predicted_class} expected={int(of.prediction.expected_tokens)} tokens={tokens} "
        f"wait={of.waited_s:.3f}s ttft={ttft} total={of.sojourn_s:.3f}s by={of.last.reason or '-'} "
        f"backend={of.last.backend or '-'} cuts={of.cuts} repeats={of.repeats} urgency={urgency} "
        f"note={plain.field(of.remark)} client={plain.field(of.client)}"
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """Return P50, P95 and P99."""
    if not values:
        return Percentiles()
    ordered = sorted(values)
    return Percentiles(len(ordered), *(percentile(ordered, share) for share in (0.50, 0.95, 0.99)))
