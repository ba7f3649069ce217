"""The daemon put together: workers, scheduler, queue, listener, control API; and how it goes down."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass

from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.limits import Budget, ConnectionTable
from clairvoyant_cli.http.listener import ServerConnection
from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.access.clients_file import ClientsFile, access_of, clients_file_of
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.access.run_file import announced as word_of
from clairvoyant_cli.proxy.access.urgency_levels import UrgencyLevels
from clairvoyant_cli.proxy.control_api import Actions, Changes, ControlApi
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.learning.learn_queue import LearnQueue
from clairvoyant_cli.proxy.learning.persistence import Persistence, StateSaver
from clairvoyant_cli.proxy.listening_socket import BACKLOG, listen, max_connections
from clairvoyant_cli.proxy.observing.gain import Gain
from clairvoyant_cli.proxy.observing.metrics import Metrics
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder
from clairvoyant_cli.proxy.observing.state_recorder import StateRecorder
from clairvoyant_cli.proxy.observing.urgency_stats import UrgencyStats
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import DrainingError, Phase
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.queue.predictor_trust import PredictorTrust
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.requests.admission import Admission
from clairvoyant_cli.proxy.requests.cutting import Preemption
from clairvoyant_cli.proxy.requests.encoder import Encode, SecondOpinions
from clairvoyant_cli.proxy.requests.engine_annotation import Annotation
from clairvoyant_cli.proxy.requests.gateway import Gateway
from clairvoyant_cli.proxy.requests.passthrough import Passing
from clairvoyant_cli.proxy.requests.refusals import Refusals
from clairvoyant_cli.proxy.requests.serving import Serving
from clairvoyant_cli.proxy.requests.serving_rules import ServingRules
from clairvoyant_cli.proxy.servers.engine_queue import EngineQueues
from clairvoyant_cli.proxy.servers.pool import BackendPool, Worker
from clairvoyant_cli.proxy.servers.server_actions import BackendActions
from clairvoyant_cli.proxy.servers.server_registry import Joining, Server, find_servers
from clairvoyant_cli.proxy.tasks import Tasks
from clairvoyant_cli.scheduler.policy import (
    DEFAULT_POLICY,
    POLICIES,
    PREEMPTIVE_POLICY,
    SERVABLE,
    URGENCY_POLICY,
    Policy,
    in_turns_of,
)
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.starvation import tau_from_setting
from clairvoyant_cli.settings import did_you_mean
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import raise_open_files, start_accepting
from predictor.record import Predictor, UrgencyPredictor

log = logging.getLogger("clairvoyant")


@dataclass(slots=True)
class Daemon:
    """A running daemon. `drain` and `stop_now` end it; `run_until_stopped` waits for that.

    `reload` reads the clients' file again and returns what is said of it; ClairvoyantError if all stays.
    """

    gateway: Gateway
    pool: BackendPool
    operation: Operation
    stats: RequestStats
    access: Access
    learn_queue: LearnQueue
    snapshots: SnapshotBuilder
    recorder: StateRecorder
    control: ControlApi
    connections: ConnectionTable
    preemption: Preemption
    base_url: str
    drain_timeout_s: float
    reload: Callable[[], str]
    _asked: asyncio.Event
    _stopped: asyncio.Event
    state_saver: StateSaver | None = None
    _drain_ends_s: float = float("inf")

    @property
    def dispatcher(self) -> Dispatcher:
        """The queue."""
        return self.operation.dispatcher

    def snapshot(self) -> Snapshot:
        """Return the state as it is now."""
        return self.snapshots.snapshot()

    def drain(self, within_s: float = float("inf")) -> None:
        """Go down in good order: refuse new work, send the waiting away, finish what runs `within_s`."""
        self.drain_timeout_s = min(self.drain_timeout_s, within_s)
        self.operation.go_down()
        sent_away = self.dispatcher.send_away_waiting(DrainingError, suspended=False)
        self.stats.journal.event(
            logging.INFO,
            f"draining: {len(self.dispatcher.scheduler.running)} running, {sent_away} waiting sent away; "
            f"at most {self.drain_timeout_s:g} s, again to stop at once",
        )
        self._drain_ends_s = self.stats.journal.clock() + self.drain_timeout_s
        self.connections.hurry()
        for connection in list(self.connections.every):
            connection.retire()
        self._asked.set()

    def stop_now(self) -> None:
        """Go down at once, whatever runs."""
        self._stopped.set()
        self._asked.set()

    async def run_until_stopped(self) -> None:
        """Return once a drain is complete, or `stop_now` was called."""
        await self._asked.wait()
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._stopped.wait()
            # Once nobody waits for an answer, no slot needs to become free.
            owed = any(each.phase is not Phase.RELEASING for each in self.dispatcher.live.values())
            if self.operation.stopping and not owed:
                self.control.stop()  # no sooner: who watches sees it go down
                if all(each.idle for each in self.connections.every):
                    return
            if self.stats.journal.clock() >= self._drain_ends_s:
                running = len(self.dispatcher.scheduler.running)
                news = f"the drain took longer than {self.drain_timeout_s:g} s: {running} running cut off"
                self.stats.journal.event(logging.WARNING, news)
                return


@asynccontextmanager
async def running_daemon(
    config: ServeConfig,
    predictor: Predictor,
    *,
    persistence: Persistence | None = None,
    announced: bool = False,
    clock: Callable[[], float] = time.monotonic,
    encode: Encode | None = None,
    urgency: UrgencyPredictor | None = None,
) -> AsyncIterator[Daemon]:
    """Start a daemon and stop it when the block ends; an announced one is found by `status` and `top`.

    Without a persistence it starts from defaults and remembers nothing. `clock` gives the seconds that
    everything in it is ordered and measured by; the event loop's timers should run by the same. `encode`, of
    prompts, gives second opinions on what waits, which are passed to the predictor.
    `urgency` says how urgent requests are of which nobody else does.
    """
    policy = _policy(config)  # refused before anything is begun
    table = ConnectionTable(
        client_timeout_s=config.client_timeout,
        most=max_connections(config.max_connections, raise_open_files()),
        budget=Budget(config.body_budget_mib * 1024 * 1024),
    )
    host, port = config.address()
    roster = clients_file_of(config, exposed=not is_loopback(host))
    access = access_of(config, roster)
    listener = listen(host, port)
    servers: list[Server] = []
    try:
        port = listener.getsockname()[1]
        servers = await find_servers(config, port)
        async with Tasks() as tasks:
            queue = _queue(config, policy, access, tasks, clock)
            joining = Joining(config, queue.pool, queue.dispatcher, queue.stats.journal, tasks.spawn, port)
            for server in servers:
                joining.let_in(server)
            daemon = _compose(config, predictor, access, roster, queue, joining, table, (host, port))
            daemon.gateway.admission.levels.predictor = urgency
            daemon.state_saver = _state_saver(config, daemon, persistence)
            if daemon.state_saver is not None:
                daemon.state_saver.begin()
                joining.joined.append(daemon.state_saver.take_in)
                _prefer_preemption(config, daemon)
                daemon.state_saver.took_over.append(lambda _: _prefer_preemption(config, daemon))
                tasks.spawn(daemon.state_saver.run())
            stop_accepting = await start_accepting(
                lambda: ServerConnection(daemon.gateway.handle, tasks.spawn, table),
                listener,
                BACKLOG,
                tasks.spawn,
            )
            for worker in daemon.pool:
                joining.start(worker)
            tasks.spawn(table.watch())
            tasks.spawn(daemon.preemption.run())
            if announced:  # else nobody comes who would look back
                tasks.spawn(daemon.recorder.run())
            if encode is not None:
                opinions = SecondOpinions(
                    encode,
                    predictor,
                    daemon.pool,
                    daemon.dispatcher,
                    daemon.gateway.admission.levels,
                )
                daemon.gateway.admission.second_opinions = opinions
                tasks.spawn(opinions.run())
            try:
                with word_of(daemon.base_url, port, access) if announced else nullcontext():
                    yield daemon
            finally:
                daemon.operation.stopped = True  # what ends from here on, no client ended
                daemon.control.stop()
                stop_accepting()
                for connection in list(table.every):
                    connection.abort()
                tasks.cancel()
                daemon.learn_queue.flush()
                if daemon.state_saver is not None:
                    daemon.state_saver.save()
        await daemon.pool.close()
        await joining.close()
    finally:
        listener.close()
        for server in servers:
            await server.prober.close()


def _prefer_preemption(config: ServeConfig, daemon: Daemon) -> None:
    """Cut long answers for short ones, unless another policy was chosen, where that was found to be exact."""
    if config.no_preempt:
        return
    operation = daemon.operation
    chosen = config.policy is not None or config.urgency is not None or operation.policy_chosen
    # Where the predictor is in doubt and arrival order holds, that is no time to cut.
    if not chosen and operation.policy in (DEFAULT_POLICY, PREEMPTIVE_POLICY):
        proven = any(_proved(worker) for worker in daemon.pool)
        operation.prefer_policy(PREEMPTIVE_POLICY if proven else DEFAULT_POLICY)
    for worker in daemon.pool:
        for line in _proved(worker):
            daemon.stats.journal.event(logging.INFO, f"{worker.name} goes on after a cut: {line}")
    if POLICIES[daemon.operation.policy].interrupts and not any(_proved(worker) for worker in daemon.pool):
        news = "nothing proves that an answer can be cut and continued, so none is cut; prove it: "
        measured = any(worker.profiles for worker in daemon.pool)  # else there is none to keep a proof with
        command = "clairvoyant calibrate --continuation" if measured else "clairvoyant calibrate"
        daemon.stats.journal.event(logging.WARNING, news + command)


def _proved(worker: Worker) -> list[str]:
    """Return what was measured of going on with answers, a line a model, of those where it is exact."""
    return [
        f"{model}, {proof.exact} of {proof.trials} texts equal, {proof.resume_s * 1000:.0f} ms to resume"
        for model, proof in worker.proofs.items()
        if proof.fingerprint
    ]


@dataclass(frozen=True, slots=True)
class _Queue:
    """The queue and what is remembered of it, before there is anything to feed."""

    dispatcher: Dispatcher
    stats: RequestStats
    pool: BackendPool


def _policy(config: ServeConfig) -> Policy:
    name = config.policy or (DEFAULT_POLICY if config.urgency is None else URGENCY_POLICY)
    if name not in SERVABLE:
        known = f"there are {', '.join(SERVABLE)}{did_you_mean(name, SERVABLE)}"
        raise ClairvoyantError(f"no policy {name!r}; {known}", ExitCode.USAGE)
    return in_turns_of(POLICIES[name], config.quantum)


def _queue(
    config: ServeConfig, policy: Policy, access: Access, tasks: Tasks, clock: Callable[[], float]
) -> _Queue:
    scheduler = Scheduler(
        policy,
        workers={},
        tau_s=tau_from_setting(config.tau),
        capacity=config.queue_capacity,
        tenants=access.clients.tenants,
        everybody=access.clients.defaults.tenant,
    )
    journal = Journal(clock)
    stats = RequestStats(journal)
    dispatcher = Dispatcher(scheduler, clock=clock, spawn=tasks.spawn)
    pool = BackendPool(dispatcher, journal)
    pool.slots_changed = stats.shadow.resize
    stats.model_of = pool.model_of
    return _Queue(dispatcher, stats, pool)


def _compose(
    config: ServeConfig,
    predictor: Predictor,
    access: Access,
    roster: ClientsFile,
    queue: _Queue,
    joining: Joining,
    table: ConnectionTable,
    address: tuple[str, int],
) -> Daemon:
    dispatcher, stats, pool = queue.dispatcher, queue.stats, queue.pool
    metrics, changes = Metrics(), Changes()
    dispatcher.changed.append(changes.note)
    tau_source = "default" if config.tau is None else "flag"
    operation = Operation(
        dispatcher,
        PredictorTrust(predictor, pool.coverage),
        stats.journal.clock,
        stats.journal.event,
        tau_source,
    )
    operation.quantum_tokens = config.quantum
    learn_queue = LearnQueue(predictor, operation.review_predictor)
    dispatcher.reestimated.append(stats.reestimated)
    dispatcher.ended += [stats.ended, metrics.ended, pool.ended, learn_queue.ended]
    refusals = Refusals(pool, stats, config.overload_status)

    def take_clients(clients: Clients) -> None:
        access.clients = clients
        operation.set_clients(clients)

    def reload() -> str:
        return roster.read_again(access.clients, take_clients, stats.journal)

    host, port = address
    levels = UrgencyLevels(access)
    urgency_stats = UrgencyStats(stats.journal.clock, stats.journal.event, config.urgency_target)
    dispatcher.ended.append(urgency_stats.ended)
    dispatcher.urgency_set.append(urgency_stats.watch)
    engines = EngineQueues(dispatcher, pool, stats.journal.event)
    gain = Gain(stats.journal.wall)
    stats.shadow_ran.append(gain.ran)
    level = None
    if config.slo is not None:
        level = ServiceLevel(config.slo, dispatcher.scheduler, stats.journal.clock, stats.journal.event)
        dispatcher.ended.append(level.ended)
    snapshots = SnapshotBuilder(
        operation,
        pool,
        stats,
        access,
        predictor,
        levels,
        urgency_stats,
        engines,
        _place(host, port),
        stats.journal.clock(),
        gain,
        config.show_prompts,
        level,
    )
    actions = Actions(operation, stats, BackendActions(pool, joining), reload)
    recorder = StateRecorder(snapshots)
    control = ControlApi(access, actions, snapshots, changes, metrics, recorder.history)
    preemption = Preemption(dispatcher, pool, operation, stats, joining.spawn, enabled=not config.no_preempt)
    dispatcher.changed.append(preemption.look)
    annotation = Annotation(pool, operation, stats.journal.at, stats.journal.event)
    dispatcher.changed.append(annotation.tell)
    dispatcher.ended.append(preemption.ended)
    serving = Serving(
        access,
        pool,
        dispatcher,
        refusals,
        ServingRules(pool, operation, refusals, config.max_wait),
        preemption,
        annotation,
        engines,
        stats,
    )
    admission = Admission(
        access,
        pool,
        predictor,
        operation,
        stats,
        refusals,
        levels,
        urgency_stats,
        annotation,
        config.body_limit_mib * 1024 * 1024,
        config.show_prompts,
        service_level=level,
    )
    return Daemon(
        gateway=Gateway(admission, serving, Passing(pool, access, refusals), control),
        pool=pool,
        operation=operation,
        stats=stats,
        access=access,
        learn_queue=learn_queue,
        snapshots=snapshots,
        recorder=recorder,
        control=control,
        connections=table,
        preemption=preemption,
        base_url=f"http://{_place(_reachable(host), port)}",
        drain_timeout_s=config.drain_timeout,
        reload=reload,
        _asked=asyncio.Event(),
        _stopped=asyncio.Event(),
    )


def _state_saver(config: ServeConfig, daemon: Daemon, persistence: Persistence | None) -> StateSaver | None:
    if persistence is None:
        return None
    return StateSaver(
        persistence,
        daemon.pool,
        daemon.operation,
        daemon.stats,
        daemon.snapshots.predictor,
        daemon.learn_queue,
        freeze=config.freeze,
        record_prompts=config.record_prompts,
    )


def _reachable(host: str) -> str:
    """Return where this machine reaches a daemon that listens on a host.

    A name may lead elsewhere for others, localhost to ::1 say, and this run's token must not go there.
    """
    return "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # noqa: S104 - compared


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
