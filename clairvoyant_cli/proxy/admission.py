"""Who is let in, and with what prediction: from a request's head and body to a place in the queue.

Nothing here waits or touches a socket: a verdict is returned, and the gateway carries it out.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from clairvoyant_cli.http.request import Request
from clairvoyant_cli.proxy.access import Access
from clairvoyant_cli.proxy.exchange import Asked, Exchange
from clairvoyant_cli.proxy.operation import Operation
from clairvoyant_cli.proxy.pool import BackendPool
from clairvoyant_cli.proxy.protocols.errors import Refusal
from clairvoyant_cli.proxy.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.protocols.routes import Route, route_of
from clairvoyant_cli.proxy.refusals import DRAINING, GOING_DOWN, NO_CONNECT, Refusals
from clairvoyant_cli.proxy.request_stats import RequestStats
from clairvoyant_cli.scheduler.job import ClientFullError, Job, QueueFullError
from predictor.record import Prediction, Predictor, Task

log = logging.getLogger("clairvoyant")

SHOWN_CHARS = 4000
"""So much of a prompt is shown, where prompts are shown at all."""

UNKNOWN = Prediction(1 / 3, 1 / 3, 1 / 3, 0.0, 400.0, 1200.0, "unknown")
"""For a body nobody can read: the middle of the queue, and nothing is learned from it."""

EMBEDDING = Prediction(1.0, 0.0, 0.0, 0.0, 1.0, 1.0, "embedding")
"""Embeddings decode nothing: they count as the shortest of jobs."""


@dataclass(frozen=True, slots=True)
class PassOn:
    """It needs no slot, and goes straight to the backend."""


@dataclass(frozen=True, slots=True)
class ReadBody:
    """It needs a slot; its body tells how long. `client` is who asks."""

    client: str


Verdict = Refusal | PassOn | ReadBody


@dataclass(slots=True)
class Admission:
    """Decides what becomes of a request that comes in."""

    access: Access
    pool: BackendPool
    predictor: Predictor
    operation: Operation
    stats: RequestStats
    refusals: Refusals
    show_prompts: bool = False
    _ids: int = 0
    _entering: Counter[str] = field(default_factory=Counter)
    _boot: str = field(default_factory=lambda: f"{int(time.time()) & 0xFFFFF:05x}")

    def route_of(self, request: Request) -> Route:
        """Return what a request asks for."""
        backend = self.pool.first.backend
        return route_of(request.head.method, request.head.path, backend.kind, backend.prefix)

    def at_the_door(self, request: Request, route: Route) -> Verdict:
        """Judge a request by its head."""
        client = self.access.admit(request)
        if isinstance(client, Refusal):
            return client
        if request.head.method == b"CONNECT":
            return NO_CONNECT
        if self.operation.stopping:
            return GOING_DOWN
        return ReadBody(client) if route.scheduled else PassOn()

    @contextmanager
    def entering(self, client: str) -> Iterator[Refusal | None]:
        """Count a request whose body is being understood; yields a refusal if there are too many.

        More at once than can wait or start: the rest is refused before it costs anybody time.
        """
        queue = self.operation.dispatcher.scheduler
        if self._entering[client] >= queue.capacity + self.pool.slots:
            yield self.refusals.full(len(queue))
            return
        self._entering[client] += 1
        try:
            yield None
        finally:
            self._entering[client] -= 1
            if not self._entering[client]:
                del self._entering[client]

    def needs_no_slot(self, parsed: ParsedRequest) -> bool:
        """Whether its body says that the backend has nothing to generate for it."""
        return bool(parsed.bypass) or parsed.model in self.pool.remote_models

    def enqueue(
        self, request: Request, route: Route, parsed: ParsedRequest, client: str
    ) -> Exchange | Refusal:
        """Predict a request's length and put it into the queue, or say why it has no place there."""
        if self.operation.draining:
            return DRAINING
        quota = self.access.clients.rules_of(client).tokens_per_day
        if quota is not None and self.stats.today.spent(client) >= quota:
            return self.stats.today.refusal(quota)
        if self.pool.given_up and not self.pool.may_be_tried:
            return self.refusals.away()
        priority = self.access.priority_of(request, client, parsed.priority)
        exchange = self._exchange(route, parsed, client, priority)
        dispatcher = self.operation.dispatcher
        try:
            dispatcher.submit(exchange)
        except ClientFullError:
            return self.refusals.client_full(client, len(dispatcher.scheduler))
        except QueueFullError:
            return self.refusals.full(len(dispatcher.scheduler))
        self.stats.arrived(exchange)
        return exchange

    def reject(self, request: Request, route: Route, refusal: Refusal) -> None:
        """Turn away a request that would have joined the queue."""
        self.stats.rejected_at_the_door(route.name, refusal.status)
        self.refusals.send(request, route, refusal)

    def _exchange(self, route: Route, parsed: ParsedRequest, client: str, priority: int) -> Exchange:
        now = self.stats.clock()
        prediction = self._predict(parsed)
        predicted_in_s = self.stats.clock() - now
        self._ids += 1
        tokens = prediction.expected_tokens * parsed.choices
        job = Job(
            id=f"{self._boot}-{self._ids}",
            arrival_s=now,
            p_long=prediction.p_long,
            cost_s=self.pool.fastest_s(parsed.prompt_tokens, tokens),
            cost_q90_s=self.pool.fastest_s(parsed.prompt_tokens, prediction.q90_tokens * parsed.choices),
            tokens=tokens,
            prompt_tokens=parsed.prompt_tokens,
            client=client,
            model=parsed.model,
            affinity=self.pool.affinity_of(parsed),
            priority=priority,
        )
        shown = parsed.view.prompt[:SHOWN_CHARS] if self.show_prompts and parsed.view else None
        return Exchange(
            Asked(job, route, parsed, prediction, predicted_in_s, shown),
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
