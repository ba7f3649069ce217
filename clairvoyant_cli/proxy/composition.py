"""The daemon: its parts, and who hears of what, in which order."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from clairvoyant_cli.addresses import Address, joined, local_url
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.limits import DRAINING_TIMEOUT_S, ConnectionTable
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.protocols.stable_prefix import StablePrefix
from clairvoyant_cli.proxy.access.clients import Clients
from clairvoyant_cli.proxy.access.clients_file import ClientsFile
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.control_api import CONTROL_PREFIX, Actions, ControlApi
from clairvoyant_cli.proxy.journal import COALESCE_S, Journal
from clairvoyant_cli.proxy.learning.learn_queue import LearnQueue
from clairvoyant_cli.proxy.learning.persistence import Persistence, StateSaver
from clairvoyant_cli.proxy.listening_socket import max_connections
from clairvoyant_cli.proxy.observing.gain import Gain
from clairvoyant_cli.proxy.observing.metrics import Metrics
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.request_views import RequestViews
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder, StateRecorder
from clairvoyant_cli.proxy.observing.tally import Tally
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher, Spawn
from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.proxy.queue.exchange import DrainingError, Exchange, RequestEnd
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.requests.admission import Admission, ExchangeFactory, PassOn, UrgencyLevels
from clairvoyant_cli.proxy.requests.encoder import Encode, SecondOpinions
from clairvoyant_cli.proxy.requests.kept_places import Resubmissions
from clairvoyant_cli.proxy.requests.passthrough import Passthrough
from clairvoyant_cli.proxy.requests.preemption import Preemption
from clairvoyant_cli.proxy.requests.refusals import Refusals
from clairvoyant_cli.proxy.requests.serving import ServedRequest, Serving
from clairvoyant_cli.proxy.requests.serving_rules import ServingRules
from clairvoyant_cli.proxy.requests.truncations import Truncations
from clairvoyant_cli.proxy.servers.engine_queue import Annotation, EngineQueues
from clairvoyant_cli.proxy.servers.lifecycle import ServerLifecycle
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.server_actions import ServerActions
from clairvoyant_cli.proxy.servers.service_times import ServiceTimes
from clairvoyant_cli.proxy.tasks import Callbacks
from clairvoyant_cli.scheduler.policy import (
    DEFAULT_POLICY,
    POLICIES,
    RETIRED,
    URGENCY_POLICY,
    Policy,
    tau_from_setting,
    unknown_policy,
)
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.settings import did_you_mean
from clairvoyant_cli.state.last_day import LastDay
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import raise_open_files
from predictor.record import Predictor, UrgencyPredictor

MAX_SAID = 1000  # clients that the operator has put in the background, or taken out of it


class Daemon:
    """All parts of a daemon; nothing runs until `running_daemon` starts it.

    Its ports are arguments: `servers`, predictors, clocks, and `spawn`, which starts a task. Persistence
    comes by `remember`. It listens on its `own` addresses.
    """

    def __init__(
        self,
        config: ServeConfig,
        predictor: Predictor,
        *,
        access: Access,
        clients_file: ClientsFile,
        servers: Iterable[Server],
        own: Sequence[Address],
        spawn: Spawn,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        encode: Encode | None = None,
        urgency: UrgencyPredictor | None = None,
    ) -> None:
        self.config, self.predictor, self.access, self.spawn = config, predictor, access, spawn
        self.admitted: Callbacks[Exchange] = Callbacks()
        self.base_url, self.drain_timeout_s = local_url(*own[0]), config.drain_timeout
        self.state_saver: StateSaver | None = None
        self.replaced = False  # another daemon has taken the place of this one, or is about to
        journal = self.journal = Journal(clock, wall)
        say = journal.event
        if config.policy in RETIRED:
            say(logging.WARNING, unknown_policy(config.policy))
        self.connections = ConnectionTable(
            client_timeout_s=config.client_timeout,
            most=max_connections(config.max_connections, raise_open_files()),
        )

        # The queue, its servers, and how both are operated.
        scheduler = Scheduler(
            policy_of(config),
            servers={},
            tau_s=tau_from_setting(config.tau),
            capacity=config.queue_capacity,
            tenants=access.clients.tenants,
            everybody=access.clients.defaults.tenant,
        )
        dispatcher = self.dispatcher = Dispatcher(scheduler, clock=clock, spawn=spawn, listener=self)
        self.connections.slot_wanted = lambda: len(scheduler) > 0
        pool = self.pool = ServerPool(scheduler)
        times = self.times = ServiceTimes(pool, say)
        self.lifecycle = ServerLifecycle(config, pool, dispatcher, journal, spawn, own, self.joined)
        for server in servers:
            self.lifecycle.adopt(server)
        tau_from = "default" if config.tau is None else "flag"
        operation = self.operation = Operation(dispatcher, clock, tau_from, max_wait_s=config.max_wait)
        self.learn_queue = LearnQueue(predictor)
        level = None if config.slo is None else ServiceLevel(config.slo, scheduler, clock, say)
        self.service_level = level

        # What is observed.
        self.metrics, self.tally = Metrics(journal.refused), Tally(wall)
        self.gain = Gain(self.tally)
        self.compared = Callbacks(self.gain.compared)  # with each wait in order of arrival, once it is known
        stats = self.stats = RequestStats(journal)
        self.views = RequestViews(pool, journal)
        engines, levels = EngineQueues(dispatcher, pool), UrgencyLevels(access, urgency)
        self.snapshots = SnapshotBuilder(
            operation=operation,
            pool=pool,
            stats=stats,
            views=self.views,
            access=access,
            predictor=predictor,
            urgency_predictor="" if urgency is None else urgency.name,
            engines=engines,
            listen=joined(*own[0]),
            started_s=clock(),
            gain=self.gain,
            tally=self.tally,
            show_prompts=config.show_prompts,
            service_level=level,
        )
        self.recorder = StateRecorder(self.snapshots)
        body_limit_bytes = config.body_limit_mib * 1024 * 1024
        actions = Actions(operation, journal, ServerActions(self.lifecycle), self.say_of, self.reload)
        self.control = ControlApi(
            access,
            actions,
            self.snapshots,
            self.metrics,
            self.recorder.history,
            lambda path, body: self.admission.predicted(path, body),  # it is made below
            self.last_day,
            body_limit_bytes,
        )

        # The way of a request.
        self.truncations = Truncations(times, say)
        refusals = self.refusals = Refusals(pool, journal, self.truncations)
        self.resubmissions = Resubmissions()
        self.preemption = Preemption(dispatcher, pool, operation, journal, spawn, which=config.preempt)
        self.annotation = Annotation(pool, operation, access, journal.at)
        self.admission: Admission = Admission(
            access=access,
            pool=pool,
            operation=operation,
            journal=journal,
            refusals=refusals,
            factory=ExchangeFactory(
                access=access,
                predictor=predictor,
                times=times,
                levels=levels,
                journal=journal,
                resubmissions=self.resubmissions,
                show_prompts=config.show_prompts,
                record_prompts=config.record_prompts,
            ),
            annotation=self.annotation,
            body_limit_bytes=body_limit_bytes,
            service_level=level,
            check=self.truncations.refusal if config.refuse_truncated else None,
            admitted=self.admitted,
            stable_prefix=None if config.stable_prefix == "off" else StablePrefix(config.prefix_rules.move),
        )
        self.rules = ServingRules(pool, operation, refusals)
        self.serving = Serving(
            access=access,
            pool=pool,
            dispatcher=dispatcher,
            refusals=refusals,
            rules=self.rules,
            preemption=self.preemption,
            annotation=self.annotation,
            engines=engines,
            journal=journal,
            silent_s=config.silent_s,
            max_answer_s=config.max_answer_s,
            predictor=predictor,
        )
        self.passthrough = Passthrough(pool, access, refusals)
        self.second_opinions = (
            None if encode is None else SecondOpinions(encode, predictor, times, dispatcher, levels)
        )

        # Who hears of a request that has joined the queue and may have a slot already, of an end (see
        # `Dispatcher`), and of a change of the queue or of what runs.
        self.admitted.functions += [
            stats.arrived,
            *([] if self.second_opinions is None else [self.second_opinions.arrived]),
        ]
        self.settle = Callbacks(
            self.truncations.judge,  # first: the others heed that its prompt was cut
            self.times.settle,  # before preemption, which drops the context that this updates
            self.preemption.settle,
            self.lifecycle.settle,
            self._record,
        )
        self.keepers: Callbacks[Ended] = Callbacks(  # in any order
            stats.ended,
            self.metrics.ended,
            self.times.ended,
            self.learn_queue.ended,
            self.resubmissions.ended,
            self.tally.ended,
            *([] if level is None else [level.ended]),
        )
        self.changed = Callbacks(
            self.lifecycle.remove_idle,  # first: without a server the queue is another
            self.preemption.decide_soon,
            self._compare,
            self.snapshots.backlog.look,
            self.control.changed,  # dashboards are told once all of this is in the state
        )

        self._clients_file, self._reloading = clients_file, asyncio.Lock()
        self._fired = 0
        self._asked, self._stopped = asyncio.Event(), asyncio.Event()
        self._drain_ends_s = float("inf")

    # -- requests, and who hears of them --------------------------------------------------------------------

    async def handle(self, request: Request) -> None:
        """Have a request answered: by the control API, straight by a server, or through the queue."""
        if request.head.path.startswith(CONTROL_PREFIX):
            request.queued_as = ""
            await self.control(request)
            return
        admitted = await self.admission.admit(request)
        request.queued_as = admitted.id if isinstance(admitted, Exchange) else ""
        if isinstance(admitted, Exchange):
            await ServedRequest(self.serving, admitted, request).serve()
        elif isinstance(admitted, PassOn):
            self.journal.counts["passed_through"] += 1
            await self.passthrough.pass_on(request, admitted.route, admitted.client, admitted.model)
        else:
            self.refusals.send(request, admitted.route, admitted.refusal)

    def urgency_set(self, exchange: Exchange) -> None:
        """The urgency of a request has changed."""
        self.stats.watch(exchange.job)

    def fired(self) -> None:
        """Tau has started a request. A minute after the first, the log tells how many there were."""
        self._fired += 1
        if self._fired == 1:
            asyncio.get_running_loop().call_later(COALESCE_S, self._tell_fired)

    def _tell_fired(self) -> None:
        promoted, self._fired = plural(self._fired, "request"), 0
        self.journal.event(logging.INFO, f"tau promoted {promoted} in the last minute")

    def _record(self, exchange: Exchange, end: RequestEnd) -> None:
        """Make the record of a request that has ended, and have it compared with the order of arrival."""
        of = exchange.ended = self.views.ended(exchange, end)
        self.dispatcher.scheduler.arrival_order.ended(of.id, of.figures if of.counts else None, of.resumed_s)

    def _compare(self) -> None:
        """Tell of the requests whose wait in order of arrival has become known."""
        for pair in self.dispatcher.scheduler.arrival_order.settle():
            self.compared(pair)

    def ended(self, exchange: Exchange) -> None:
        """Tell the keepers of a request that has ended, and has given back its slot or its place."""
        if exchange.ended is not None:
            self.keepers(exchange.ended)

    def joined(self, server: Server) -> None:
        """A server has joined while the daemon runs, or is of another kind than was thought."""
        if self.state_saver is not None:
            self.spawn(self.state_saver.take_in(server))

    # -- operation ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        return self.snapshots.snapshot()

    def last_day(self) -> LastDay | None:
        """Return what happened in the last 24 hours; None if nothing is recorded."""
        if self.state_saver is None:
            return None
        incidents = self.state_saver.incidents
        incidents.look(self.journal.wall())
        return self.tally.last_day(incidents.known.values())

    def remember(self, persistence: Persistence | None) -> None:
        """Load profiles and learned state, and record what follows. At any time, once."""
        if persistence is None:
            return
        saver = StateSaver(
            persistence=persistence,
            lifecycle=self.lifecycle,
            operation=self.operation,
            journal=self.journal,
            stats=self.stats,
            known_clients=lambda: {*self.access.clients.listed, *self.access.clients.said},
            predictor=self.predictor,
            learn_queue=self.learn_queue,
            gain=self.gain,
            freeze=self.config.freeze,
            took_over=self.preemption.report,
        )
        saver.begin()
        self.state_saver = saver
        for exchange in self.dispatcher.live.values():  # the database may open late
            saver.began(exchange)
        self.admitted.functions.append(saver.began)
        self.keepers.functions.append(saver.ended)
        self.compared.functions.append(saver.compared)
        self.preemption.report()
        self.spawn(saver.run())

    async def reload(self) -> str:
        """Read the clients file again and return a message; ClairvoyantError if it is unusable, and nothing
        changes.
        """
        async with self._reloading:  # the file as it was read last holds
            return await self._clients_file.read_again(self.access.clients, self._take_clients, self.journal)

    def _take_clients(self, clients: Clients) -> None:
        before, said = self.access.clients, self.access.clients.said
        self.access.clients = replace(clients, said=said)
        self.operation.set_clients(self.access.clients, before)

    def say_of(self, client: str, *, background: bool) -> str:
        """Put all requests of a client in the background from now on, or none; return why not, "" if done."""
        clients = self.access.clients
        known = (clients.rules, clients.said, self.dispatcher.scheduler.clients.counts, self.stats.tokens)
        if not any(client in each for each in known):
            return f"no client {client!r} has sent anything; see: clairvoyant status"
        said = {**clients.said, client: background}
        if len(said) > MAX_SAID:
            return f"this was said of {MAX_SAID:,} clients already; give them tables in the clients file"
        self.access.clients = replace(clients, said=said)
        self.operation.set_clients(self.access.clients, clients)
        return ""

    def drain(self, within_s: float = float("inf")) -> None:
        """Shut down in order: refuse new requests, reject queued ones, finish what runs `within_s`."""
        if self.replaced:
            self.operation.stopping = True
            news = "this daemon is replaced and ends after its last request; repeat the signal to stop it now"
            self.journal.event(logging.INFO, news)
            return
        self.drain_timeout_s = min(self.drain_timeout_s, within_s)
        self.operation.draining = self.operation.stopping = True
        sent_away = self.dispatcher.send_away_waiting(DrainingError, suspended=False)
        news = f"stopping: {plural(sent_away, 'queued request')} rejected; " if sent_away else "stopping: "
        if left := self._left():
            news += f"waiting up to {self.drain_timeout_s:g} s for {left}; repeat the signal to stop now"
        else:
            news += "nothing is running"
        self.journal.event(logging.INFO, news)
        self._drain_ends_s = self.journal.clock() + self.drain_timeout_s
        connections = self.connections
        connections.client_timeout_s = min(connections.client_timeout_s, DRAINING_TIMEOUT_S)
        for connection in list(connections.every):
            connection.retire()
        self._asked.set()

    def _left(self) -> str:
        running, tunnels = len(self.dispatcher.scheduler.running), self.connections.tunnels
        counts = ((running, "running request"), (tunnels, "open WebSocket"))
        return " and ".join(plural(count, what) for count, what in counts if count)

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
            owed = any(exchange.end is None for exchange in self.dispatcher.live.values())
            if self.operation.stopping and not owed:
                self.control.stop()  # no sooner: dashboards see it shut down
                if all(each.idle for each in self.connections.every):
                    if left := self.connections.tunnels:
                        news = f"closing {plural(left, 'open tunnel')} (WebSocket) without traffic"
                        self.journal.event(logging.INFO, news)
                    return
            if self.journal.clock() >= self._drain_ends_s:
                news = f"{self._left()} did not end within {self.drain_timeout_s:g} s: stopping now"
                self.journal.event(logging.WARNING, news)
                return


def policy_of(config: ServeConfig) -> Policy:
    """Return the policy to start with; ClairvoyantError if there is none of that name."""
    usual = DEFAULT_POLICY if config.urgency is None else URGENCY_POLICY
    name = DEFAULT_POLICY if config.policy in RETIRED else config.policy or usual
    try:
        return POLICIES[name]
    except KeyError:
        hint = did_you_mean(name, POLICIES)
        raise ClairvoyantError(unknown_policy(name) + hint, ExitCode.USAGE) from None
