"""Admits a request to the queue: judges its head, reads its body, predicts its length, submits it.

Only the body is waited for, and nothing is sent: the gateway acts on the verdict.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.inject_field import opening_of
from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_request
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.admission_rules import AdmissionRules, PassOn, ReadBody, Refused
from clairvoyant_cli.proxy.requests.engine_annotation import Annotation
from clairvoyant_cli.proxy.requests.new_exchange import ExchangeFactory
from clairvoyant_cli.proxy.servers.matching import able, speaker
from clairvoyant_cli.scheduler.job import ClientFullError, QueueFullError


@dataclass(slots=True)
class Admission:
    """Decides what becomes of an incoming request. A body longer than `body_limit_bytes` is not parsed.

    `admitted` listeners are called with each exchange that enters the queue.
    """

    rules: AdmissionRules
    factory: ExchangeFactory
    annotation: Annotation
    body_limit_bytes: int = 64 * 1024 * 1024
    admitted: list[Callable[[Exchange], None]] = field(default_factory=list)
    _entering: Counter[str] = field(default_factory=Counter)

    async def admit(self, request: Request) -> Exchange | PassOn | Refused:
        """Judge a request by its head, and by its body if it needs a slot."""
        verdict = self.rules.judge_head(request)
        if not isinstance(verdict, ReadBody):
            return verdict
        request.schedule()
        pieces = await request.read(self.body_limit_bytes)
        with self.entering(verdict) as refused:
            if refused is not None:
                return refused
            adapter = speaker(self.rules.pool, verdict.route.family).adapter
            parsed = await parse_request(pieces, verdict.route, adapter, verdict.client)
            if pieces is None:
                parsed = replace(parsed, opening=opening_of(request.arrived))
            objection = self.annotation.objection(
                parsed, verdict.route, verdict.client, self.rules.access.clients, whole=pieces is not None
            )
            if objection is not None:
                return self._rejected(verdict.route, objection)
            await READING.next()
        with READING:
            return self.enqueue(request, verdict, parsed)

    @contextmanager
    def entering(self, asks: ReadBody) -> Iterator[Refused | None]:
        """Count a request while its body is parsed; yield a refusal if more are than could wait or start."""
        client, pool = asks.client, self.rules.pool
        if self._entering[client] >= pool.queue.capacity + pool.slots:
            yield self._rejected(asks.route, self.rules.refusals.full())
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
        rules = self.rules
        if parsed.bypass or parsed.model in rules.pool.remote_models:
            request.scheduled = False
            return PassOn(asks.route, parsed.model)
        servers = able(rules.pool, asks.route.family, parsed.model)
        refusal = rules.objection(asks, parsed, servers)
        if refusal is None:
            exchange = self.factory.exchange(request, asks, parsed, servers)
            refusal = rules.too_late(exchange) or self._submit(exchange)
            if refusal is not None and rules.service_level is not None:
                rules.service_level.forget(exchange)
        if refusal is not None:
            return self._rejected(asks.route, refusal)
        for listener in self.admitted:
            listener(exchange)
        return exchange

    def _submit(self, exchange: Exchange) -> Refusal | None:
        try:
            self.rules.operation.dispatcher.submit(exchange)
        except ClientFullError:
            return self.rules.refusals.client_full(exchange.job.client)
        except QueueFullError:
            return self.rules.refusals.full()
        return None

    def _rejected(self, route: Route, refusal: Refusal) -> Refused:
        self.rules.stats.rejected_early(route.name, refusal.status)
        return Refused(route, refusal)
