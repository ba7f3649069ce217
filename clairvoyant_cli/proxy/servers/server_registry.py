"""How servers come into the pool, at the start and while it runs, and what is wound up when one leaves."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.backends.adapter import Backend
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.discovery import find_backend, split_prefix
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.config import BackendConfig, ServeConfig, name_for
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.proxy.access.keys import read_backend_key
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.servers.loaded_models import Residents
from clairvoyant_cli.proxy.servers.outage import Outage
from clairvoyant_cli.proxy.servers.pool import BackendPool, Worker
from clairvoyant_cli.proxy.servers.server_watch import BackendWatch

log = logging.getLogger("clairvoyant")

Spawn = Callable[[Awaitable[None]], "asyncio.Task[None]"]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that was found or is waited for, what asks it how it does, and its API key."""

    backend: Backend
    prober: Prober
    key: str | None
    weight: float = 1.0


@dataclass(slots=True)
class Joining:
    """Finds servers, has them watched, and lets them into the pool. `joined` are told of each that comes.

    `listen_port` is our own, which is no server's.
    """

    config: ServeConfig
    pool: BackendPool
    dispatcher: Dispatcher
    journal: Journal
    spawn: Spawn
    listen_port: int
    joined: list[Callable[[Worker], None]] = field(default_factory=list)
    _servers: dict[str, Server] = field(default_factory=dict)
    _watches: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool.left.append(self._left)

    async def add(self, wanted: BackendConfig, key: str | None = None) -> Worker:
        """Let a server join while the pool runs; ClairvoyantError if it cannot, or is there already."""
        wanted = replace(wanted, name=wanted.name or name_for(wanted.url or ""))
        self._demand_new(wanted.name or "")
        server = await find_server(self.config, wanted, self.listen_port, key=key, in_company=True)
        try:
            self._demand_new(server.backend.name, server.backend)
        except ClairvoyantError:
            await server.prober.close()
            raise
        worker = self.let_in(server)
        for listener in self.joined:
            listener(worker)
        self.start(worker)
        for each in self.pool:
            each.watch.look_now()  # in company it matters which models each has
        self.pool.changed(worker)
        return worker

    def _demand_new(self, name: str, backend: Backend | None = None) -> None:
        for worker in self.pool:
            if worker.name == name:
                raise ClairvoyantError(f"a backend is called {name} already; give this one another name")
            if backend is not None and worker.backend.place == backend.place:
                raise ClairvoyantError(f"{backend.base_url} is there already, as {worker.name}")

    def let_in(self, server: Server) -> Worker:
        """Make a worker of a server, and let it take work."""
        backend, pool, dispatcher = server.backend, self.pool, self.dispatcher

        def at_work() -> bool:
            return bool(dispatcher.attempts_on(backend.name))

        watch = BackendWatch(
            backend,
            server.prober,
            lambda: pool.changed(worker),
            at_work=at_work,
            on_trial=lambda: pool.try_one(worker),
            in_company=lambda: len(pool) > 1,
            look_closer=lambda: pool.see_settings(worker),
            clock=self.journal.clock,
        )
        worker = Worker(
            backend,
            watch,
            Outage(self.config.outage_grace, lambda: pool.outlasted(worker)),
            server.prober.asking(backend.upstream.url, backend.prefix),
            Residents(dispatcher.scheduler, backend.name) if backend.adapter.SWAPS_MODELS else None,
            server.key.encode() if server.key else None,
            weight=server.weight,
        )
        self._servers[worker.name] = server
        pool.add(worker)
        return worker

    def start(self, worker: Worker) -> None:
        """Begin to watch a worker."""
        self._watches[worker.name] = self.spawn(worker.watch.run())
        worker.backend.upstream.keep_spare(self.spawn)

    async def close(self) -> None:
        """Close what the servers were asked with."""
        for server in self._servers.values():
            await server.prober.close()

    def _left(self, worker: Worker) -> None:
        watch = self._watches.pop(worker.name, None)
        if watch is not None:
            watch.cancel()
        self.spawn(_wind_up(self._servers.pop(worker.name)))


