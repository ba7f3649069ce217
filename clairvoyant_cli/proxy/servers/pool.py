"""The servers behind the proxy, by name, and the queue that feeds them."""

from collections.abc import Iterator

from clairvoyant_cli.backends.adapter import is_under
from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import is_known
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.queue import Scheduler

MOST_STORED = 20_000  # ids of some 50 characters


class ServerPool:
    """One or more servers. `queue` holds the requests that wait for them."""

    def __init__(self, queue: Scheduler) -> None:
        self.queue = queue
        self.servers: dict[str, Server] = {}  # `ServerLifecycle` adds and removes them
        self._stored: dict[str, str] = {}  # id of a response -> the server that stores it

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def __iter__(self) -> Iterator[Server]:
        return iter(self.servers.values())

    def __len__(self) -> int:
        return len(self.servers)

    def get(self, name: str) -> Server | None:
        return self.servers.get(name)

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
        return next(iter(self))

    def holds(self, response: str, server: Server) -> None:
        """Remember which server has answered with a response: only that one may have it stored."""
        self._stored[response] = server.name
        if len(self._stored) > MOST_STORED:
            del self._stored[next(iter(self._stored))]

    def holder_of(self, response: str) -> Server | None:
        return self.servers.get(self._stored.get(response, ""))

    def server_of(self, exchange: Exchange) -> Server:
        """Return the server that serves an exchange; the first if it waits, or its server has left."""
        attempt = exchange.attempt
        return self.first if attempt is None else self.servers.get(attempt.worker, self.first)

    def model_of(self, exchange: Exchange) -> str:
        """Return the model a request names, or else its server's only model."""
        return exchange.asked.parsed.model or self.server_of(exchange).only_model

    def affinity_of(self, parsed: ParsedRequest) -> str:
        """Return what a request needs loaded, spelled as a server that swaps models spells it."""
        swaps = next((server.residents for server in self if server.residents is not None), None)
        return parsed.affinity if swaps is None else swaps.affinity_of(parsed)

    @property
    def described(self) -> str:
        return " and ".join(f"{server.name} {server.upstream.url}" for server in self)

    @property
    def stamped(self) -> list[str]:
        """Names of the servers that order their own queues by a priority sent with each request."""
        return [server.name for server in self if server.stamps is not None]

    @property
    def stamps(self) -> list[Priority | None]:
        """The priorities that requests to each server carry."""
        return [server.stamps for server in self]

    @property
    def at_once(self) -> int:
        """Requests that the servers which take requests now are known to answer at once."""
        room = self.queue.slots
        return sum(min(room.get(server.name, 0), server.at_once) for server in self)

    @property
    def slots(self) -> int:
        return sum(server.room for server in self)

    @property
    def loading(self) -> bool:
        return any(server.state == "loading" for server in self)

    @property
    def remote_models(self) -> frozenset[str]:
        """Models that run elsewhere: their requests need no slot."""
        return frozenset().union(*(server.remote_models for server in self))
