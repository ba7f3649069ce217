"""Which servers can take a request.

Rule 1: a server that is away is waited for; a request is refused only when every server that could serve it
has been away for longer than the outage grace.
Rule 2: an answer that has begun goes on at the server that began it, and elsewhere only while that is away
and another is proven to continue it exactly.
"""

from collections.abc import Iterable

from clairvoyant_cli.protocols.routes import Family
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server


def able(pool: ServerPool, speakers: frozenset[Family], model: str, follows: str = "") -> list[Server]:
    """Return the servers that can serve a route of these families for a model; only the one that stores the
    response which it `follows`.

    Those that list the model; if none does, those that may have it without listing it; else all that speak
    the dialect, or all servers: then the server's own refusal is the answer.
    """
    every = list(pool)
    holder = pool.holder_of(follows)
    if holder is not None:
        return [holder]
    speak = [server for server in every if speakers & server.adapter.SPEAKS] or every
    if not model or len(every) == 1:
        return speak
    listing = [server for server in speak if server.lists(model)]
    return listing or [server for server in speak if server.may_have(model)] or speak


def speaker(pool: ServerPool, family: Family) -> Server:
    """Return a server that speaks a dialect; the first if none does."""
    return next((server for server in pool if family in server.adapter.SPEAKS), pool.first)


def able_for(pool: ServerPool, exchange: Exchange) -> list[Server]:
    """Return the servers that can serve an exchange. If its answer has begun: the server that began it or,
    while that is away, those that are proven to continue it.
    """
    parsed = exchange.asked.parsed
    found = able(pool, exchange.asked.route.speakers, parsed.model, parsed.follows)
    if not exchange.has_begun:
        return found
    origin = pool.get((exchange.attempt or exchange.parts[-1]).worker)
    if origin is None:
        return []
    if not origin.away:
        return [origin]
    there = [server for server in found if not server.away]
    return [each for each in there if each.continues_as(origin, exchange.job.model)] or [origin]


def ids(pool: ServerPool, servers: list[Server]) -> frozenset[str]:
    """Return the ids of servers as the scheduler takes them: empty if they are all."""
    return frozenset() if len(servers) == len(pool) else frozenset(server.id for server in servers)


def given_up(servers: Iterable[Server]) -> bool:
    """Whether all of these servers that were ever up have been away for longer than the outage grace."""
    seen = [server for server in servers if server.status.seen]
    return bool(seen) and all(server.health.given_up for server in seen)


def has_given_up(pool: ServerPool, exchange: Exchange) -> bool:
    """Whether all servers that could serve an exchange have been away for longer than the outage grace."""
    return given_up(able_for(pool, exchange))


def refused_in_s(pool: ServerPool, exchange: Exchange, patience_s: float | None = None) -> float | None:
    """Return the seconds until a waiting exchange is refused unless a server returns; None if a server that
    can serve it is there, or none ever was. `patience_s` is the time it may wait at most.
    """
    left_s = [server.health.given_up_in_s for server in able_for(pool, exchange) if server.status.seen]
    known_s = [each for each in left_s if each is not None]
    if not known_s or len(known_s) < len(left_s):
        return None
    return max(known_s) if patience_s is None else max(0.0, min(max(known_s), patience_s))


def waits_for(pool: ServerPool, exchange: Exchange) -> bool:
    """Whether an exchange is kept until a server that can serve it is back."""
    return any(server.waited_for for server in able_for(pool, exchange))
