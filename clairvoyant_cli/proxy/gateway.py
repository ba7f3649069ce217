"""What happens to a request between the two connections: refuse it, pass it through, or schedule it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.http.loop_turn import READING
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import (
    NotReadyError,
    StaleError,
    UnreachableError,
    UpstreamConnection,
    UpstreamError,
)
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_request
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.protocols.usage import AnswerWatch
from clairvoyant_cli.proxy.access import Access
from clairvoyant_cli.proxy.backend_watch import PATIENCE_S, BackendWatch
from clairvoyant_cli.proxy.clients import Clients
from clairvoyant_cli.proxy.dispatcher import Dispatcher
from clairvoyant_cli.proxy.exchange import (
    DisplacedError,
    DrainingError,
    Exchange,
    OperatorCancelledError,
    Outcome,
    Phase,
)
from clairvoyant_cli.proxy.fallback import Fallback
from clairvoyant_cli.proxy.learn_queue import LearnQueue
from clairvoyant_cli.proxy.outage import Outage, OutageError
from clairvoyant_cli.proxy.relay import Relay
from clairvoyant_cli.proxy.request_stats import RequestStats
from clairvoyant_cli.proxy.residents import Residents
from clairvoyant_cli.scheduler.job import ClientFullError, Job, QueueFullError
from clairvoyant_cli.scheduler.policy import POLICIES
from predictor.record import Prediction, Predictor, Task

log = logging.getLogger("clairvoyant")

CONTROL_PREFIX = "/_clairvoyant/"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator chose for the way of a request."""

    max_wait_s: float | None = None
    overload_status: int = 503
    body_limit_bytes: int = 64 * 1024 * 1024
    show_prompts: bool = False
    backend_key: bytes | None = None


Control = Callable[[Request], Awaitable[None]]


