"""The servers behind the proxy, the queue that feeds them, and which of them can take a request, and
how long it takes there.

Rule 1: a server that is away is waited for; a request is refused only when every server that could serve it
has been away for longer than the outage grace.
Rule 2: an answer that has begun goes on at the server that began it, and elsewhere only while that is away
and another is proven to continue it exactly.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import NamedTuple

from clairvoyant_cli.backends.adapters import OTHER
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Family, is_known
from clairvoyant_cli.proxy.queue.exchange import AttemptEnd, Exchange
from clairvoyant_cli.proxy.servers.loaded_models import LoadedModels
from clairvoyant_cli.proxy.servers.server import Server, is_under
from clairvoyant_cli.scheduler.queue import Scheduler

MOST_STORED = 10_000  # responses whose server is remembered, also over a restart


class Against(NamedTuple):
    """What speaks against a server for a request, the weightiest first."""

    model: int  # it does not list the model, or does not speak the dialect
    refused: bool  # it has refused the request
    media: bool  # the model does not take what the prompt has besides text
    room: bool  # the prompt is too long for the context
    broke_off: bool  # the answer has broken off there, or the server is down or silent


class ServerPool(list[Server]):
    """One or more servers; the first gets requests that bypass the queue. `queue` holds the requests that
    wait for them.
    """

    def __init__(self, queue: Scheduler) -> None:
        super().__init__()
        self.queue = queue
        self.by_id: dict[str, Server] = {}  # `ServerLifecycle` adds and removes them
        # Hash of a response's id -> the address of the server that stores it, the newest last.
        self.stored: dict[str, str] = {}

    def join(self, server: Server) -> None:
        self.append(server)
        self.by_id[server.id] = server

    def leave(self, server: Server) -> None:
        self.remove(server)
        del self.by_id[server.id]

    def name_of(self, server_id: str) -> str:
        """Return the label of a server; any other text, such as the id of one that has left, as it is."""
        server = self.by_id.get(server_id)
        return server_id if server is None else server.name

    def without_prefix(self, target: bytes) -> bytes:
        """Return the target of a request, which may begin with the path in a server's URL, without it."""
        longest = b""
        for server in self:
            prefix = server.prefix.encode()
            if len(prefix) > len(longest) and is_under(prefix, target):
                longest = prefix
        if not longest or is_known(target.partition(b"?")[0].decode()):
            return target
        rest = target[len(longest) :]
        return rest if rest.startswith(b"/") else b"/" + rest

    @property
    def first(self) -> Server:
        return self[0]

    def holds(self, response: str, server: Server) -> None:
        """Remember which server has answered with a response: only that one may have it stored."""
        self.stored[_hashed(response)] = server.id
        if len(self.stored) > MOST_STORED:
            del self.stored[next(iter(self.stored))]

    def holder_of(self, response: str) -> Server | None:
        return self.by_id.get(self.stored.get(_hashed(response), ""))

    # -- one request -----------------------------------------------------------------------------------

    def server_of(self, exchange: Exchange) -> Server:
        """Return the server that serves an exchange; the first if it waits, or its server has left."""
        attempt = exchange.attempt
        return (None if attempt is None else self.by_id.get(attempt.run.server_id)) or self[0]

    def model_of(self, exchange: Exchange) -> str:
        """Return the model a request names, or else its server's only model."""
        loaded = () if exchange.asked.parsed.model else self.server_of(exchange).status.models
        return loaded[0].name if len(loaded) == 1 else exchange.asked.parsed.model

    def affinity_of(self, parsed: ParsedRequest) -> str:
        """Return what a request needs loaded, in one spelling: that of a server that lists it if one does."""
        first: LoadedModels | None = None
        for server in self:
            if server.loaded is not None:
                if server.has(parsed.model):
                    return server.loaded.affinity_of(parsed)
                first = first or server.loaded
        return parsed.affinity if first is None else first.affinity_of(parsed)

    def speaker(self, family: Family) -> Server:
        """Return a server that speaks a dialect; the first if none does."""
        for server in self:
            if family in server.adapter.SPEAKS:
                return server
        return self[0]

    def able(
        self, speakers: frozenset[Family], parsed: ParsedRequest, exchange: Exchange | None = None
    ) -> list[Server]:
        """Return the servers that can serve a request on a route of these families, its `exchange` if it was
        tried: those that the least speaks `Against`, as far as is known. What speaks against all does not
        count: then the server's own refusal is the answer. Only the server that stores the response which a
        request follows can serve it.
        """
        if len(self) == 1:
            return [self[0]]
        if (holder := self.holder_of(parsed.follows)) is not None:
            return [holder]
        speak = [server for server in self if speakers & server.adapter.SPEAKS] or self
        attempts = [] if exchange is None else exchange.attempts
        ended = [(attempt.run.server_id, attempt.end) for attempt in attempts]
        repeats = exchange is not None and exchange.repeats > 0
        against = list[Against]()
        for server in self:
            model = server.offered_model(parsed.model)
            media = None if model is None else model.media
            against.append(
                Against(
                    _model_rank(server, parsed.model, speaks=server in speak),
                    (server.id, AttemptEnd.REFUSED) in ended,
                    media is not None and not parsed.modalities <= media,
                    not server.has_room(parsed),
                    repeats and ((server.id, AttemptEnd.BROKEN) in ended or not server.answers),
                )
            )
        least = min(against)
        return [server for server, reasons in zip(self, against, strict=True) if reasons == least]

    def able_for(self, exchange: Exchange) -> list[Server]:
        """Return the servers that can serve an exchange. If its answer has begun: the server that began it
        or, while that is away, those that are proven to continue it.
        """
        found = self.able(exchange.asked.route.speakers, exchange.asked.parsed, exchange)
        if not exchange.has_begun:
            return found
        origin = self.by_id.get((exchange.attempt or exchange.parts[-1]).run.server_id)
        if origin is None or not origin.away:
            return [] if origin is None else [origin]
        if (begun := origin.continuation_of(exchange.job.model)) is None:
            return [origin]
        there = [(each, each.continuation_of(exchange.job.model)) for each in found if not each.away]
        wanted = begun.proof.fingerprint  # of equal model and settings
        return [each for each, onward in there if onward and onward.proof.fingerprint == wanted] or [origin]

    def elsewhere(self, exchange: Exchange) -> list[Server]:
        """Return the servers that answer and can serve an exchange in place of the one that it is on; none
        that has failed it.
        """
        if exchange.has_begun:
            return []
        failed = (AttemptEnd.BROKEN, AttemptEnd.REFUSED)
        tried = {each.run.server_id for each in exchange.attempts if each.end in failed}
        tried.add(self.server_of(exchange).id)
        return [each for each in self.able_for(exchange) if each.answers and each.id not in tried]

    def ids(self, servers: list[Server]) -> frozenset[str]:
        """Return the ids of servers as the scheduler takes them: empty if they are all."""
        return frozenset() if len(servers) == len(self) else frozenset(server.id for server in servers)

    def has_given_up(self, exchange: Exchange) -> bool:
        return given_up(self.able_for(exchange))

    def refused_in_s(self, exchange: Exchange, patience_s: float | None = None) -> float | None:
        """Return the seconds until a waiting exchange is refused unless a server returns; None if a server
        that can serve it is there, or none ever was. `patience_s` is the time it may wait at most.
        """
        left_s = [server.health.given_up_in_s for server in self.able_for(exchange) if server.status.seen]
        known_s = [each for each in left_s if each is not None]
        if not known_s or len(known_s) < len(left_s):
            return None
        return max(known_s) if patience_s is None else max(0.0, min(max(known_s), patience_s))

    def waits_for(self, exchange: Exchange) -> bool:
        """Whether an exchange is kept until a server that can serve it is back."""
        able = self.able_for(exchange)
        return any(server.status.seen and not server.health.given_up for server in able)

    # -- all servers -----------------------------------------------------------------------------------

    @property
    def stamped(self) -> list[str]:
        """Names of the servers that order their own queues by a priority sent with each request."""
        return [server.name for server in self if server.stamps is not None]

    @property
    def at_once(self) -> int:
        """Requests that the servers which take requests now are known to answer at once."""
        room = self.queue.slots
        return sum(min(room.get(server.id, 0), server.at_once) for server in self)

    @property
    def slots(self) -> int:
        return max(1, sum(server.room for server in self))

    @property
    def loading(self) -> bool:
        return any(server.status.state == "loading" for server in self)


def _hashed(response: str) -> str:
    return sha256(response.encode(errors="replace")).hexdigest()[:16]


def _model_rank(server: Server, model: str, *, speaks: bool) -> int:
    """Rank a server by whether it `speaks` a request's dialect and has the model, the best 0. One of an
    unknown kind may speak a dialect that it is not known for.
    """
    has = server.has(model) if model else True
    if has and (speaks or server.adapter is OTHER):
        return 0 if speaks else 1
    return (3 if has is False else 2) if speaks else 4


def given_up(servers: Iterable[Server]) -> bool:
    """Whether all of these servers that were ever up have been away for longer than the outage grace."""
    any_seen = False
    for server in servers:
        if server.status.seen:
            any_seen = True
            if not server.health.given_up:
                return False
    return any_seen
