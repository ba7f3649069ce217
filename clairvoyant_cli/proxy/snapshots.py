"""Draws the snapshot: what the daemon is doing right now, as the front ends see it."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from clairvoyant_cli import __version__
from clairvoyant_cli.proxy.access import Access
from clairvoyant_cli.proxy.clients import EVERYBODY
from clairvoyant_cli.proxy.engine_queue import EngineQueues
from clairvoyant_cli.proxy.exchange import Attempt, Exchange, Phase
from clairvoyant_cli.proxy.fallback import quality_of
from clairvoyant_cli.proxy.operation import Operation
from clairvoyant_cli.proxy.pool import BackendPool, Worker
from clairvoyant_cli.proxy.request_stats import RequestStats
from clairvoyant_cli.proxy.urgency import Levels
from clairvoyant_cli.proxy.urgency_stats import UrgencyStats
from clairvoyant_cli.scheduler.entry import Entry
from clairvoyant_cli.scheduler.job import Move
from clairvoyant_cli.scheduler.policy import SERVABLE
from predictor.record import Predictor
from tui.snapshot import (
    BackendState,
    ClientState,
    MoveRecord,
    PredictorState,
    QueuedRequest,
    RunningRequest,
    Snapshot,
    TauState,
    UrgencyState,
)

QUEUE_SHOWN = 1000
RECENT_SHOWN = 100
FIRINGS_SHOWN = 60
CLIENTS_SHOWN = 50
EXPLAINED = 8
EXPLAINED_AFTER_S = 0.25
"""Nobody reads why of a request that is gone in the blink of an eye, and the reasons take a millisecond."""


@dataclass(slots=True)
class SnapshotBuilder:
    """Makes snapshots of a daemon. With `show_prompts`, what drove a prediction may quote the prompt."""

    operation: Operation
    pool: BackendPool
    stats: RequestStats
    access: Access
    predictor: Predictor
    levels: Levels
    urgency_stats: UrgencyStats
    engines: EngineQueues
    listen: str
    started_s: float
    show_prompts: bool = False

    def snapshot(self) -> Snapshot:
        """Return the state as it is now."""
        operation, stats = self.operation, self.stats
        scheduler = operation.dispatcher.scheduler
        now = stats.clock()
        by_class, by_class_fcfs = stats.stats()
        waiting = list(scheduler.waiting())
        alone = Counter(entry.lane.pinned_to for entry in waiting if entry.lane is not None)
        return Snapshot(
            taken_at=stats.at(now),
            daemon_version=__version__,
            pid=os.getpid(),
            listen=self.listen,
            mode=operation.mode,
            uptime_s=now - self.started_s,
            policy=operation.policy,
            policies=SERVABLE,
            tau=self._tau(now),
            predictor=self._predictor(),
            backends=tuple(self._backend(worker, alone[worker.name]) for worker in self.pool),
            running=tuple(self._running(now)),
            queue=tuple(self._queue(waiting, now)),
            recent=tuple(list(stats.recent)[-RECENT_SHOWN:]),
            stats=by_class,
            stats_fcfs=by_class_fcfs,
            clients=self._clients(),
            counters=stats.counters(),
            queue_capacity=scheduler.capacity,
            utilisation=stats.utilisation(self.pool.slots, min(300.0, max(1.0, now - self.started_s))),
            log=tuple(stats.events),
            urgency=self._urgency(),
        )

    def _backend(self, worker: Worker, waiting: int) -> BackendState:
        backend = worker.backend
        return BackendState(
            name=backend.name,
            kind=backend.adapter.name,
            url=backend.upstream.url + backend.prefix,
            state=backend.state,
            slots=backend.room,
            busy=len(self.operation.dispatcher.attempts_on(worker.name)),
            version=backend.version,
            detail=backend.detail,
            models=backend.models,
            decode_tokens_per_s=backend.speeds.decode_tokens_per_s,
            prefill_tokens_per_s=backend.speeds.prefill_tokens_per_s,
            swaps_total=backend.swaps,
            standing=worker.standing,
            waiting=waiting,
            offered=None if backend.offered is None else len(backend.offered),
            weight=worker.weight,
            stamped=backend.stamps is not None,
            engine=backend.engine if backend.stamps is not None else None,
            heeded=self.engines.heeded(worker),
        )

    def _tau(self, now: float) -> TauState:
        operation = self.operation
        firings = operation.dispatcher.firings
        return TauState(
            tau_s=operation.tau_s,
            mu_short_s=operation.mu_short_s or self.stats.mu_short_s(),
            source=operation.tau_source,
            firings_total=operation.dispatcher.scheduler.tau_firings,
            firings_last_minute=sum(now - at <= 60 for at in firings),
            recent=tuple(self.stats.at(at) for at in firings[-FIRINGS_SHOWN:]),
        )

    def _urgency(self) -> UrgencyState:
        dispatcher, stats, predictor = self.operation.dispatcher, self.urgency_stats, self.levels.predictor
        return UrgencyState(
            levels=stats.levels(list(dispatcher.live.values())),
            predictor="" if predictor is None else predictor.name,
            target_s=stats.target_s,
            late=stats.late,
            overruled=self.levels.totals(dispatcher.scheduler.claims.refused),
        )

    def _predictor(self) -> PredictorState:
        name = self.predictor.name
        quality = quality_of(self.predictor)
        if quality is None:
            return PredictorState(name)
        return PredictorState(
            name, quality.judged, quality.ranking_accuracy, quality.q90_coverage, quality.trusted
        )

    def _clients(self) -> tuple[ClientState, ...]:
        """Return the busiest of those that have something here, had something today, or have a rule."""
        clients, today = self.access.clients, self.stats.today
        here = self.operation.dispatcher.scheduler.clients
        names = here.keys() | today.clients | clients.rules.keys()
        busiest = nsmallest(
            CLIENTS_SHOWN, names, key=lambda name: (-sum(here.get(name, (0, 0))), -today.had(name), name)
        )
        return tuple(self._client(name, *here.get(name, (0, 0))) for name in busiest)

    def _client(self, name: str, waiting: int, running: int) -> ClientState:
        rules = self.access.clients.rules_of(name)
        return ClientState(
            name=name,
            waiting=waiting,
            running=running,
            tokens_today=self.stats.today.had(name),
            weight=rules.weight,
            max_waiting=rules.max_waiting,
            max_running=rules.max_running,
            tau_s=rules.tau_s,
            priority=rules.priority,
            tokens_per_day=rules.tokens_per_day,
            ruled=rules != EVERYBODY,
            urgency=rules.urgency,
            overruled=self.levels.overruled(name, self.operation.dispatcher.scheduler.claims.refused),
        )

    def _explain(self, exchange: Exchange, now: float) -> None:
        """Have the prediction explained, once and only while somebody looks.

        The telling words of a prompt are prompt text.
        """
        explain = getattr(self.predictor, "explain", None)
        view = exchange.asked.parsed.view
        if explain is None or view is None or exchange.is_explained:
            return
        if now - exchange.job.arrival_s < EXPLAINED_AFTER_S:
            return
        shown = self.show_prompts
        reasons = explain(view)
        exchange.explained(
            tuple((what, by) for what, by in reasons if shown or not what.startswith("words:"))
        )

    def _running(self, now: float) -> list[RunningRequest]:
        live = self.operation.dispatcher.live.values()
        running = [(exchange, exchange.attempt) for exchange in live if exchange.attempt is not None]
        for exchange, _ in running[:EXPLAINED]:
            self._explain(exchange, now)
        inside_s = self.engines.ends_in_s(now)
        return [
            self._one_running(exchange, attempt, inside_s.get(exchange.id), now)
            for exchange, attempt in running
        ]

    def _one_running(
        self, exchange: Exchange, attempt: Attempt, inside_s: float | None, now: float
    ) -> RunningRequest:
        tokens, first_byte_s = attempt.tokens, attempt.first_byte_s  # of the part that runs
        rate = None
        if first_byte_s is not None and now - first_byte_s > 0.2 and tokens > 1:
            rate = tokens / (now - first_byte_s)
        elapsed_s = now - attempt.granted_s
        ends_in_s = attempt.expected_s - exchange.service_s(now) if inside_s is None else inside_s
        releasing = exchange.phase is Phase.RELEASING
        return RunningRequest(
            id=exchange.id,
            backend=attempt.worker,
            state=exchange.phase.value,
            endpoint=exchange.asked.route.name,
            model=exchange.asked.parsed.model,
            client=exchange.job.client,
            predicted=exchange.prediction_state,
            waited_s=exchange.waited_s(now),
            elapsed_s=elapsed_s,
            ttft_s=exchange.ttft_s,
            tokens=exchange.tokens,
            tokens_per_s=rate,
            eta_s=None if releasing else max(0.0, ends_in_s),
            stamp=attempt.priority,
            dispatched_by=exchange.dispatched_by,
            streaming=exchange.asked.parsed.stream,
            moves=self._moves(attempt.moves),
            prompt=exchange.asked.prompt,
            slot=attempt.slot,
            cuts=len(exchange.cuts),
            parts=self.stats.parts(exchange),
            uncut=exchange.uncut_because,
            urgency=exchange.job.urgency,
            urgency_by=exchange.job.urgency_by,
        )

    def _queue(self, waiting: Sequence[Entry], now: float) -> list[QueuedRequest]:
        dispatcher = self.operation.dispatcher
        slots = max(1, self.pool.answering)
        ahead_s = sum(
            max(0.0, e.attempt.expected_s - e.service_s(now))
            for e in dispatcher.live.values()
            if e.attempt is not None
        )
        shown: list[QueuedRequest] = []
        for rank, entry in enumerate(waiting[:QUEUE_SHOWN], 1):
            exchange = dispatcher.live[entry.job.id]
            if rank <= EXPLAINED:
                self._explain(exchange, now)
            shown.append(self._one_queued(exchange, entry, rank, ahead_s / slots, now))
            ahead_s += entry.remaining_s
        return shown

    def _one_queued(
        self, exchange: Exchange, entry: Entry, rank: int, eta_s: float, now: float
    ) -> QueuedRequest:
        return QueuedRequest(
            id=exchange.id,
            rank=rank,
            age_s=now - exchange.job.arrival_s,
            endpoint=exchange.asked.route.name,
            model=exchange.asked.parsed.model,
            client=exchange.job.client,
            predicted=exchange.prediction_state,
            key=entry.key,
            eta_s=None if entry.held else eta_s,
            held=entry.held,
            promoted=entry.promoted,
            priority=entry.job.priority if entry.promoted else int(entry.rank),
            streaming=exchange.asked.parsed.stream,
            prompt_tokens=exchange.asked.parsed.prompt_tokens,
            moves=self._moves(tuple(entry.moves)),
            prompt=exchange.asked.prompt,
            tokens=exchange.tokens,
            cuts=len(exchange.cuts),
            parts=self.stats.parts(exchange),
            urgency=entry.job.urgency,
            urgency_by=entry.job.urgency_by,
            backends=(entry.job.worker,) if entry.job.worker else tuple(sorted(entry.job.able)),
        )

    def _moves(self, moves: tuple[Move, ...]) -> tuple[MoveRecord, ...]:
        at = self.stats.at
        return tuple(MoveRecord(at(move.at_s), move.kind.value, move.note) for move in moves)