@dataclass(slots=True)
class Gateway:
    """Serves each request that the listener hands over."""

    watch: BackendWatch
    dispatcher: Dispatcher
    predictor: Predictor
    request_stats: RequestStats
    access: Access
    rules: Rules
    control: Control
    fallback: Fallback
    outage: Outage
    residents: Residents | None = None
    learn_queue: LearnQueue = field(init=False)
    draining: bool = False
    stopping: bool = False
    _ids: int = field(default=0)
    _entering: dict[str, int] = field(default_factory=dict)
    _boot: str = field(default_factory=lambda: f"{int(time.time()) & 0xFFFFF:05x}")

    def __post_init__(self) -> None:
        self.learn_queue = LearnQueue(self.predictor, self._has_learned)

    async def handle(self, request: Request) -> None:
        """Serve one request to its end."""
        path = request.head.path
        if path.startswith(CONTROL_PREFIX):
            await self.control(request)
            return
        backend = self.watch.backend
        route = backend.adapter.route_of(request.head.method, path, backend.prefix)
        client = self.access.admit(request)
        if isinstance(client, Refusal):
            self._refuse(request, route, client)
            return
        if request.head.method == b"CONNECT":
            self._refuse(request, route, Refusal(405, "clairvoyant: CONNECT is not spoken here"))
            return
        if self.stopping:
            self._refuse(request, route, GOING_DOWN)
            return
        if not route.scheduled:
            await self._pass(request, route)
            return
        request.schedule()
        pieces = await request.read(self.rules.body_limit_bytes)
        entering = self._entering.get(client, 0)
        if entering >= self.dispatcher.scheduler.capacity + backend.slots:
            # More at once than can wait or start: the rest is refused before it costs anybody time.
            self._reject(request, route, self._overload(FULL))
            return
        self._entering[client] = entering + 1
        try:
            parsed = await parse_request(pieces, route, backend.adapter, client)
            await READING.next()
        finally:
            self._entering[client] -= 1
            if not self._entering[client]:
                del self._entering[client]
        if parsed.bypass or parsed.model in backend.remote_models:
            request.scheduled = False
            await self._pass(request, route)
            return
        await self._schedule(request, route, parsed, client)

    def choose_policy(self, name: str) -> None:
        """Order by another policy from now on; what waits is reordered."""
        self.dispatcher.scheduler.set_policy(POLICIES[name], self.request_stats.clock())

    def set_clients(self, clients: Clients) -> None:
        """Let other clients in, by other rules, from now on; what waits follows them."""
        self.access.clients = clients
        everybody = clients.defaults.tenant

        def priority_of(job: Job) -> int:
            return clients.rules_of(job.client).clamped(job.priority)

        self.dispatcher.scheduler.set_tenants(
            clients.tenants, self.request_stats.clock(), everybody, priority_of
        )
        self.dispatcher.moved()

    # -- straight through ---------------------------------------------------------------------------

    async def _pass(self, request: Request, route: Route) -> None:
        self.request_stats.passed_through += 1
        try:
            await self._relayed(request)
        except StaleError as error:
            if not _repeatable(request.head):
                self._broken(request, route, error)
                return
            try:
                await self._relayed(request, fresh=True)
            except UpstreamError as again:
                self._broken(request, route, again)
        except UpstreamError as error:
            self._broken(request, route, error)

    async def _relayed(self, request: Request, *, fresh: bool = False) -> None:
        """Send a request to the backend and its answer to the client; `fresh` on a new connection."""
        upstream: UpstreamConnection | None = None
        relay: Relay | None = None
        try:
            upstream = await self.watch.backend.upstream.connect(fresh=fresh)
            relay = Relay(request, upstream)
            self._send(request, upstream, relay)
            await relay.finished
        except asyncio.CancelledError:
            if relay is not None and relay.whole:
                return  # the connection may serve another request by now
            if upstream is not None:
                upstream.abort()
            raise

    def _send(self, request: Request, upstream: UpstreamConnection, relay: Relay) -> None:
        head = request.head
        extra: list[Header] = []
        if request.expects_continue:
            extra.append((b"Expect", b"100-continue"))
            request.welcome_body_soon()
        drop = self.access.consumed_headers
        if self.rules.backend_key is not None:
            drop = (*drop, b"authorization")
            if head.method.upper() != b"TRACE":  # whose answer is the request itself
                extra.append((b"Authorization", b"Bearer " + self.rules.backend_key))
        upstream.throttle = request.connection
        upstream.begin(head, head.encode(self.watch.backend.upstream.host_header, *extra, drop=drop), relay)
        if head.has_body:
            request.flow_to(upstream, keep=relay.may_wait)
        upstream.uncork()

    # -- through the queue --------------------------------------------------------------------------

    async def _schedule(self, request: Request, route: Route, parsed: ParsedRequest, client: str) -> None:
        with READING:
            queued = self._queued(request, route, parsed, client)
        if isinstance(queued, Refusal):
            self._reject(request, route, queued)
            return
        try:
            await self._served(queued, request)
        except Exception:
            self.dispatcher.end(queued, Outcome.UPSTREAM_ERROR, 500)
            raise

    def _queued(
        self, request: Request, route: Route, parsed: ParsedRequest, client: str
    ) -> Exchange | Refusal:
        """Foretell a request and put it into the queue, or say why it has no place there."""
        if self.draining:
            return Refusal(503, "clairvoyant is draining; try again in a moment", 5)
        quota = self.access.clients.rules_of(client).tokens_per_day
        if quota is not None and self.request_stats.today.spent(client) >= quota:
            return self.request_stats.today.refusal(quota)
        if self.outage.over and not self._may_try():
            return Refusal(503, self._away(), 5)
        exchange = self._exchange(request, route, parsed, client)
        try:
            self.dispatcher.submit(exchange)
        except ClientFullError:
            message = f"clairvoyant: as many requests of {client} wait as may; try again when one is answered"
            return self._overload(message, busy=False)
        except QueueFullError:
            return self._overload(FULL)
        self.request_stats.arrived(exchange)
        return exchange

    async def _served(self, exchange: Exchange, request: Request) -> None:
        """See a queued exchange through to its end, through as many grants as it takes to send it."""
        while await self._granted(exchange, request) and not await self._run(exchange, request):
            continue

    async def _granted(self, exchange: Exchange, request: Request) -> bool:
        """Wait for a slot; False if the exchange has ended without one."""
        try:
            await self._wait(exchange)
        except TimeoutError:
            message = f"clairvoyant: no slot became free within {self.rules.max_wait_s:g} s"
            self._end_refused(exchange, request, Outcome.TIMEOUT, self._overload(message))
        except DisplacedError:
            self._end_refused(exchange, request, Outcome.REJECTED, self._overload(FULL))
        except DrainingError:
            self._end_refused(exchange, request, Outcome.REJECTED, GOING_DOWN)
        except OutageError:
            refusal = Refusal(503, self._away(), 5)
            self._end_refused(exchange, request, Outcome.UPSTREAM_ERROR, refusal)
        except OperatorCancelledError:
            self._end_refused(exchange, request, Outcome.CLIENT_CANCELLED, STOPPED)
        except asyncio.CancelledError:
            if exchange.stopped_by_operator:  # granted, but not sent yet
                self._end_refused(exchange, request, Outcome.CLIENT_CANCELLED, STOPPED)
                return False
            self.dispatcher.end(exchange, Outcome.CLIENT_CANCELLED, 499)
            raise
        else:
            return True
        return False

    def _exchange(self, request: Request, route: Route, parsed: ParsedRequest, client: str) -> Exchange:
        now = self.request_stats.clock()
        prediction = self._predict(parsed)
        predicted_in_s = self.request_stats.clock() - now
        self._ids += 1
        tokens = prediction.expected_tokens * parsed.choices
        job = Job(
            id=f"{self._boot}-{self._ids}",
            arrival_s=now,
            p_long=prediction.p_long,
            cost_s=self._cost_s(parsed, tokens),
            cost_q90_s=self._cost_s(parsed, prediction.q90_tokens * parsed.choices),
            tokens=tokens,
            prompt_tokens=parsed.prompt_tokens,
            client=client,
            model=parsed.model,
            affinity=parsed.affinity if self.residents is None else self.residents.affinity_of(parsed),
            priority=self.access.priority_of(request, client, parsed.priority),
        )
        return Exchange(
            job=job,
            route=route,
            endpoint=route.name,
            parsed=parsed,
            prediction=prediction,
            granted=asyncio.get_running_loop().create_future(),
            prompt=parsed.view.prompt[:4000] if self.rules.show_prompts and parsed.view else None,
            task=asyncio.current_task(),
            predicted_in_s=predicted_in_s,
        )

    def _predict(self, parsed: ParsedRequest) -> Prediction:
        view = parsed.view
        if view is None:
            return UNKNOWN
        if view.task is Task.EMBEDDING:
            return EMBEDDING
        try:
            return self.predictor.predict(view)
        except Exception:
            log.exception("the predictor failed; the request counts as one of unknown length")
            return UNKNOWN

    def _cost_s(self, parsed: ParsedRequest, tokens: float) -> float:
        return self.watch.backend.speeds.seconds(parsed.prompt_tokens, tokens)

    async def _wait(self, exchange: Exchange) -> None:
        if exchange.granted.done():
            exchange.granted.result()
            return
        patience_s = self.rules.max_wait_s
        if patience_s is not None:
            patience_s -= self.request_stats.clock() - exchange.job.arrival_s
        async with asyncio.timeout(patience_s):
            await exchange.granted

    async def _run(self, exchange: Exchange, request: Request) -> bool:
        """Have a granted exchange answered; False if the backend has gone and never saw it."""
        if request.connection.gone:
            self.dispatcher.end(exchange, Outcome.CLIENT_CANCELLED, 499)
            return True
        relay: Relay | None = None
        try:
            exchange.connection = await self.watch.backend.upstream.connect()
            request.holds_slot = True
            relay = self._relay(exchange, request, exchange.connection)
            self._send(request, exchange.connection, relay)
            exchange.phase = Phase.PREFILL
            await relay.finished
        except UnreachableError as error:
            self.watch.lost(str(error))
            if self.watch.backend.seen and not self.outage.over:
                return self._sent_back(exchange, request)
            self.dispatcher.end(exchange, Outcome.UPSTREAM_ERROR, 503)
            self._broken(request, exchange.route, error, self._told(exchange))
        except NotReadyError:
            self.watch.not_ready()
            exchange.not_ready_s = exchange.not_ready_s or self.request_stats.clock()
            return self._sent_back(exchange, request)
        except UpstreamError as error:
            status = relay.status if relay is not None and relay.status else 502
            self.dispatcher.end(exchange, Outcome.UPSTREAM_ERROR, status)
            self._broken(request, exchange.route, error, self._told(exchange))
        except asyncio.CancelledError:
            if relay is not None and relay.whole:
                # The client left with the last byte. The connection may serve another request by now.
                self._settle(exchange, relay.status)
                return True
            if exchange.connection is None or (relay is not None and relay.broken):
                self.dispatcher.end(exchange, Outcome.CLIENT_CANCELLED, 499)
            else:
                status = relay.status if relay is not None and relay.status else 499
                exchange.connection.let_go()
                outcome = Outcome.COMPLETED if _has_heard_all(exchange) else Outcome.CLIENT_CANCELLED
                self.dispatcher.abandon(exchange, outcome, status, self.released)
                if outcome is Outcome.COMPLETED:
                    self._learn(exchange)
            if exchange.stopped_by_operator and not request.connection.head_sent:
                self._refuse(request, exchange.route, STOPPED, self._told(exchange))
                return True
            raise
        else:
            self._settle(exchange, relay.status)
        return True

    def _sent_back(self, exchange: Exchange, request: Request) -> bool:
        """Have an exchange wait again that the backend did not take; True if there is nothing to wait for."""
        if self.stopping:
            self._end_refused(exchange, request, Outcome.REJECTED, GOING_DOWN)
        elif self.outage.over:
            self._end_refused(exchange, request, Outcome.UPSTREAM_ERROR, Refusal(503, self._away(), 5))
        else:
            self.dispatcher.wait_again(exchange)
            return False
        return True

    def _may_try(self) -> bool:
        """Whether a request is let in to see if a backend serves that has long said it does not yet."""
        return self.watch.backend.state == "loading" and not self.dispatcher.live

    def _relay(self, exchange: Exchange, request: Request, upstream: UpstreamConnection) -> Relay:
        def on_head(head: ResponseHead) -> AnswerWatch:
            self.watch.answered()
            request.sent()
            exchange.watch = AnswerWatch(head)
            return exchange.watch

        def on_first_byte() -> None:
            exchange.first_byte_s = self.request_stats.clock()
            exchange.phase = Phase.DECODING

        told = self._told(exchange)
        return Relay(
            request,
            upstream,
            *told,
            on_head=on_head,
            on_first_byte=on_first_byte,
            may_wait=self._may_wait(exchange, request),
        )

    def _may_wait(self, exchange: Exchange, request: Request) -> bool:
        """Whether an answer that says "not yet" is heard by us alone, and the request sent again later."""
        if not request.complete or not self.watch.backend.adapter.REPORTS_LOADING or self.outage.over:
            return False
        # Others may have been served since: one model may be missing for good.
        since_s = exchange.not_ready_s
        return since_s is None or self.request_stats.clock() - since_s < self.outage.grace_s

    def _settle(self, exchange: Exchange, status: int) -> None:
        """The answer has been passed on whole: read what it says, free the slot, learn."""
        watch = exchange.watch
        totals = exchange.totals = watch.totals() if watch is not None else exchange.totals
        outcome = Outcome.UPSTREAM_ERROR if totals.error or status >= 500 else Outcome.COMPLETED
        if self.residents is not None:
            self.residents.answered(exchange, status)
        self.dispatcher.end(exchange, outcome, status)
        self._learn(exchange)

    def _learn(self, exchange: Exchange) -> None:
        totals = exchange.totals
        if totals.complete and totals.tokens is not None:
            speeds = self.watch.backend.speeds
            speeds.learn(totals.tokens, totals.decode_s, totals.prefilled_tokens, totals.prefill_s)
            if exchange.prediction.memo is not None:
                self.learn_queue.add(exchange.prediction, totals.tokens)

    def _has_learned(self) -> None:
        self.fallback.review(
            self.dispatcher.scheduler.policy.name, self.choose_policy, self.request_stats.event
        )

    async def released(self, exchange: Exchange) -> None:
        """Return when the backend has stopped working for an exchange whose client has left."""
        if exchange.connection is not None:
            await exchange.connection.hang_up(PATIENCE_S)
        others = self.dispatcher.live.values()
        await self.watch.slots_settled(
            lambda: [
                other.dispatched_s
                for other in others
                if other is not exchange and other.dispatched_s is not None
            ]
        )

    # -- answers of our own -------------------------------------------------------------------------

    def _told(self, exchange: Exchange) -> tuple[Header, ...]:
        prediction = exchange.prediction
        waited_ms = exchange.waited_s(self.request_stats.clock()) * 1000
        return (
            (b"X-Clairvoyant-Request-Id", exchange.id.encode()),
            (b"X-Clairvoyant-Class", prediction.length_class.encode()),
            (b"X-Clairvoyant-Tokens", b"%d" % round(prediction.expected_tokens)),
            (b"X-Clairvoyant-Queue-Ms", b"%.1f" % waited_ms),
        )

    def _refuse(
        self, request: Request, route: Route, refusal: Refusal, told: tuple[Header, ...] = ()
    ) -> None:
        head, body = self.watch.backend.adapter.render(refusal, route)
        request.connection.respond(head, body, *told)

    def _overload(self, message: str, *, busy: bool = True) -> Refusal:
        wait_s = self.request_stats.retry_after_s(len(self.dispatcher.scheduler))
        return Refusal(self.rules.overload_status, message, wait_s, busy=busy)

    def _reject(self, request: Request, route: Route, refusal: Refusal) -> None:
        self.request_stats.rejected_at_the_door(route.name, refusal.status)
        self._refuse(request, route, refusal)

    def _end_refused(self, exchange: Exchange, request: Request, outcome: Outcome, refusal: Refusal) -> None:
        self.dispatcher.end(exchange, outcome, refusal.status)
        self._refuse(request, exchange.route, refusal, self._told(exchange))

    def _broken(
        self, request: Request, route: Route, error: UpstreamError, told: tuple[Header, ...] = ()
    ) -> None:
        self.watch.look_now()
        if request.connection.head_sent:
            # The answer is cut short and the client must see it: no faked ending.
            request.connection.cut()
            return
        backend = self.watch.backend
        if isinstance(error, UnreachableError):
            refusal = Refusal(503, self._away(str(error)), 2)
        else:
            message = f"clairvoyant: {backend.adapter.title} at {backend.upstream.url} broke off: {error}"
            refusal = Refusal(502, message)
        self._refuse(request, route, refusal, told)

    def _away(self, why: str = "") -> str:
        backend = self.watch.backend
        why = why or backend.detail or "no connection"
        return f"clairvoyant: {backend.adapter.title} at {backend.upstream.url} is not reachable ({why})"


def _has_heard_all(exchange: Exchange) -> bool:
    """Whether a client that left had its whole answer: OpenAI's SDK leaves with the last event of a stream,
    before the end of the message. Takes note of the totals if so.
    """
    watch = exchange.watch
    if watch is None or not watch.streaming:
        return False
    totals = watch.totals()
    if totals.complete:
        exchange.totals = totals
    return totals.complete


def _repeatable(head: RequestHead) -> bool:
    """Whether a request may be sent again that the backend may have seen (RFC 9110, 9.2.2)."""
    return head.method in (b"GET", b"HEAD", b"OPTIONS") and not head.has_body


FULL = "clairvoyant: the queue is full"

GOING_DOWN = Refusal(503, "clairvoyant is going down; try again in a moment", 5)

STOPPED = Refusal(499, "request canceled by the operator")

UNKNOWN = Prediction(1 / 3, 1 / 3, 1 / 3, 0.0, 400.0, 1200.0, "unknown")
"""For a body nobody can read: the middle of the queue, and nothing is learned from it."""

EMBEDDING = Prediction(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, "embedding")
"""Embeddings decode nothing: they count as the shortest of jobs."""
