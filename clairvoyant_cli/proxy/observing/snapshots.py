"""Builds the daemon's state, as front ends see it, and records it for `top` to look back on."""

import asyncio
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import chain, islice
from math import inf
from operator import itemgetter

from clairvoyant_cli import __version__
from clairvoyant_cli.proxy.access.clients import CLIENTS_SHOWN, EVERYBODY
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.observing.gain import Gain
from clairvoyant_cli.proxy.observing.queue_rows import MAX_ROWS, Backlog, WaitingRows, clearing, to_come
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.request_views import RequestViews
from clairvoyant_cli.proxy.observing.status_sentence import verdict
from clairvoyant_cli.proxy.observing.tally import Tally
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.queue.operation import CHOSEN, Operation
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.servers.engine_queue import EngineQueues
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.tasks import repeat
from clairvoyant_cli.scheduler.forecast_ranges import ForecastRanges
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.sessions import Session
from clairvoyant_cli.state.encoding import WORDS
from clairvoyant_cli.state.snapshot import (
    ArrivalTurn,
    BackendState,
    ClientState,
    Counters,
    EngineState,
    LevelMet,
    LoadedModel,
    LogEvent,
    PredictorState,
    QueuedRequest,
    RunningRequest,
    ServiceLevelState,
    SessionsState,
    SessionState,
    Snapshot,
    TauState,
    UrgencyState,
)
from clairvoyant_cli.state.state_history import EVERY_S, StateHistory
from predictor.record import Predictor

log = logging.getLogger("clairvoyant")

RECORDED_ROWS = 30
"""Queued requests of a recorded state: the next to start."""

FIRINGS_SHOWN = 60
SESSIONS_SHOWN = 32
RESTED_S = 300.0
"""A session that has rested for longer is not shown."""

EXPLAINED = 8
ANSWERS_SHOWN = 16
"""Running answers whose end is sent, where it may be shown: 2 KB each, several times a second."""

EXPLAINED_AFTER_S = 0.25
"""Nobody reads the reasons of a request that is gone at once, and they take a millisecond."""