async def find_servers(config: ServeConfig, listen_port: int) -> list[Server]:
    """Find all that a configuration names. Of several, those that cannot be used are left out, with a
    warning; ClairvoyantError if none is left.
    """
    wanted = config.servers()
    keys = [read_backend_key(each.key_file) for each in wanted]
    several = len(wanted) > 1
    found = await asyncio.gather(
        *(
            find_server(config, each, listen_port, key=key, in_company=several)
            for each, key in zip(wanted, keys, strict=True)
        ),
        return_exceptions=True,
    )
    servers = [each for each in found if isinstance(each, Server)]
    errors = [each for each in found if isinstance(each, BaseException)]
    fatal = next((each for each in errors if not isinstance(each, ClairvoyantError) or not servers), None)
    fatal = fatal or _twins([server.backend for server in servers])
    if fatal is not None:
        for server in servers:
            await server.prober.close()
        raise fatal
    for error in errors:
        log.warning("a server is left out: %s", error)
    return servers


def _twins(backends: list[Backend]) -> ClairvoyantError | None:
    """Return what is wrong if a server was given twice, by two spellings of its address."""
    seen: dict[tuple[str, int, str], Backend] = {}
    for each in backends:
        twin = seen.setdefault(each.place, each)
        if twin is not each:
            return ClairvoyantError(
                f"{twin.name} ({twin.base_url}) and {each.name} ({each.base_url}) are the same server; "
                "give it once",
                ExitCode.USAGE,
            )
    return None


async def find_server(
    config: ServeConfig, wanted: BackendConfig, listen_port: int, *, key: str | None, in_company: bool
) -> Server:
    """Find a server, or guess what will be there; ClairvoyantError if it cannot be one."""
    prober = Prober(key)
    try:
        if wanted.url is not None and "://" in wanted.url:  # asked itself, it would not answer in time
            _refuse_ourselves(Upstream(split_prefix(wanted.url)[0]), config.address()[0], listen_port)
        found, all_found = await find_backend(wanted.url, prober, listen_port=listen_port)
        for each in all_found:
            log.info("found %s %s at %s", each.adapter.name, each.version, each.url)
        if not all_found:
            log.warning("nothing answers at %s yet; waiting for %s", found.url, found.adapter.title)
        elif len(all_found) > 1:
            log.info("using %s at %s; choose another with --backend", found.adapter.name, found.url)
        upstream = Upstream(found.url, connect_timeout_s=config.connect_timeout)
        _refuse_ourselves(upstream, config.address()[0], listen_port)
        adapter = found.adapter if wanted.kind is None else adapter_of(wanted.kind)
        backend = Backend(
            name=wanted.name or adapter.name,
            adapter=adapter,
            upstream=upstream,
            prefix=found.prefix,
            slots=wanted.slots or found.slots or 1,
            slots_fixed=wanted.slots is not None,
            version=found.version,
            seen=bool(all_found),
            guessed=not all_found and wanted.kind is None,
            annotate=config.annotate,
        )
        if backend.seen and adapter.PRIORITY is not None:
            asking = prober.asking(found.url, found.prefix)
            backend.heeding = await adapter.heeding(asking, backend.local_port)
        if in_company and all_found:
            await prober.list_models(backend)
        return Server(backend, prober, key, wanted.weight)
    except BaseException:
        await prober.close()
        raise


def _refuse_ourselves(upstream: Upstream, listening: str, port: int) -> None:
    """Raise ClairvoyantError if a server's address leads to where we listen, as far as its name tells."""
    host, everywhere = upstream.host, listening in ("0.0.0.0", "::")  # noqa: S104 - compared
    ours = host == listening or (is_loopback(host) and (everywhere or is_loopback(listening)))
    if ours and upstream.port == port:
        raise ClairvoyantError(
            f"{upstream.url} is this proxy's own address; give the LLM server's, or --listen another",
            ExitCode.USAGE,
        )


async def _wind_up(server: Server) -> None:
    await server.backend.upstream.close()
    await server.prober.close()
