"""Keeps counts, recent requests and waits by class of the requests served. All bounded."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clairvoyant_cli.protocols import printable as plain
from clairvoyant_cli.proxy.access.clients import ClientCounts
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, Phase, Reasons, RequestEnd
from clairvoyant_cli.scheduler.arrival_order import ArrivalOrder, Compared
from clairvoyant_cli.scheduler.urgency import LEVELS, level_of
from clairvoyant_cli.state.snapshot import (
    MAX_RECENT,
    AnswerPart,
    ClassStats,
    Counters,
    FinishedRequest,
    LevelState,
    Percentiles,
    PredictionState,
)
from predictor.record import LengthClass, Prediction
from profiles.percentiles import percentile

log = logging.getLogger("clairvoyant")

WINDOW, LEVEL_WINDOW = 1000, 500
STATS_EVERY_S = 1.0


class Times(NamedTuple):
    """Wait and sojourn time of a request."""

    wait_s: float
    sojourn_s: float


class Ran(NamedTuple):
    """What is kept of an ended request until its wait in order of arrival is known: that may take minutes."""

    id: str
    model: str
    server_id: str
    ended_s: float
    waited_s: float
    service_s: float
    tokens: int


@dataclass(slots=True)
class RequestStats:
    """Counts, recent requests and times by class. `compared` is called with each request that was compared
    with the order of arrival.
    """

    journal: Journal
    model_of: Callable[[Exchange], str]
    name_of: Callable[[str], str]  # a server's label, by its id
    compared: Callable[[Ran, Compared], None]
    urgency_target_s: float
    late: int = 0  # requests of level 0 that first waited beyond the target
    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    submitted: int = 0
    passed_through: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by kind, also those that were never queued
    cuts: int = 0
    resumes: int = 0
    recomputed_tokens: int = 0
    repeats: int = 0
    recent: deque[FinishedRequest] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    times: dict[LengthClass, deque[Times]] = field(
        default_factory=lambda: {each: deque(maxlen=WINDOW) for each in LengthClass}
    )
    arrival_order: ArrivalOrder = field(default_factory=ArrivalOrder)
    services_s: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    busy: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    tokens: ClientCounts = field(default_factory=ClientCounts)
    # Of a thousand waiting requests these are a tenth of a snapshot's time. Kept until the request ends.
    _predicted: dict[str, tuple[Prediction, Reasons, PredictionState]] = field(default_factory=dict)
    _waits_s: list[deque[float]] = field(  # by urgency level
        default_factory=lambda: [deque(maxlen=LEVEL_WINDOW) for _ in range(LEVELS)]
    )
    _watched: set[str] = field(default_factory=set)
    _stats: tuple[float, tuple[ClassStats, ...]] | None = None

    def repeated(self, exchange: Exchange, why: str) -> None:
        """Count an answer that broke off and is asked for again, unnoticed by its client."""
        self.repeats += 1
        server = "" if exchange.attempt is None else self.name_of(exchange.attempt.server_id)
        how = "goes on" if exchange.has_begun else "is asked for again"
        self.journal.event(
            logging.WARNING, f"{server} broke off the answer to {exchange.id} ({why}): it {how}"
        )

    def arrived(self, exchange: Exchange) -> None:
        """Count a request that has joined the queue."""
        self.submitted += 1
        self.watch(exchange)

    def settle(self, exchange: Exchange, end: RequestEnd) -> None:
        """Have an ended request compared with the order of arrival, once its wait in that is known."""
        ran, now, attempt = None, end.at_s, exchange.attempt
        if _counts(exchange):
            ran = Ran(
                exchange.id,
                exchange.asked.parsed.model,
                "" if attempt is None else attempt.server_id,
                now,
                exchange.waited_s(now),
                exchange.service_s(now),
                exchange.totals.tokens or 0,
            )
        self.arrival_order.ended(exchange.id, ran, exchange.resumed_s)

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Record an ended request, and log it."""
        now, asked, attempt = end.at_s, exchange.asked, exchange.attempt
        self.counts[end.outcome] += 1
        if (generated := exchange.generated(now)) > 0:
            self.tokens.add(exchange.job.client, generated)
        backend = self.name_of(attempt.server_id) if attempt else ""
        waited_s, sojourn_s, ttft_s = exchange.waited_s(now), exchange.sojourn_s(now), exchange.ttft_s
        totals, told, dispatched_by = exchange.totals, exchange.told, exchange.dispatched_by
        tokens = totals.tokens if totals.complete else None
        if attempt is not None:
            self.services_s.append(exchange.service_s(now))
            self._waits_s[level_of(exchange.job)].append(waited_s)
            for each in exchange.held_slots:
                self.busy.append((each.granted_s, each.ended_s or now))
        if _counts(exchange):
            self.times[LengthClass.of(tokens or 0)].append(Times(waited_s, sojourn_s))
        self.recent.append(
            FinishedRequest(
                **self.common(exchange),
                finished_at=self.journal.at(now),
                outcome=end.outcome.value,
                status=end.status,
                waited_s=waited_s,
                sojourn_s=sojourn_s,
                ttft_s=ttft_s,
                tokens=tokens,
                dispatched_by=dispatched_by,
                backend=backend,
                slot=attempt.slot if attempt else None,
                expected_s=attempt.expected_s if attempt else None,
                remark=told,
                real_class="" if tokens is None else LengthClass.of(tokens).value,
            )
        )
        self._predicted.pop(exchange.id, None)
        self._watched.discard(exchange.id)
        if not log.isEnabledFor(logging.INFO):
            return
        log.info(
            "%s %s %d %s model=%s class=%s expected=%d tokens=%s "
            "wait=%.3fs ttft=%s total=%.3fs by=%s backend=%s cuts=%d repeats=%d urgency=%s note=%s client=%s",
            exchange.id,
            asked.route.name,
            end.status,
            end.outcome.value,
            plain.field(asked.parsed.model),
            asked.prediction.length_class.value,
            asked.prediction.expected_tokens,
            "-" if tokens is None else tokens,
            waited_s,
            "-" if ttft_s is None else f"{ttft_s:.3f}s",
            sojourn_s,
            dispatched_by or "-",
            backend or "-",
            len(exchange.cuts),
            exchange.repeats,
            "-" if exchange.job.urgency is None else f"{exchange.job.urgency}/{exchange.job.urgency_by}",
            plain.field(told),
            plain.field(exchange.client),
        )

    def common(self, exchange: Exchange) -> dict[str, Any]:
        """Return what the states of queued, running and ended requests have in common."""
        at, parts = self.journal.at, []
        for part in exchange.held_slots if exchange.cuts else ():
            ended_s = part.ended_s or exchange.ended_s
            ended_at = None if ended_s is None else at(ended_s)
            parts.append(
                AnswerPart(at(part.granted_s), ended_at, part.tokens, self.name_of(part.server_id), part.slot)
            )
        return {
            "id": exchange.id,
            "endpoint": exchange.asked.route.name,
            "model": self.model_of(exchange),
            "client": exchange.client,
            "predicted": self._predicted_of(exchange),
            "cuts": len(exchange.cuts),
            "parts": tuple(parts),
            "urgency": exchange.job.urgency,
            "urgency_by": exchange.job.urgency_by,
        }

    def _predicted_of(self, exchange: Exchange) -> PredictionState:
        prediction, reasons = exchange.asked.prediction, exchange.reasons
        known = self._predicted.get(exchange.id)
        if known is None or known[0] is not prediction or known[1] is not reasons:
            known = prediction, reasons, _prediction_state(prediction, reasons)
            if exchange.end is None:  # one that has ended is shown until its slot is free
                self._predicted[exchange.id] = known
        return known[2]

    def watch(self, exchange: Exchange) -> None:
        """Watch a queued request of level 0; call it whenever a request becomes one."""
        if exchange.job.urgency != 0 or exchange.phase is not Phase.QUEUED or exchange.cuts:
            return
        if exchange.id not in self._watched:
            self._watched.add(exchange.id)
            due_s = exchange.job.arrival_s + self.urgency_target_s - self.journal.clock()
            asyncio.get_running_loop().call_later(max(due_s, 0.0), self._due, exchange)

    def _due(self, exchange: Exchange) -> None:
        if exchange.attempts or exchange.end is not None or exchange.job.urgency != 0:
            self._watched.discard(exchange.id)
            return
        self.late += 1
        age_s = self.journal.clock() - exchange.job.arrival_s
        news = f"request {exchange.id} of level 0 has waited {age_s:.1f} s"
        self.journal.event(logging.WARNING, f"{news} (target {self.urgency_target_s:g} s)")

    def levels(self, live: list[Exchange]) -> tuple[LevelState, ...]:
        """Return the state of each urgency level, given all live requests."""
        levels, now = [], self.journal.clock()
        by_level: list[list[Exchange]] = [[] for _ in range(LEVELS)]
        for exchange in live:
            by_level[level_of(exchange.job)].append(exchange)
        for level, (here, waits_s) in enumerate(zip(by_level, self._waits_s, strict=True)):
            ages_s = [now - each.job.arrival_s for each in here if each.attempt is None]
            running, longest_s = len(here) - len(ages_s), max(ages_s, default=0.0)
            levels.append(LevelState(level, len(ages_s), running, longest_s, percentiles(list(waits_s))))
        return tuple(levels)

    def compare(self) -> None:
        """Compare the waits that have become known with those in order of arrival."""
        for pair in self.arrival_order.settle(self.journal.clock()):
            self.compared(pair.of, pair)

    def rejected_early(self, endpoint: str, status: int) -> None:
        """Count a request that was rejected before its body was read."""
        self.submitted += 1
        self.counts[Outcome.REJECTED] += 1
        log.info("- %s %d rejected", endpoint, status)

    def counters(self) -> Counters:
        """Return the counts since the start."""
        counts = {outcome.value: n for outcome, n in self.counts.items()}
        own = ("submitted", "passed_through", "cuts", "resumes", "recomputed_tokens", "repeats")
        return Counters(**counts, **{name: getattr(self, name) for name in own})

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
        return sum(t.sojourn_s for t in times) / len(times) if times else None

    def retry_after_s(self, waiting: int) -> float:
        """Estimate when there will be room: the time that a tenth of the queue takes."""
        mean_s = sum(self.services_s) / len(self.services_s) if self.services_s else 2.0
        return max(1.0, mean_s * max(1, waiting // 10))

    def utilisation(self, slots: int, over_s: float, running: Iterable[float] = ()) -> float:
        """Return rho over the last `over_s` seconds; `running` is when the busy slots were granted."""
        now = self.journal.clock()
        since = now - over_s
        work_s = sum(end - max(start, since) for start, end in self.busy if end > since)
        work_s += sum(now - max(start, since) for start in running)
        return min(1.0, work_s / (over_s * max(1, slots)))


def _prediction_state(prediction: Prediction, reasons: Reasons) -> PredictionState:
    return PredictionState(
        length_class=prediction.length_class.value,
        p_short=prediction.p_short,
        p_medium=prediction.p_medium,
        p_long=prediction.p_long,
        expected_tokens=prediction.expected_tokens,
        q90_tokens=prediction.q90_tokens,
        source=prediction.source,
        features=reasons or (),
    )


def _counts(exchange: Exchange) -> bool:
    """Return whether a request counts: answered whole, of known length, and not in the background."""
    end, totals = exchange.end, exchange.totals
    is_whole = end is not None and end.outcome is Outcome.COMPLETED and totals.complete
    return is_whole and totals.tokens is not None and exchange.job.interactive


def percentiles(values: Sequence[float]) -> Percentiles:
    """Return P50, P95 and P99."""
    if not values:
        return Percentiles()
    ordered = sorted(values)
    return Percentiles(len(ordered), *(percentile(ordered, share) for share in (0.50, 0.95, 0.99)))