def _earliest(since: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the earliest time of each session, from pairs of session id and time."""
    return dict(sorted(since, key=itemgetter(1), reverse=True))


@dataclass(slots=True)
class SnapshotBuilder:
    """Builds states. With `show_prompts`, the reasons of a prediction may quote the prompt."""

    operation: Operation
    pool: ServerPool
    stats: RequestStats
    views: RequestViews
    access: Access
    predictor: Predictor
    urgency_predictor: str
    engines: EngineQueues
    listen: str
    started_s: float
    gain: Gain
    tally: Tally
    show_prompts: bool = False
    service_level: ServiceLevel | None = None
    ranges: ForecastRanges = field(default_factory=ForecastRanges)
    backlog: Backlog = field(init=False)

    def __post_init__(self) -> None:
        self.backlog = Backlog(self.operation.dispatcher.scheduler, self.operation.clock)

    def snapshot(self, rows: int = MAX_ROWS, *, explains: bool = True) -> Snapshot:
        """Return the state as it is now, with the first rows of the queue. `explains` the predictions of the
        first requests: that takes a millisecond each.
        """
        *_, state = self.steps(rows, explains=explains)
        assert state is not None  # noqa: S101 - the last is
        return state

    def steps(self, rows: int = MAX_ROWS, *, explains: bool = True) -> Iterator[Snapshot | None]:
        """Yield the state that `snapshot` returns, and None before it after each few milliseconds of work."""
        operation, stats = self.operation, self.stats
        scheduler, clock = operation.dispatcher.scheduler, stats.journal.clock
        waiting = WaitingRows(operation, self.pool, self.views, clock(), self.ranges)
        yield None
        now = clock()
        live = operation.dispatcher.live.values()
        at = stats.journal.at
        granted_at = [at(exchange.attempt.run.started_s) for exchange in live if exchange.attempt is not None]
        utilisation, utilisation_s = self.tally.utilisation(self.pool.slots, granted_at)
        arrival_order = scheduler.arrival_order
        gain = self.gain.state(arrival_order.behind, lambda: arrival_order.estimates(now))
        paired, in_order = self.gain.by_class
        jobs = waiting.standings.jobs
        alone = Counter(job.pinned or (*job.able, "")[0] for job in jobs if job.pinned or len(job.able) == 1)
        state = Snapshot(
            taken_at=stats.journal.at(now),
            daemon_version=__version__,
            pid=os.getpid(),
            listen=self.listen,
            mode=operation.mode,
            uptime_s=now - self.started_s,
            policy=operation.policy,
            policies=tuple(POLICIES),
            tau=self._tau(now),
            predictor=self._predictor(),
            backends=tuple(self._backend(server, alone[server.id]) for server in self.pool),
            running=tuple(self._running(now, explains=explains)),
            queue=(),
            recent=tuple(stats.recent),
            stats=stats.stats(),
            stats_fcfs=in_order,
            stats_paired=paired,
            clients=self._clients(),
            programs=self.tally.programs(live, self.pool.slots, stats.journal.at),
            counters=Counters(**stats.journal.counts),
            queue_capacity=scheduler.capacity,
            utilisation=utilisation,
            utilisation_s=utilisation_s,
            log=tuple(LogEvent(*each) for each in stats.journal.events),
            service_level=self._service_level(),
            urgency=self._urgency(),
            waiting=replace(
                waiting.totals(), backlog_s=self.backlog.stands_for_s, per_minute=self.backlog.per_minute
            ),
            gain=gain,
            sessions=self._sessions(waiting.standings.jobs, now),
            summaries=tuple(each.summary for each in POLICIES.values()),
            seldom=tuple(name for name, each in POLICIES.items() if each.seldom),
        )
        queue = list[QueuedRequest]()
        yield None
        for exchange in waiting.first(EXPLAINED) if explains else ():
            self._explain(exchange, now)
            yield None
        for some in waiting.steps(rows):
            queue += some
            yield None
        state = replace(state, queue=tuple(queue))
        state = replace(state, waiting=clearing(state, waiting.standings.work_s))
        state = replace(
            state,
            verdict=verdict(state, stopping=operation.stopping),
            to_come=tuple(to_come(state)),
            in_order=tuple(self._in_order(now)) if explains else (),
        )
        yield None
        yield state

    def expire(self) -> None:
        """Follow what changes by the time alone; a state changes nothing."""
        self.backlog.look()

    def _in_order(self, now: float) -> Iterator[ArrivalTurn]:
        name, at = self.pool.name_of, self.stats.journal.at
        for each in self.operation.dispatcher.scheduler.arrival_order.turns(now):
            begun_at, ended_at = at(each.begun_s), at(each.ended_s)
            yield ArrivalTurn(
                each.id, name(each.server_id), each.slot, each.waited_s, begun_at, ended_at, each.known
            )

    def _backend(self, server: Server, waiting: int) -> BackendState:
        return BackendState(
            name=server.name,
            kind=server.adapter.name,
            url=server.id,
            state=server.status.state,
            slots=server.most,
            busy=len(self.operation.dispatcher.attempts_on(server.id)) + server.lent,
            tells_slots=server.adapter.TELLS_SLOTS or server.adapter.PRIORITY is not None,
            version=server.status.version,
            detail=server.status.detail or server.remark,
            models=tuple(LoadedModel(*each[:4], digest=each.digest) for each in server.status.models),
            decode_tokens_per_s=server.speeds.decode_tokens_per_s,
            prefill_tokens_per_s=server.speeds.prefill_tokens_per_s,
            swaps_total=server.status.swaps,
            standing=server.standing,
            waiting=waiting,
            offered=None if server.status.offered is None else len(server.status.offered),
            weight=server.config.weight,
            stamped=server.stamps is not None,
            engine=EngineState(*server.status.engine)
            if server.status.engine and server.stamps is not None
            else None,
            prompt_stop_s=server.prompts.stop_s,
            truncated=server.truncated,
            cut_to=server.cut_to,
            kept_for_s=server.health.given_up_in_s,
            self_test=server.self_test,
        )

    def _tau(self, now: float) -> TauState:
        operation = self.operation
        firings = operation.dispatcher.firings
        return TauState(
            tau_s=operation.tau_s,
            by_model=dict(operation.dispatcher.scheduler.clients.tau_by_model),
            mu_short_s=None if operation.tau_source in CHOSEN else operation.mu_short_s,
            short_s=self.stats.mu_short_s(),
            source=operation.tau_source,
            firings_total=operation.dispatcher.scheduler.guard.firings,
            firings_last_minute=sum(now - at <= 60 for at in firings),
            recent=tuple(self.stats.journal.at(at) for at in firings[-FIRINGS_SHOWN:]),
            guards=operation.dispatcher.scheduler.policy.guarded,
        )

    def _urgency(self) -> UrgencyState:
        scheduler, stats = self.operation.dispatcher.scheduler, self.stats
        return UrgencyState(
            levels=stats.levels(scheduler, (run.job for run in scheduler.running.values())),
            predictor=self.urgency_predictor,
            target_s=stats.urgency_target_s,
            late=stats.late,
            heeded=scheduler.policy.by_level,
        )

    def _service_level(self) -> ServiceLevelState | None:
        level = self.service_level
        if level is None:
            return None
        return ServiceLevelState(
            objective=level.text,
            alert=level.alerting,
            recent_missed=level.recent_missed,
            refused=level.refused,
            classes=tuple(
                LevelMet(each, level.judged[each], level.missed[each]) for each in sorted(level.judged)
            ),
        )

    def _sessions(self, waiting: Sequence[Job], now: float) -> SessionsState:
        scheduler = self.operation.dispatcher.scheduler
        sessions = scheduler.sessions
        waiters = sum(each.parked for each in waiting)
        turns, parked = sessions.with_turn(now, waiters), sessions.parked()
        known = (each for each in reversed(sessions.known.values()) if each.agent)
        seen = dict.fromkeys(
            each
            for each in chain(turns, parked, known)
            if each.running or each.waiting or now - each.last_end_s < RESTED_S
        )
        rooms = [server.cache.room_tokens for server in scheduler.fleet.servers.values()]
        rooms = [room for room in rooms if room < inf]
        since = _earliest((each.session, each.arrival_s) for each in waiting)
        since |= _earliest((run.job.session, run.started_s) for run in scheduler.running.values())

        speeds = [each.speeds.prefill_tokens_per_s for each in self.pool]
        # Of several servers the fastest: the cache saves at least that.
        token_s = min((1.0 / speed for speed in speeds if speed), default=None)

        def told(session: Session) -> SessionState:
            state, began_s, hold_left_s = "resting", session.last_end_s, None
            if session.running or session.waiting:
                state = "running" if session.running else "waiting" if session.active else "parked"
                began_s = since.get(session.id, now)
            elif session in turns:
                state, hold_left_s = "held", began_s + sessions.hold_s(session, waiters) - now
            return SessionState(
                session.id,
                session.client,
                state,
                session.turns,
                session.tokens,
                session.read_tokens,
                session.cached_tokens,
                now - began_s,
                hold_left_s,
                session.reread_tokens,
                session.broken,
                session.program,
                now - session.since_s,
                session.calls_tool,
                session.parent,
                None if token_s is None else session.cached_tokens * token_s,
                not session.cache_reported,
            )

        return SessionsState(
            turns=len(turns),
            parked=len(parked),
            read_tokens=sessions.read_tokens,
            cached_tokens=sessions.cached_tokens,
            room_tokens=sum(rooms) if rooms else None,
            listed=tuple(map(told, islice(_families(list(seen)), SESSIONS_SHOWN))),
            saved_s=None if token_s is None else sessions.cached_tokens * token_s,
            expected=bool(sessions.known)
            and not any(session.cache_reported for session in sessions.known.values()),
        )

    def _predictor(self) -> PredictorState:
        name, quality = self.predictor.name, self.predictor.quality()
        return PredictorState(name, quality.judged, quality.ranking_accuracy, quality.q90_coverage)

    def _clients(self) -> tuple[ClientState, ...]:
        """Return the busiest clients of those that have requests, had answers, or have rules."""
        tokens = self.stats.tokens
        here = self.operation.dispatcher.scheduler.clients.counts
        names = here.keys() | tokens.keys() | {*self.access.clients.listed}
        busiest = nsmallest(
            CLIENTS_SHOWN, names, key=lambda name: (-sum(here.get(name, (0, 0))), -tokens[name], name)
        )
        return tuple(self._client(name, *here.get(name, (0, 0))) for name in busiest)

    def _client(self, name: str, waiting: int, running: int) -> ClientState:
        rules = self.access.clients.rules_of(name)
        return ClientState(
            name=name,
            waiting=waiting,
            running=running,
            tokens=self.stats.tokens[name],
            late=0 if self.service_level is None else self.service_level.missed_by_client[name],
            weight=rules.weight,
            max_waiting=rules.max_waiting,
            max_running=rules.max_running,
            tau_s=rules.tau_s,
            priority=rules.priority,
            ruled=rules != EVERYBODY,
            urgency=rules.urgency,
        )

    def _explain(self, exchange: Exchange, now: float) -> None:
        """Explain the prediction, once. Words of the prompt are left out unless prompts are shown."""
        view, age_s = exchange.asked.parsed.view, now - exchange.job.arrival_s
        if view is not None and exchange.reasons is None and age_s >= EXPLAINED_AFTER_S:
            reasons, shown = self.predictor.explain(view), self.show_prompts
            exchange.reasons = tuple(each for each in reasons if shown or not each[0].startswith(WORDS))

    def _running(self, now: float, *, explains: bool) -> Iterator[RunningRequest]:
        dispatcher, inside_s = self.operation.dispatcher, self.engines.ends_in_s(now)
        shown = ANSWERS_SHOWN if explains else 0
        running = (each for each in dispatcher.live.values() if each.attempt is not None)
        for number, exchange in enumerate(running):
            if explains and number < EXPLAINED:
                self._explain(exchange, now)
            run = dispatcher.scheduler.running[exchange.id]
            ends = self.ranges.of_run(run, inside_s.get(exchange.id))
            yield self.views.running(exchange, ends, now, shows_answer=number < shown)


def _families(sessions: Sequence[Session]) -> Iterator[Session]:
    """Yield the sessions, subagents right after their parent."""
    listed = {each.id for each in sessions}
    children = defaultdict[str, list[Session]](list)
    for each in sessions:
        children[each.parent if each.parent in listed else ""].append(each)
    left = children[""][::-1]
    while left:
        session = left.pop()
        yield session
        left += children[session.id][::-1]


@dataclass(slots=True)
class StateRecorder:
    """Fills a history. `kept` is set once it holds a state."""

    snapshots: SnapshotBuilder
    history: StateHistory = field(default_factory=StateHistory)
    kept: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        await repeat("recording states", self._record)

    async def _record(self) -> None:
        self.snapshots.expire()
        self.history.record(self.snapshots.snapshot(RECORDED_ROWS, explains=False))
        self.kept.set()
        await asyncio.sleep(EVERY_S)
