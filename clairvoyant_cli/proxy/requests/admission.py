"""Who is let in, and with what prediction: from a request's head and body to a place in the queue.

Nothing here waits but for the body, and nothing is sent: a verdict is returned, and the gateway acts on it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from clairvoyant_cli.backends.prober import MARK_HEADER
from clairvoyant_cli.http.loop_turn import READING
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.chores import CHORE_HEADER, chore_of
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.inject_field import opening_of
from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_request
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.access.urgency_levels import UrgencyLevels
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.urgency_stats import UrgencyStats
from clairvoyant_cli.proxy.queue.exchange import Asked, Exchange
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.requests.conversation_keys import Conversations
from clairvoyant_cli.proxy.requests.encoder import SecondOpinions
from clairvoyant_cli.proxy.requests.engine_annotation import Annotation
from clairvoyant_cli.proxy.requests.refusals import DRAINING, GOING_DOWN, IN_A_LOOP, NO_CONNECT, Refusals
from clairvoyant_cli.proxy.servers.pool import BackendPool, Worker, given_up
from clairvoyant_cli.scheduler.job import ClientFullError, Job, QueueFullError
from predictor.record import Prediction, Predictor, Task

log = logging.getLogger("clairvoyant")

SHOWN_CHARS = 4000
"""So much of a prompt is shown, where prompts are shown at all."""

ALONG_S = 0.25
"""So long a title lets pass the question that it comes along with: Open WebUI sends it up to 0.15 s sooner,
and what reads its prompt is not cut before its first token."""

UNKNOWN = Prediction(1 / 3, 1 / 3, 1 / 3, 0.0, 400.0, 1200.0, "unknown")
"""For a body nobody can read: the middle of the queue, and nothing is learned from it."""

EMBEDDING = Prediction(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, "embedding")
"""Embeddings decode nothing: they count as the shortest of jobs."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not served; `refusal` says why."""

    route: Route
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PassOn:
    """It needs no slot, and goes straight to a backend. `model` is the one it names, where that is known."""

    route: Route
    model: str = ""


@dataclass(frozen=True, slots=True)
class ReadBody:
    """It needs a slot, and its body tells for how long. `client` is whose share it takes, `shown_name` what
    its client is called in views and records, "" for the same.
    """

    route: Route
    client: str
    shown_name: str = ""


