"""Admits a request to the queue: judges its head, reads its body, predicts its length, submits it.

Only the body is waited for, and nothing is sent: the gateway acts on the verdict.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from clairvoyant_cli.backends.prober import MARK_HEADER
from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.named_model import named_model
from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_request
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.requests.engine_annotation import Annotation
from clairvoyant_cli.proxy.requests.new_exchange import ExchangeFactory, ReadBody
from clairvoyant_cli.proxy.requests.refusals import DRAINING, IN_A_LOOP, NO_CONNECT, SHUTTING_DOWN, Refusals
from clairvoyant_cli.proxy.servers.matching import able, given_up, speaker
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.job import ClientFullError, QueueFullError


@dataclass(frozen=True, slots=True)
class Refused:
    route: Route
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PassOn:
    """The request needs no slot and goes straight to a server. `model` is the one it names, if known."""

    route: Route
    model: str = ""


Check = Callable[[ParsedRequest, Sequence[Server]], Refusal | None]
"""Returns why a request is refused that the given servers could serve; None if it is not."""


@dataclass(slots=True)
class Admission:
    """Decides what becomes of an incoming request. A body longer than `body_limit_bytes` is not parsed.

    It refuses requests also by a `check`, and those that would miss the `service_level`.
    `admitted` listeners are called with each exchange that enters the queue.
    """

    access: Access
    pool: ServerPool
    operation: Operation
    stats: RequestStats
    refusals: Refusals
    factory: ExchangeFactory
    annotation: Annotation
    body_limit_bytes: int = 64 * 1024 * 1024
    service_level: ServiceLevel | None = None
    check: Check | None = None
    admitted: list[Callable[[Exchange], None]] = field(default_factory=list)
    _entering: Counter[str] = field(default_factory=Counter)

    async def admit(self, request: Request) -> Exchange | PassOn | Refused:
        """Judge a request by its head, and by its body if it needs a slot."""
        verdict = self.judge_head(request)
        if not isinstance(verdict, ReadBody):
            return verdict
        request.schedule()
        pieces = await request.read(self.body_limit_bytes)
        with self.entering(verdict) as refused:
            if refused is not None:
                return refused
            adapter = speaker(self.pool, verdict.route.family).adapter
            whole = pieces is not None
            parsed = await parse_request(
                request.arrived if pieces is None else pieces,
                verdict.route,
                adapter,
                verdict.client,
                whole=whole,
            )
            objection = self.annotation.objection(
                parsed, verdict.route, verdict.client, self.access.clients, whole=whole
            )
            if objection is not None:
                return self._rejected(verdict.route, objection)
            await READING.next()
        with READING:
            return self.enqueue(request, verdict, parsed)

    def judge_head(self, request: Request) -> ReadBody | PassOn | Refused:
        head = request.head
        head.origin_form = self.pool.without_prefix(head.origin_form)
        route = self.pool.first.adapter.route_of(head.method, head.path)
        mark = head.get(MARK_HEADER)
        if mark is not None and any(server.watch.came_back(mark) for server in self.pool):
            return Refused(route, IN_A_LOOP)
        client = self.access.admit(request)
        if isinstance(client, Refusal):
            return Refused(route, client)
        if head.method == b"CONNECT":
            return Refused(route, NO_CONNECT)
        if self.operation.stopping:
            return Refused(route, SHUTTING_DOWN)
        if not route.scheduled:
            return PassOn(route)
        return ReadBody(route, client, self.access.shown_name(head, client))

    @contextmanager
    def entering(self, asks: ReadBody) -> Iterator[Refused | None]:
        """Count a request while its body is parsed; yield a refusal if more are than could wait or start."""
        client = asks.client
        if self._entering[client] >= self.pool.queue.capacity + self.pool.slots:
            yield self._rejected(asks.route, self.refusals.full())
            return
        self._entering[client] += 1
        try:
            yield None
        finally:
            self._entering[client] -= 1
            if not self._entering[client]:
                del self._entering[client]

    def enqueue(self, request: Request, asks: ReadBody, parsed: ParsedRequest) -> Exchange | PassOn | Refused:
        """Predict a request's length and submit it to the queue, or refuse it."""
        if parsed.bypass or parsed.model in self.pool.remote_models:
            request.scheduled = False
            return PassOn(asks.route, parsed.model)
        if not parsed.model and len(self.pool) > 1:
            parsed.model = named_model(request.arrived, request.head.get(b"content-encoding"))
        servers = able(self.pool, asks.route.speakers, parsed.model, parsed.follows)
        refusal = self._objection(asks.client, parsed, servers)
        if refusal is None:
            exchange = self.factory.exchange(request, asks, parsed, servers)
            refusal = self._too_late(exchange) or self._submit(exchange)
            if refusal is not None and self.service_level is not None:
                self.service_level.forget(exchange)
        if refusal is not None:
            return self._rejected(asks.route, refusal)
        for listener in self.admitted:
            listener(exchange)
        return exchange

    def _objection(self, client: str, parsed: ParsedRequest, able: Sequence[Server]) -> Refusal | None:
        """Return why a request is not accepted now; None if it is."""
        if self.operation.draining:
            return DRAINING
        if all(server.leads_back for server in able):
            return IN_A_LOOP
        # If nothing is in flight, one request may find out whether a loading server serves by now.
        if given_up(able) and not (self.pool.loading and not self.operation.dispatcher.live):
            return self.refusals.away(able[0])
        if all(server.draining for server in able):
            return self.refusals.draining_alone(able)
        return None if self.check is None else self.check(parsed, able)

    def _too_late(self, exchange: Exchange) -> Refusal | None:
        """Return a refusal if a request's predicted TTFT exceeds the service level."""
        level = self.service_level
        retry_after_s = None if level is None else level.retry_after_s(exchange)
        if level is None or retry_after_s is None:
            return None
        return self.refusals.too_late(level.text, retry_after_s)

    def _submit(self, exchange: Exchange) -> Refusal | None:
        try:
            self.operation.dispatcher.submit(exchange)
        except ClientFullError:
            return self.refusals.client_full(exchange.job.client)
        except QueueFullError:
            if exchange.kept_age_s:  # it has waited before, and may be sent once more
                self.factory.resubmissions.keep(exchange, self.operation.clock())
            return self.refusals.full()
        return None

    def _rejected(self, route: Route, refusal: Refusal) -> Refused:
        self.stats.rejected_early(route.name, refusal.status)
        return Refused(route, refusal)
