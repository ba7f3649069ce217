"""The daemon without sockets: simulated servers, and a clock that stands still."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

from clairvoyant_cli.backends.adapter import Adapter, Status
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.http.fields import Fields
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.access.clients import ClientRules, Clients
from clairvoyant_cli.proxy.access.clients_file import clients_file_of
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.admission import PassOn, ReadBody, Refused
from clairvoyant_cli.proxy.requests.serving import carry_out
from clairvoyant_cli.proxy.requests.serving_rules import Command, ServingEvent
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from predictor.record import PromptView
from tests.fakes.serving import ByFirstWord


def named(pool: ServerPool, name: str) -> Server:
    return next(server for server in pool if server.name == name)


def asking(path: str = "/api/chat", method: bytes = b"POST", **headers: str) -> Request:
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    head = RequestHead(method, path.encode(), Fields([(b"Host", b"127.0.0.1"), *given]))
    return cast(
        Request, SimpleNamespace(head=head, connection=Mock(spec=["peer"], peer="ann"), scheduled=True)
    )


class DaemonParts(Daemon):
    """A daemon with fakes at its ports: servers without sockets, a clock that stands still, a predictor that
    goes by the first word. `now` is the clock's time, `tasks` what was spawned.
    """

    def __init__(self, config: ServeConfig, clients: Clients, servers: list[Server]) -> None:
        self.now = [100.0]
        self.tasks: list[asyncio.Task[None]] = []
        super().__init__(
            config,
            ByFirstWord(),
            access=Access(clients),
            clients_file=clients_file_of(config, exposed=False),
            servers=servers,
            own=[("127.0.0.1", 8080)],
            spawn=self._spawn,
            clock=lambda: self.now[0],
            wall=lambda: self.now[0],
        )
        for server in servers:
            server.loaded = None  # until its state changes for the first time, loading costs nothing
        self.dispatcher.scheduler.fleet.residency.unknown_s = 0.0

    def _spawn(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    def ask(self, prompt: str, *, client: str = "ann", model: str = "m") -> Exchange | PassOn | Refused:
        """Have a chat with this prompt admitted; `0.9 ...` is predicted to be Long."""
        door = self.admission.judge_head(asking())
        assert isinstance(door, ReadBody)
        parsed = ParsedRequest(model=model, view=PromptView(prompt), prompt_tokens=4.0, affinity=model)
        return self.admission.enqueue(asking(), ReadBody(door.route, client), parsed)

    def queued(self, prompt: str, **how: str) -> Exchange:
        exchange = self.ask(prompt, **how)
        assert isinstance(exchange, Exchange)
        return exchange

    def after(self, exchange: Exchange, event: ServingEvent) -> Command:
        """Let something happen to a request, have what follows carried out, and return it."""
        command = self.rules.after(exchange, event)
        carry_out(command, exchange, self.dispatcher, lambda _: asyncio.sleep(0))
        return command

    def becomes(self, name: str, state: str, detail: str = "") -> None:
        server = named(self.pool, name)
        server.status.state, server.status.detail = state, detail
        server.status.seen = server.status.seen or state in ("up", "loading")
        self.lifecycle.changed(server)

    def on(self, exchange: Exchange) -> str:
        return "" if exchange.attempt is None else self.pool.name_of(exchange.attempt.run.server_id)


def daemon_parts(
    *servers: str,
    slots: int = 1,
    capacity: int = 10,
    grace_s: float = 60.0,
    max_wait_s: float | None = None,
    kind: str = "ollama",
    clients: dict[str, ClientRules] | None = None,
    slo: str | None = None,
) -> DaemonParts:
    """Compose a daemon with these servers, all of them up."""
    config = ServeConfig(
        policy="sjf", queue_capacity=capacity, outage_grace=grace_s, max_wait=max_wait_s, slo=slo
    )
    found = [simulated_server(*each, adapter_of(kind), slots) for each in enumerate(servers or ("mac",))]
    return DaemonParts(config, Clients(rules=clients or {}), found)


def simulated_server(number: int, name: str, adapter: Adapter, slots: int) -> Server:
    upstream = Upstream(f"http://127.0.0.1:{9000 + number}")
    config, status = BackendConfig(name), Status("up", seen=True, slots=slots)
    return Server(name, adapter, upstream, Prober(), config=config, status=status)
