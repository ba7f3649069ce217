"""The servers behind the proxy, the queue that feeds them, and which of them can take a request, and
how long it takes there.

Rule 1: a server that is away is waited for; a request is refused only when every server that could serve it
has been away for longer than the outage grace.
Rule 2: an answer that has begun goes on at the server that began it, and elsewhere only while that is away
and another is proven to continue it exactly.
"""

from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256

from clairvoyant_cli.backends.adapters import OTHER
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Family, is_known
from clairvoyant_cli.proxy.queue.exchange import AttemptEnd, Exchange
from clairvoyant_cli.proxy.servers.server import Server, is_under
from clairvoyant_cli.scheduler.queue import Scheduler

MOST_STORED = 10_000  # responses whose server is remembered, also over a restart


class ServerPool:
    """One or more servers. `queue` holds the requests that wait for them."""

    def __init__(self, queue: Scheduler) -> None:
        self.queue = queue
        self.servers: dict[str, Server] = {}  # by id; `ServerLifecycle` adds and removes them
        # Hash of a response's id -> the address of the server that stores it, the newest last.
        self.stored: dict[str, str] = {}

    def __getitem__(self, server_id: str) -> Server:
        return self.servers[server_id]

    def __iter__(self) -> Iterator[Server]:
        return iter(self.servers.values())

    def __len__(self) -> int:
        return len(self.servers)

    def get(self, server_id: str) -> Server | None:
        return self.servers.get(server_id)

    def named(self, name: str) -> Server:
        """Return the server with this label; KeyError if there is none."""
        return {server.name: server for server in self}[name]

    def name_of(self, server_id: str) -> str:
        """Return the label of a server; any other text, such as the id of one that has left, as it is."""
        server = self.get(server_id)
        return server_id if server is None else server.name

    def without_prefix(self, target: bytes) -> bytes:
        """Return the target of a request, which may begin with the path in a server's URL, without it."""
        under = [prefix for each in self if (prefix := each.prefix.encode()) and is_under(prefix, target)]
        if not under or is_known(target.partition(b"?")[0].decode()):
            return target
        rest = target[len(max(under, key=len)) :]
        return rest if rest.startswith(b"/") else b"/" + rest

    @property
    def first(self) -> Server:
        """The server that gets requests that bypass the queue."""
        return next(iter(self.servers.values()))

    def holds(self, response: str, server: Server) -> None:
        """Remember which server has answered with a response: only that one may have it stored."""
        self.stored[_hashed(response)] = server.id
        if len(self.stored) > MOST_STORED:
            del self.stored[next(iter(self.stored))]

    def holder_of(self, response: str) -> Server | None:
        return self.servers.get(self.stored.get(_hashed(response), ""))

    # -- one request -----------------------------------------------------------------------------------

    def server_of(self, exchange: Exchange) -> Server:
        """Return the server that serves an exchange; the first if it waits, or its server has left."""
        attempt = exchange.attempt
        return (None if attempt is None else self.servers.get(attempt.server_id)) or self.first

    def model_of(self, exchange: Exchange) -> str:
        """Return the model a request names, or else its server's only model."""
        return exchange.asked.parsed.model or self.server_of(exchange).only_model

    def affinity_of(self, parsed: ParsedRequest) -> str:
        """Return what a request needs loaded, in one spelling: that of a server that lists it if one does."""
        swap = [server for server in self if server.loaded is not None]
        server = next((each for each in swap if each.lists(parsed.model)), swap[0] if swap else None)
        loaded = None if server is None else server.loaded
        return parsed.affinity if loaded is None else loaded.affinity_of(parsed)

    def speaker(self, family: Family) -> Server:
        """Return a server that speaks a dialect; the first if none does."""
        return next((server for server in self if family in server.adapter.SPEAKS), self.first)

    def able(
        self, speakers: frozenset[Family], parsed: ParsedRequest, refused_by: Collection[str] = ()
    ) -> list[Server]:
        """Return the servers that can serve a request on a route of these families; only the one that stores
        the response which it follows. Those it was `refused_by` only if there are no others.

        Of those that have the model, those that take its media and have room for its prompt, as far as is
        known; if none has, all: then the server's own refusal is the answer.
        """
        holder = self.holder_of(parsed.follows)
        if len(self) == 1 or holder is not None:
            return [holder or self.first]
        found = self._having(speakers, parsed.model)
        found = [server for server in found if server.id not in refused_by] or found
        found = [server for server in found if server.takes_media(parsed)] or found
        return [server for server in found if server.has_room(parsed)] or found

    def _having(self, speakers: frozenset[Family], model: str) -> list[Server]:
        """Return the servers that list a model, of an unknown kind only if no other does; if none does, those
        that may have it without listing it; else all that speak the dialect, or all.
        """
        speak = [server for server in self if speakers & server.adapter.SPEAKS] or list(self)
        if not model:
            return speak
        listing = [server for server in self if server.lists(model)]
        having = [each for each in listing if each in speak] or [s for s in listing if s.adapter is OTHER]
        return having or [server for server in speak if server.may_have(model)] or speak

    def others_than(self, server: Server, exchange: Exchange) -> list[Server]:
        """Return the servers that may answer what one refuses: they are up, and have not refused it."""
        asked, refused_by = exchange.asked, exchange.refused_by | {server.id}
        found = self.able(asked.route.speakers, asked.parsed, refused_by)
        return [each for each in found if each.id not in refused_by and not each.away]

    def able_for(self, exchange: Exchange) -> list[Server]:
        """Return the servers that can serve an exchange: those on which its answer has not broken off, while
        one of them is up. If its answer has begun: the server that began it or, while that is away, those
        that are proven to continue it.
        """
        parsed = exchange.asked.parsed
        found = self.able(exchange.asked.route.speakers, parsed, exchange.refused_by)
        if not exchange.has_begun:
            return (self.untried(exchange, found) if exchange.repeats else []) or found
        origin = self.get((exchange.attempt or exchange.parts[-1]).server_id)
        if origin is None:
            return []
        if not origin.away:
            return [origin]
        there = [server for server in found if not server.away]
        return [each for each in there if each.continues_as(origin, exchange.job.model)] or [origin]

    def untried(self, exchange: Exchange, among: Iterable[Server]) -> list[Server]:
        """Return the servers that are up and not silent, and on which an exchange has not broken off."""
        tried = {each.server_id for each in exchange.attempts if each.end is AttemptEnd.BROKEN}
        fit = [
            each for each in among if each.status.state not in ("down", "loading") and not each.health.hung
        ]
        return [each for each in fit if each.id not in tried]

    def elsewhere(self, exchange: Exchange) -> list[Server]:
        """Return the servers that can serve an exchange in place of the one that it is on; none that it was
        on before.
        """
        here = self.server_of(exchange)
        others = [] if exchange.has_begun else self.untried(exchange, self.able_for(exchange))
        return [each for each in others if each is not here]

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
        return any(server.waited_for for server in self.able_for(exchange))

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
        return sum(server.room for server in self)

    @property
    def loading(self) -> bool:
        return any(server.status.state == "loading" for server in self)


def _hashed(response: str) -> str:
    return sha256(response.encode(errors="replace")).hexdigest()[:16]


def given_up(servers: Iterable[Server]) -> bool:
    """Whether all of these servers that were ever up have been away for longer than the outage grace."""
    seen = [server for server in servers if server.status.seen]
    return bool(seen) and all(server.health.given_up for server in seen)
