"""Draws the snapshot: what the daemon is doing right now, as the front ends see it."""

import os
from dataclasses import dataclass
from heapq import nsmallest

from clairvoyant_cli import __version__
from clairvoyant_cli.proxy.clients import EVERYBODY
from clairvoyant_cli.proxy.exchange import Exchange, Phase
from clairvoyant_cli.proxy.fallback import quality_of
from clairvoyant_cli.proxy.gateway import Gateway
from clairvoyant_cli.scheduler.entry import Entry
from clairvoyant_cli.scheduler.job import Move
from clairvoyant_cli.scheduler.policy import SERVABLE
from tui.snapshot import (
    BackendState,
    ClientState,
    MoveRecord,
    PredictorState,
    QueuedRequest,
    RunningRequest,
    Snapshot,
    TauState,
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
    """Makes snapshots of one gateway."""

    gateway: Gateway
    listen: str
    started_s: float
    tau_source: str = "default"
    mu_short_s: float | None = None

    @property
    def mode(self) -> str:
        """What the daemon does with requests: "serving", "paused" or "draining"."""
        if self.gateway.draining:
            return "draining"
        return "paused" if self.gateway.dispatcher.scheduler.paused else "serving"

    def snapshot(self) -> Snapshot:
        """Return the state as it is now."""
        gateway = self.gateway
        request_stats, scheduler = gateway.request_stats, gateway.dispatcher.scheduler
        now = request_stats.clock()
        backend = gateway.watch.backend
        stats, stats_fcfs = request_stats.stats()
        return Snapshot(
            taken_at=request_stats.at(now),
            daemon_version=__version__,
            pid=os.getpid(),
            listen=self.listen,
            mode=self.mode,
            uptime_s=now - self.started_s,
            policy=scheduler.policy.name,
            policies=SERVABLE,
            tau=self._tau(now),
            predictor=self._predictor(),
            backends=(
                BackendState(
                    name=backend.name,
                    kind=backend.adapter.name,
                    url=backend.upstream.url + backend.prefix,
                    state=backend.state,
                    slots=backend.slots,
                    busy=len(scheduler.running),
                    version=backend.version,
                    detail=backend.detail,
                    models=backend.models,
                    decode_tokens_per_s=backend.speeds.decode_tokens_per_s,
                    prefill_tokens_per_s=backend.speeds.prefill_tokens_per_s,
                    swaps_total=backend.swaps,
                ),
            ),
            running=tuple(self._running(now)),
            queue=tuple(self._queue(now)),
            recent=tuple(list(request_stats.recent)[-RECENT_SHOWN:]),
            stats=stats,
            stats_fcfs=stats_fcfs,
            clients=self._clients(),
            counters=request_stats.counters(),
            queue_capacity=scheduler.capacity,
            utilisation=request_stats.utilisation(backend.slots, min(300.0, max(1.0, now - self.started_s))),
            log=tuple(request_stats.events),
        )

    def _tau(self, now: float) -> TauState:
        dispatcher = self.gateway.dispatcher
        firings = dispatcher.firings
        return TauState(
            tau_s=dispatcher.scheduler.tau_s,
            mu_short_s=self.mu_short_s or self.gateway.request_stats.mu_short_s(),
            source=self.tau_source,
            firings_total=dispatcher.scheduler.tau_firings,
            firings_last_minute=sum(now - at <= 60 for at in firings),
            recent=tuple(self.gateway.request_stats.at(at) for at in firings[-FIRINGS_SHOWN:]),
        )

    def _predictor(self) -> PredictorState:
        name = self.gateway.predictor.name
        quality = quality_of(self.gateway.predictor)
        if quality is None:
            return PredictorState(name)
        return PredictorState(
            name, quality.judged, quality.ranking_accuracy, quality.q90_coverage, quality.trusted
        )

    def _clients(self) -> tuple[ClientState, ...]:
        """Return the busiest of those that have something here, had something today, or have a rule."""
        clients, today = self.gateway.access.clients, self.gateway.request_stats.today
        here = self.gateway.dispatcher.scheduler.clients
        names = here.keys() | today.clients | clients.rules.keys()
        busiest = nsmallest(
            CLIENTS_SHOWN, names, key=lambda name: (-sum(here.get(name, (0, 0))), -today.had(name), name)
        )
        return tuple(self._client(name, *here.get(name, (0, 0))) for name in busiest)

    def _client(self, name: str, waiting: int, running: int) -> ClientState:
        rules = self.gateway.access.clients.rules_of(name)
        return ClientState(
            name=name,
            waiting=waiting,
            running=running,
            tokens_today=self.gateway.request_stats.today.had(name),
            weight=rules.weight,
            max_waiting=rules.max_waiting,
            max_running=rules.max_running,
            tau_s=rules.tau_s,
            priority=rules.priority,
            tokens_per_day=rules.tokens_per_day,
            ruled=rules != EVERYBODY,
        )

    def _explain(self, exchange: Exchange, now: float) -> None:
        """Have the prediction explained, once and only while somebody looks.

        The telling words of a prompt are prompt text.
        """
        explain = getattr(self.gateway.predictor, "explain", None)
        view = exchange.parsed.view
        if explain is None or view is None or exchange.is_explained:
            return
        if now - exchange.job.arrival_s < EXPLAINED_AFTER_S:
            return
        shown = self.gateway.rules.show_prompts
        reasons = explain(view)
        exchange.explained(
            tuple((what, by) for what, by in reasons if shown or not what.startswith("words:"))
        )

    def _running(self, now: float) -> list[RunningRequest]:
        running = [e for e in self.gateway.dispatcher.live.values() if e.dispatch is not None]
        for exchange in running[:EXPLAINED]:
            self._explain(exchange, now)
        return [self._one_running(exchange, now) for exchange in running]

    def _one_running(self, exchange: Exchange, now: float) -> RunningRequest:
        dispatched_s = exchange.dispatched_s or now
        tokens = exchange.tokens
        rate = None
        if exchange.first_byte_s is not None and now - exchange.first_byte_s > 0.2 and tokens > 1:
            rate = tokens / (now - exchange.first_byte_s)
        return RunningRequest(
            id=exchange.id,
            backend=exchange.dispatch.worker if exchange.dispatch is not None else "",
            state=exchange.phase.value,
            endpoint=exchange.endpoint,
            model=exchange.parsed.model,
            client=exchange.job.client,
            predicted=exchange.prediction_state,
            waited_s=exchange.waited_s(now),
            elapsed_s=now - dispatched_s,
            ttft_s=exchange.ttft_s,
            tokens=tokens,
            tokens_per_s=rate,
            eta_s=max(0.0, exchange.job.cost_s - (now - dispatched_s))
            if exchange.phase is not Phase.RELEASING
            else None,
            dispatched_by=exchange.dispatch.reason.value if exchange.dispatch is not None else "",
            streaming=exchange.parsed.stream,
            moves=self._moves(exchange.moves),
            prompt=exchange.prompt,
            slot=exchange.slot,
        )

    def _queue(self, now: float) -> list[QueuedRequest]:
        dispatcher = self.gateway.dispatcher
        scheduler = dispatcher.scheduler
        slots = max(1, sum(scheduler.slots.values()))
        ahead_s = sum(
            max(0.0, e.job.cost_s - (now - (e.dispatched_s or now)))
            for e in dispatcher.live.values()
            if e.dispatch is not None
        )
        shown: list[QueuedRequest] = []
        for rank, entry in enumerate(scheduler.waiting(), 1):
            if rank > QUEUE_SHOWN:
                break
            exchange = dispatcher.live[entry.job.id]
            if rank <= EXPLAINED:
                self._explain(exchange, now)
            shown.append(self._one_queued(exchange, entry, rank, ahead_s / slots, now))
            ahead_s += entry.job.cost_s
        return shown

    def _one_queued(
        self, exchange: Exchange, entry: Entry, rank: int, eta_s: float, now: float
    ) -> QueuedRequest:
        return QueuedRequest(
            id=exchange.id,
            rank=rank,
            age_s=now - exchange.job.arrival_s,
            endpoint=exchange.endpoint,
            model=exchange.parsed.model,
            client=exchange.job.client,
            predicted=exchange.prediction_state,
            key=entry.key,
            eta_s=None if entry.held else eta_s,
            held=entry.held,
            promoted=entry.promoted,
            priority=entry.job.priority if entry.promoted else int(entry.rank),
            streaming=exchange.parsed.stream,
            prompt_tokens=exchange.parsed.prompt_tokens,
            moves=self._moves(tuple(entry.moves)),
            prompt=exchange.prompt,
        )

    def _moves(self, moves: tuple[Move, ...]) -> tuple[MoveRecord, ...]:
        at = self.gateway.request_stats.at
        return tuple(MoveRecord(at(move.at_s), move.kind.value, move.note) for move in moves)
