"""Builds the daemon from its parts, runs it, and shuts it down."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field

from clairvoyant_cli.addresses import Address, is_loopback, joined, local_url
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.limits import ConnectionTable
from clairvoyant_cli.http.listener import ClientConnection
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.access.clients_file import ClientsFile, access_of, clients_file_of
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.access.run_file import announced as run_file
from clairvoyant_cli.proxy.access.urgency_levels import UrgencyLevels
from clairvoyant_cli.proxy.control_api import Actions, Changes, ControlApi
from clairvoyant_cli.proxy.journal import Journal, Tally
from clairvoyant_cli.proxy.learning.learn_queue import LearnQueue
from clairvoyant_cli.proxy.learning.persistence import Persistence, StateSaver
from clairvoyant_cli.proxy.listening_socket import Listeners, max_connections
from clairvoyant_cli.proxy.observing.backlog import Backlog
from clairvoyant_cli.proxy.observing.gain import Gain
from clairvoyant_cli.proxy.observing.metrics import Metrics
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder, StateRecorder
from clairvoyant_cli.proxy.observing.traces import traces_to
from clairvoyant_cli.proxy.observing.urgency_stats import UrgencyStats
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher, Spawn
from clairvoyant_cli.proxy.queue.exchange import DrainingError, Phase
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.requests.admission import Admission
from clairvoyant_cli.proxy.requests.cutting import Preemption
from clairvoyant_cli.proxy.requests.encoder import Encode, SecondOpinions
from clairvoyant_cli.proxy.requests.engine_annotation import Annotation
from clairvoyant_cli.proxy.requests.gateway import Gateway
from clairvoyant_cli.proxy.requests.new_exchange import ExchangeFactory
from clairvoyant_cli.proxy.requests.passthrough import Passthrough
from clairvoyant_cli.proxy.requests.refusals import Refusals
from clairvoyant_cli.proxy.requests.resubmission import Resubmissions
from clairvoyant_cli.proxy.requests.serving import Serving
from clairvoyant_cli.proxy.requests.serving_rules import ServingRules
from clairvoyant_cli.proxy.requests.truncation import Truncations
from clairvoyant_cli.proxy.servers.engine_queue import EngineQueues
from clairvoyant_cli.proxy.servers.estimates import ServiceTimes
from clairvoyant_cli.proxy.servers.find_servers import find_servers
from clairvoyant_cli.proxy.servers.lifecycle import ServerLifecycle
from clairvoyant_cli.proxy.servers.own_server import own_server
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.server_actions import ServerActions
from clairvoyant_cli.proxy.tasks import Tasks
from clairvoyant_cli.scheduler.policy import (
    ALIASES,
    DEFAULT_POLICY,
    POLICIES,
    URGENCY_POLICY,
    Policy,
    in_turns_of,
    policy_named,
)
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.starvation import tau_from_setting
from clairvoyant_cli.settings import did_you_mean
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import raise_open_files
from predictor.record import Predictor, UrgencyPredictor

log = logging.getLogger("clairvoyant")


@dataclass(slots=True)
class Daemon:
    """A running daemon. `drain` and `stop_now` end it; `run_until_stopped` waits until one of them has.

    `reload` reads the clients file again and returns a message; ClairvoyantError if it is unusable, and
    nothing changes. `background` are the tasks that run as long as it does.
    """

    gateway: Gateway
    lifecycle: ServerLifecycle
    operation: Operation
    stats: RequestStats
    access: Access
    learn_queue: LearnQueue
    snapshots: SnapshotBuilder
    recorder: StateRecorder
    control: ControlApi
    metrics: Metrics
    connections: ConnectionTable
    preemption: Preemption
    second_opinions: SecondOpinions | None
    saver_of: Callable[[Persistence], StateSaver]
    base_url: str
    drain_timeout_s: float
    reload: Callable[[], Awaitable[str]]
    spawn: Spawn
    background: list[Callable[[], Awaitable[None]]]
    state_saver: StateSaver | None = None
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _drain_ends_s: float = float("inf")

    @property
    def pool(self) -> ServerPool:
        return self.lifecycle.pool

    @property
    def dispatcher(self) -> Dispatcher:
        return self.operation.dispatcher

    def snapshot(self) -> Snapshot:
        return self.snapshots.snapshot()

    def remember(self, persistence: Persistence | None) -> None:
        """Load profiles and learned state, and record what follows. At any time, once."""
        if persistence is not None:
            self.state_saver = self.saver_of(persistence)

    def drain(self, within_s: float = float("inf")) -> None:
        """Shut down in order: refuse new work, send the waiting away, finish what runs `within_s`."""
        self.drain_timeout_s = min(self.drain_timeout_s, within_s)
        self.operation.go_down()
        sent_away = self.dispatcher.send_away_waiting(DrainingError, suspended=False)
        self.stats.journal.event(
            logging.INFO,
            f"rejected {plural(sent_away, 'queued request')}; waiting up to {self.drain_timeout_s:g} s for "
            f"{len(self.dispatcher.scheduler.running)} running, repeat the signal to stop now",
        )
        self._drain_ends_s = self.stats.journal.clock() + self.drain_timeout_s
        self.connections.hurry()
        for connection in list(self.connections.every):
            connection.retire()
        self._asked.set()

    def stop_now(self) -> None:
        self._stopped.set()
        self._asked.set()

    async def run_until_stopped(self) -> None:
        """Return once a drain is complete, or `stop_now` was called."""
        await self._asked.wait()
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._stopped.wait()
            # Slots whose clients have left need not become free.
            owed = any(each.phase is not Phase.RELEASING for each in self.dispatcher.live.values())
            if self.operation.stopping and not owed:
                self.control.stop()  # no sooner: dashboards see it shut down
                if all(each.idle for each in self.connections.every):
                    return
            if self.stats.journal.clock() >= self._drain_ends_s:
                running = plural(len(self.dispatcher.scheduler.running), "running request")
                news = f"drain timed out after {self.drain_timeout_s:g} s; aborting {running}"
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
    self_test: Callable[["Daemon"], Awaitable[None]] | None = None,
) -> AsyncIterator[Daemon]:
    """Start a daemon, and stop it when the block ends. `status` and `top` find it if it is `announced`.

    Without `persistence` it starts from defaults and remembers nothing. `clock` gives the seconds by which
    everything is ordered and measured; the event loop's timers should follow it. `encode` reads prompts for
    second predictions, which `predictor` takes as opinions. `urgency` predicts the urgency of
    requests for which no rule or client gives one. `self_test` runs as long as the daemon.
    """
    _policy(config)  # refused before anything is started
    traces = traces_to(config.otlp_endpoint) if announced else None
    exposed = not all(is_loopback(host) for host, _ in config.addresses())
    clients_file = clients_file_of(config, exposed=exposed)
    access = access_of(config, clients_file)
    listeners = Listeners(config.addresses())
    servers: list[Server] = []
    try:
        servers = await find_servers(config, listeners.addresses)
        async with own_server(config) as own, Tasks() as tasks:
            daemon = _compose(
                config,
                predictor,
                access,
                clients_file,
                servers,
                tasks.spawn,
                clock,
                listeners.addresses,
                encode,
                urgency,
            )
            daemon.remember(persistence)

            def took(address: Address) -> None:
                daemon.stats.journal.event(logging.INFO, f"listening on {joined(*address)} as well")
                daemon.lifecycle.expect()  # what listened there may be the server, and starts elsewhere

            handle, table = daemon.gateway.handle, daemon.connections
            await listeners.accept(lambda: ClientConnection(handle, tasks.spawn, table), tasks.spawn, took)
            if traces is not None:
                daemon.metrics.traced = traces.listener(daemon.stats.journal)
            for server in daemon.pool:
                daemon.lifecycle.start(server)
            if own is not None:
                tasks.spawn(own.run())
                daemon.lifecycle.expect()
            for run in daemon.background:
                tasks.spawn(run())
            if self_test is not None:
                tasks.spawn(self_test(daemon))
            if announced:  # only then does anyone look back
                tasks.spawn(daemon.recorder.run())
            port = listeners.addresses[0][1]
            try:
                with run_file(daemon.base_url, port, access) if announced else nullcontext():
                    yield daemon
            finally:
                daemon.operation.stopped = True  # what ends from here on was not ended by its client
                daemon.control.stop()
                listeners.stop()
                for connection in list(table.every):
                    connection.abort()
                tasks.cancel()
                daemon.learn_queue.flush()
                if daemon.state_saver is not None:
                    daemon.state_saver.save()
        servers += [server for server in daemon.pool if server not in servers]
    finally:
        listeners.close()
        for server in servers:
            await server.close()
        if traces is not None:
            await traces.close()


def _policy(config: ServeConfig) -> Policy:
    name = config.policy or (DEFAULT_POLICY if config.urgency is None else URGENCY_POLICY)
    try:
        return in_turns_of(policy_named(name), config.quantum)
    except KeyError:
        known = f"there are {', '.join(POLICIES)}{did_you_mean(name, POLICIES)}"
        raise ClairvoyantError(f"no policy {name!r}; {known}", ExitCode.USAGE) from None


def _compose(
    config: ServeConfig,
    predictor: Predictor,
    access: Access,
    clients_file: ClientsFile,
    servers: list[Server],
    spawn: Spawn,
    clock: Callable[[], float],
    own: Sequence[Address],
    encode: Encode | None,
    urgency: UrgencyPredictor | None,
) -> Daemon:
    """Build all parts of a daemon and connect them. Nothing runs yet."""
    host, port = own[0]
    journal = Journal(clock)
    say = journal.event
    stats = RequestStats(journal)
    table = ConnectionTable(
        client_timeout_s=config.client_timeout,
        most=max_connections(config.max_connections, raise_open_files()),
        body_budget_bytes=config.body_budget_mib * 1024 * 1024,
    )
    scheduler = Scheduler(
        _policy(config),
        workers={},
        tau_s=tau_from_setting(config.tau),
        capacity=config.queue_capacity,
        tenants=access.clients.tenants,
        everybody=access.clients.defaults.tenant,
    )
    if config.policy in ALIASES:
        say(logging.INFO, f"policy {config.policy} is {scheduler.policy.name} in this version")
    scheduler.books = stats.books
    dispatcher = Dispatcher(scheduler, clock=clock, spawn=spawn)
    pool = ServerPool(scheduler)
    times = ServiceTimes(pool, say)
    lifecycle = ServerLifecycle(config, pool, dispatcher, journal, spawn, own)
    for server in servers:
        lifecycle.adopt(server)

    # The queue and how it is operated.
    tau_from = "default" if config.tau is None else "flag"
    operation = Operation(dispatcher, times.coverage, clock, say, tau_from)
    operation.quantum_tokens, operation.max_wait_s = config.quantum, config.max_wait
    learn_queue = LearnQueue(predictor, operation.review_predictor)
    level = None if config.slo is None else ServiceLevel(config.slo, scheduler, clock, say)

    def take_clients(clients: Clients) -> None:
        access.clients = clients
        operation.set_clients(clients)

    reloading = asyncio.Lock()

    async def reload() -> str:
        async with reloading:  # the file as it was read last holds
            return await clients_file.read_again(access.clients, take_clients, journal)

    # What is observed.
    metrics, changes, gain, backlog = Metrics(pool), Changes(), Gain(journal.wall), Backlog(scheduler, clock)
    urgency_stats = UrgencyStats(clock, say, config.urgency_target)
    engines = EngineQueues(dispatcher, pool, say)
    levels = UrgencyLevels(access, urgency)
    snapshots = SnapshotBuilder(
        operation,
        pool,
        stats,
        access,
        predictor,
        levels,
        urgency_stats,
        engines,
        joined(host, port),
        clock(),
        gain,
        backlog,
        config.show_prompts,
        level,
    )
    recorder = StateRecorder(snapshots)
    actions = Actions(operation, stats, ServerActions(lifecycle), reload)
    control = ControlApi(access, actions, snapshots, changes, metrics, recorder.history)

    # The way of a request.
    truncations = Truncations(times, say)
    refusals = Refusals(pool, stats, config.overload_status, truncations)
    resubmissions = Resubmissions(journal, not config.no_keep_place)
    preemption = Preemption(dispatcher, pool, operation, stats, spawn, which=config.preempt)
    annotation = Annotation(pool, operation, journal.at, say)
    admission = Admission(
        access,
        pool,
        operation,
        stats,
        refusals,
        ExchangeFactory(
            access,
            predictor,
            times,
            levels,
            journal,
            resubmissions,
            show_prompts=config.show_prompts,
            record_prompts=config.record_prompts,
        ),
        annotation,
        config.body_limit_mib * 1024 * 1024,
        level,
        truncations.refusal if config.refuse_truncated else None,
    )
    serving = Serving(
        access,
        pool,
        dispatcher,
        refusals,
        ServingRules(pool, operation, refusals),
        preemption,
        annotation,
        engines,
        stats,
        config.silent_s,
        predictor,
    )
    opinions = None if encode is None else SecondOpinions(encode, predictor, times, dispatcher, levels)

    # Observers, in the order in which they are called.
    dispatcher.changed += [lifecycle.remove_idle, changes.note, preemption.look]
    dispatcher.changed += [annotation.tell, backlog.look]
    dispatcher.ended += [
        truncations.ended,
        stats.ended,
        metrics.ended,
        lifecycle.ended,
        times.ended,
        learn_queue.ended,
        urgency_stats.ended,
        preemption.ended,
        resubmissions.ended,
    ]
    dispatcher.fired.append(
        Tally(lambda n: say(logging.INFO, f"tau promoted {plural(n, 'request')} in the last minute")).add
    )
    dispatcher.urgency_set.append(urgency_stats.watch)
    admission.admitted += [stats.arrived, urgency_stats.watch]
    stats.compared.append(gain.ran)
    stats.model_of = pool.model_of
    background: list[Callable[[], Awaitable[None]]] = [table.watch, preemption.run]
    if level is not None:
        dispatcher.ended.append(level.ended)
    if opinions is not None:
        admission.admitted.append(opinions.arrived)
        background.append(opinions.run)

    def saver_of(persistence: Persistence) -> StateSaver:
        saver = StateSaver(
            persistence, lifecycle, operation, stats, predictor, learn_queue, gain, config.freeze
        )
        saver.begin()  # which listens to what ends, after all others
        preemption.report()
        lifecycle.joined.append(saver.take_in)
        saver.took_over.append(lambda _: preemption.report())
        spawn(saver.run())
        return saver

    return Daemon(
        gateway=Gateway(admission, serving, Passthrough(pool, access, refusals), control),
        lifecycle=lifecycle,
        operation=operation,
        stats=stats,
        access=access,
        learn_queue=learn_queue,
        snapshots=snapshots,
        recorder=recorder,
        control=control,
        metrics=metrics,
        connections=table,
        preemption=preemption,
        second_opinions=opinions,
        saver_of=saver_of,
        base_url=local_url(host, port),
        drain_timeout_s=config.drain_timeout,
        reload=reload,
        spawn=spawn,
        background=background,
    )
