"""Decides whether a request is served at all: from its head, from the model it names, and from the queue."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clairvoyant_cli.backends.prober import MARK_HEADER
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.queue.service_level import ServiceLevel
from clairvoyant_cli.proxy.requests.refusals import DRAINING, IN_A_LOOP, NO_CONNECT, SHUTTING_DOWN, Refusals
from clairvoyant_cli.proxy.servers.matching import given_up
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server


@dataclass(frozen=True, slots=True)
class Refused:
    route: Route
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class PassOn:
    """The request needs no slot and goes straight to a server. `model` is the one it names, if known."""

    route: Route
    model: str = ""


@dataclass(frozen=True, slots=True)
class ReadBody:
    """The request needs a slot; its body tells for how long. It counts towards the share of `client`;
    `shown_name` is what views and records call the client, "" for the same.
    """

    route: Route
    client: str
    shown_name: str = ""


Check = Callable[[str, ParsedRequest, Sequence[Server]], Refusal | None]
"""Returns why a client's request is refused that the given servers could serve; None if it is not."""


@dataclass(slots=True)
class AdmissionRules:
    """Refuses requests, also by the operator's `checks`, and those that would miss the `service_level`."""

    access: Access
    pool: ServerPool
    operation: Operation
    stats: RequestStats
    refusals: Refusals
    service_level: ServiceLevel | None = None
    checks: Sequence[Check] = ()

    def judge_head(self, request: Request) -> ReadBody | PassOn | Refused:
        head, first = request.head, self.pool.first
        route = first.adapter.route_of(head.method, head.path, first.prefix)
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

    def objection(self, asks: ReadBody, parsed: ParsedRequest, able: Sequence[Server]) -> Refusal | None:
        client = asks.client
        if self.operation.draining:
            return DRAINING
        quota = self.access.clients.rules_of(client).tokens_per_day
        if quota is not None and self.stats.today.spent(client) >= quota:
            return self.stats.today.refusal(quota)
        if all(server.leads_back for server in able):
            return IN_A_LOOP
        # If nothing is in flight, one request may find out whether a loading server serves by now.
        if given_up(able) and not (self.pool.loading and not self.operation.dispatcher.live):
            return self.refusals.away(able[0])
        if all(server.draining for server in able):
            return self.refusals.draining_alone(able)
        return next(filter(None, (check(client, parsed, able) for check in self.checks)), None)

    def too_late(self, exchange: Exchange) -> Refusal | None:
        """Return a refusal if a request's predicted TTFT exceeds the service level."""
        level = self.service_level
        retry_after_s = None if level is None else level.retry_after_s(exchange)
        if level is None or retry_after_s is None:
            return None
        return self.refusals.too_late(level.text, retry_after_s)