@dataclass(slots=True)
class Admission:
    """Decides what becomes of a request that comes in. A body longer than `body_limit_bytes` is not read for
    a prediction.
    """

    access: Access
    pool: BackendPool
    predictor: Predictor
    operation: Operation
    stats: RequestStats
    refusals: Refusals
    levels: UrgencyLevels
    urgency_stats: UrgencyStats
    annotation: Annotation
    body_limit_bytes: int = 64 * 1024 * 1024
    show_prompts: bool = False
    second_opinions: SecondOpinions | None = None
    service_level: ServiceLevel | None = None
    conversations: Conversations = field(default_factory=Conversations)
    _ids: int = 0
    _entering: Counter[str] = field(default_factory=Counter)
    _boot: str = field(default_factory=lambda: f"{int(time.time()) & 0xFFFFF:05x}")

    async def admit_request(self, request: Request) -> Exchange | PassOn | Refused:
        """Judge a request by its head, and by its body where it needs a slot."""
        verdict = self.at_the_door(request)
        if not isinstance(verdict, ReadBody):
            return verdict
        request.schedule()
        pieces = await request.read(self.body_limit_bytes)
        with self.entering(verdict) as refused:
            if refused is not None:
                return refused
            adapter = self.pool.speaker(verdict.route.family).backend.adapter
            parsed = await parse_request(pieces, verdict.route, adapter, verdict.client)
            if pieces is None:
                parsed = replace(parsed, opening=opening_of(request.arrived))
            objection = self.annotation.objection(
                parsed, verdict.route, verdict.client, self.access.clients, whole=pieces is not None
            )
            if objection is not None:
                return self._rejected(verdict.route, objection)
            await READING.next()
        with READING:
            return self.enqueue(request, verdict, parsed)

    def at_the_door(self, request: Request) -> ReadBody | PassOn | Refused:
        """Judge a request by its head."""
        head, backend = request.head, self.pool.first.backend
        route = backend.adapter.route_of(head.method, head.path, backend.prefix)
        mark = head.get(MARK_HEADER)
        if mark is not None and any(worker.watch.came_back(mark) for worker in self.pool):
            return Refused(route, IN_A_LOOP)
        client = self.access.admit(request)
        if isinstance(client, Refusal):
            return Refused(route, client)
        if head.method == b"CONNECT":
            return Refused(route, NO_CONNECT)
        if self.operation.stopping:
            return Refused(route, GOING_DOWN)
        if not route.scheduled:
            return PassOn(route)
        return ReadBody(route, client, self.access.shown_name(head, client))

    @contextmanager
    def entering(self, asks: ReadBody) -> Iterator[Refused | None]:
        """Count a request whose body is being understood; yields a refusal if there are too many.

        More at once than can wait or start: the rest is refused before it costs anybody time.
        """
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
        """Predict a request's length and put it into the queue, or say why it has no place there."""
        if parsed.bypass or parsed.model in self.pool.remote_models:
            request.scheduled = False
            return PassOn(asks.route, parsed.model)
        able = self.pool.able(asks.route.family, parsed.model)
        refusal = self._objection(asks.client, able)
        if refusal is None:
            exchange = self._exchange(request, asks, parsed)
            refusal = self._too_late(exchange) or self._submit(exchange)
            if refusal is not None and self.service_level is not None:
                self.service_level.forget(exchange)
        if refusal is not None:
            return self._rejected(asks.route, refusal)
        self.stats.arrived(exchange)
        self.urgency_stats.watch(exchange)
        if self.second_opinions is not None:
            self.second_opinions.arrived(exchange)
        return exchange

    def _objection(self, client: str, able: Sequence[Worker]) -> Refusal | None:
        """Say why nothing that these workers would serve is taken of a client now; None if it is."""
        if self.operation.draining:
            return DRAINING
        quota = self.access.clients.rules_of(client).tokens_per_day
        if quota is not None and self.stats.today.spent(client) >= quota:
            return self.stats.today.refusal(quota)
        if all(worker.backend.leads_back for worker in able):
            return IN_A_LOOP
        if given_up(able) and not self.pool.may_be_tried:
            return self.refusals.away(able[0])
        if all(worker.draining for worker in able):
            return self.refusals.draining_alone(able)
        return None

    def _too_late(self, exchange: Exchange) -> Refusal | None:
        """Say that a request could not be answered within the service level; None if it can be."""
        level = self.service_level
        retry_after_s = None if level is None else level.retry_after_s(exchange)
        if level is None or retry_after_s is None:
            return None
        return self.refusals.too_late(level.text, retry_after_s)

    def _submit(self, exchange: Exchange) -> Refusal | None:
        dispatcher = self.operation.dispatcher
        try:
            dispatcher.submit(exchange)
        except ClientFullError:
            return self.refusals.client_full(exchange.job.client)
        except QueueFullError:
            return self.refusals.full()
        return None

    def _rejected(self, route: Route, refusal: Refusal) -> Refused:
        self.stats.rejected_at_the_door(route.name, refusal.status)
        return Refused(route, refusal)

    def _exchange(self, request: Request, asks: ReadBody, parsed: ParsedRequest) -> Exchange:
        now = self.stats.journal.clock()
        chore = None
        if parsed.view is not None:
            chore = chore_of(request.head.get(CHORE_HEADER), parsed.view)
            parsed = replace(parsed, view=replace(parsed.view, chore=chore)) if chore else parsed
        urgency, urgency_by = self.levels.at_arrival(request.head, asks.client, parsed)
        prediction = self._predict(parsed)
        predicted_in_s = self.stats.journal.clock() - now
        stands_back = 0 if chore is None or chore.waited_for else self.access.stands_back(asks.client)
        self._ids += 1
        job = Job(
            id=f"{self._boot}-{self._ids}",
            arrival_s=now,
            **self.pool.estimates(parsed, prediction),
            prompt_tokens=parsed.prompt_tokens,
            client=asks.client,
            model=parsed.model,
            affinity=self.pool.affinity_of(parsed),
            prefix=self.conversations.chain_of(parsed.view) if len(self.pool) > 1 else (),
            priority=self.access.priority_of(request, asks.client, parsed.priority),
            urgency=urgency,
            urgency_by=urgency_by,
            able=self.pool.able_names(asks.route.family, parsed.model),
            stands_back=stands_back,
            not_before_s=now + ALONG_S if stands_back and chore is not None and chore.along else 0.0,
        )
        shown = parsed.view.prompt[:SHOWN_CHARS] if self.show_prompts and parsed.view else None
        return Exchange(
            Asked(job, asks.route, parsed, prediction, predicted_in_s, shown, asks.shown_name),
            granted=asyncio.get_running_loop().create_future(),
            task=asyncio.current_task(),
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
