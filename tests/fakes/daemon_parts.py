"""The parts of a daemon without sockets: simulated servers, and a clock that stands still."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from clairvoyant_cli.backends.adapter import Adapter, Status
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.http.fields import Fields
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.access.clients import ClientRules, Clients
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.access.urgency_levels import UrgencyLevels
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.urgency_stats import UrgencyStats
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.requests.admission import Admission, PassOn, Refused
from clairvoyant_cli.proxy.requests.engine_annotation import Annotation
from clairvoyant_cli.proxy.requests.new_exchange import ExchangeFactory, ReadBody
from clairvoyant_cli.proxy.requests.refusals import Refusals
from clairvoyant_cli.proxy.requests.resubmission import Resubmissions
from clairvoyant_cli.proxy.requests.serving import carry_out
from clairvoyant_cli.proxy.requests.serving_rules import Command, ServingEvent, ServingRules
from clairvoyant_cli.proxy.servers.estimates import ServiceTimes
from clairvoyant_cli.proxy.servers.lifecycle import ServerLifecycle
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import PromptView
from tests.fakes.serving import ByFirstWord


def asking(path: str = "/api/chat", method: bytes = b"POST", **headers: str) -> Request:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    head = RequestHead(method, path.encode(), Fields([(b"Host", b"127.0.0.1"), *given]))
    return cast(Request, SimpleNamespace(head=head, connection=SimpleNamespace(peer="ann"), scheduled=True))


@dataclass
class DaemonParts:
    """All parts that decide about a request. `now` is the clock's time, `tasks` what was spawned."""

    dispatcher: Dispatcher
    pool: ServerPool
    lifecycle: ServerLifecycle
    operation: Operation
    stats: RequestStats
    admission: Admission
    rules: ServingRules
    now: list[float]
    tasks: list[Awaitable[None]] = field(default_factory=list)

    def ask(self, prompt: str, *, client: str = "ann", model: str = "m") -> Exchange | PassOn | Refused:
        """Have a chat with this prompt admitted; `0.9 ...` is predicted to be Long."""
        door = self.admission.judge_head(asking())
        assert isinstance(door, ReadBody)
        parsed = ParsedRequest(model=model, view=PromptView(prompt), prompt_tokens=4.0, affinity=model)
        return self.admission.enqueue(asking(), ReadBody(door.route, client), parsed)

    def queued(self, prompt: str, **how: str) -> Exchange:
        exchange = self.ask(prompt, **how)
        assert isinstance(exchange, Exchange)
        return exchange

    def after(self, exchange: Exchange, event: ServingEvent) -> Command:
        """Let something happen to a request, have what follows carried out, and return it."""
        command = self.rules.after(exchange, event)
        carry_out(command, exchange, self.dispatcher, lambda _: asyncio.sleep(0))
        return command

    def becomes(self, name: str, state: str, detail: str = "") -> None:
        worker = self.pool.named(name)
        worker.status.state, worker.status.detail = state, detail
        worker.status.seen = worker.status.seen or state in ("up", "loading")
        self.lifecycle.changed(worker)

    def on(self, exchange: Exchange) -> str:
        return "" if exchange.attempt is None else self.pool.name_of(exchange.attempt.worker)


def daemon_parts(
    *workers: str,
    slots: int = 1,
    capacity: int = 10,
    grace_s: float = 60.0,
    max_wait_s: float | None = None,
    kind: str = "ollama",
    clients: dict[str, ClientRules] | None = None,
) -> DaemonParts:
    now, tasks = [100.0], []

    def clock() -> float:
        return now[0]

    def spawn(work: Awaitable[None]) -> "asyncio.Task[None]":
        tasks.append(work)
        return cast("asyncio.Task[None]", work)

    def close(work: Awaitable[None]) -> "asyncio.Task[None]":
        assert asyncio.iscoroutine(work)
        work.close()
        return cast("asyncio.Task[None]", work)

    access = Access(Clients(rules=clients or {}))
    scheduler = Scheduler(POLICIES["sjf"], workers={}, capacity=capacity, tenants=access.clients.tenants)
    stats = RequestStats(Journal(clock, wall=clock))
    dispatcher = Dispatcher(scheduler, clock=clock, spawn=spawn)
    pool = ServerPool(scheduler)
    stats.name_of = pool.name_of
    lifecycle = ServerLifecycle(ServeConfig(outage_grace=grace_s), pool, dispatcher, stats.journal, close, ())
    times = ServiceTimes(pool, stats.journal.event)
    for number, name in enumerate(workers or ("mac",)):
        lifecycle.adopt(_server(name, adapter_of(kind), number, slots))
        pool.named(name).loaded = None  # until its state changes for the first time, loading costs nothing
    scheduler.residency.unknown_s = 0.0
    dispatcher.changed.append(lifecycle.remove_idle)
    dispatcher.ended += [stats.ended, lifecycle.ended, times.ended]
    predictor = ByFirstWord()
    operation = Operation(dispatcher, None, clock, stats.journal.event)
    operation.max_wait_s = max_wait_s
    refusals = Refusals(pool, stats)
    urgency = UrgencyStats(clock, stats.journal.event, target_s=10.0)
    annotation = Annotation(pool, operation, stats.journal.at, stats.journal.event)
    admission = Admission(
        access,
        pool,
        operation,
        stats,
        refusals,
        ExchangeFactory(
            access, predictor, times, UrgencyLevels(access), stats.journal, Resubmissions(stats.journal)
        ),
        annotation,
        admitted=[stats.arrived, urgency.watch],
    )
    rules = ServingRules(pool, operation, refusals)
    return DaemonParts(dispatcher, pool, lifecycle, operation, stats, admission, rules, now, tasks)


def _server(name: str, adapter: Adapter, number: int, slots: int) -> Server:
    upstream = Upstream(f"http://127.0.0.1:{9000 + number}")
    config, status = BackendConfig(name), Status("up", seen=True, slots=slots)
    return Server(name, adapter, upstream, Prober(), config=config, status=status)
