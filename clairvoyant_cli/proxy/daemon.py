"""The daemon put together: backend, scheduler, queue, listener, control API; and how it goes down."""

import asyncio
import logging
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from clairvoyant_cli.backends.discovery import find_backend
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.backends.server import Backend, Found
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.control import Word, state_dir
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.listener import ServerConnection
from clairvoyant_cli.http.patience import Budget, ConnectionTable
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.proxy.access import Access, is_loopback, read_secret
from clairvoyant_cli.proxy.backend_watch import BackendWatch
from clairvoyant_cli.proxy.control_api import Changes, ControlApi
from clairvoyant_cli.proxy.dispatcher import Dispatcher
from clairvoyant_cli.proxy.exchange import DrainingError
from clairvoyant_cli.proxy.fallback import Fallback
from clairvoyant_cli.proxy.gateway import Gateway, Rules
from clairvoyant_cli.proxy.learning import DEFAULT_TAU_S
from clairvoyant_cli.proxy.metrics import Metrics
from clairvoyant_cli.proxy.outage import Outage, OutageError
from clairvoyant_cli.proxy.persistence import Persistence, StateSaver
from clairvoyant_cli.proxy.request_stats import RequestStats, plural
from clairvoyant_cli.proxy.residents import Residents
from clairvoyant_cli.proxy.roster import Roster, access_of, roster_of
from clairvoyant_cli.proxy.snapshots import SnapshotBuilder
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES, SERVABLE
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import Predictor
from tui.snapshot import Snapshot

BACKLOG = 2048

OWN_DESCRIPTORS = 100
"""Kept for the listener, the database, probes, spare and resting connections to the backend."""


@dataclass(slots=True)
class Daemon:
    """A running daemon. `drain` and `stop_now` end it; `run_until_stopped` waits for that.

    `reload` reads the clients' file again and returns what is said of it; ClairvoyantError if all stays.
    """

    gateway: Gateway
    backend: Backend
    snapshots: SnapshotBuilder
    control: ControlApi
    base_url: str
    connections: ConnectionTable
    drain_timeout_s: float
    _stopped: asyncio.Event
    reload: Callable[[], str]
    state_saver: StateSaver | None = None
    _drain_ends_s: float = float("inf")

    @property
    def busy(self) -> bool:
        """Whether an answer is still owed to anyone."""
        return bool(self.gateway.dispatcher.live) or any(not each.idle for each in self.connections.every)

    def snapshot(self) -> Snapshot:
        """Return the state as it is now."""
        return self.snapshots.snapshot()

    def drain(self) -> None:
        """Go down in good order: refuse new work, send the waiting away, finish what runs."""
        gateway = self.gateway
        gateway.draining = gateway.stopping = True
        self.control.stopping = True
        sent_away = gateway.dispatcher.send_away_waiting(DrainingError)
        running = len(gateway.dispatcher.scheduler.running)
        gateway.request_stats.event(
            logging.INFO,
            f"draining: {running} running, {sent_away} waiting sent away; "
            f"at most {self.drain_timeout_s:g} s, again to stop at once",
        )
        self._drain_ends_s = gateway.request_stats.clock() + self.drain_timeout_s
        self.connections.hurry()
        for connection in list(self.connections.every):
            connection.retire()

    def stop_now(self) -> None:
        """Go down at once, whatever runs."""
        self._stopped.set()

    async def run_until_stopped(self) -> None:
        """Return once a drain is complete, or `stop_now` was called."""
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1 if self.gateway.draining else 1.0):
                    await self._stopped.wait()
            if self.control.stopping and not self.busy:
                return
            if self.gateway.request_stats.clock() >= self._drain_ends_s:
                running = len(self.gateway.dispatcher.scheduler.running)
                self.gateway.request_stats.event(
                    logging.WARNING,
                    f"the drain took longer than {self.drain_timeout_s:g} s: {running} running cut off",
                )
                return


@asynccontextmanager
async def running_daemon(
    config: ServeConfig,
    predictor: Predictor,
    *,
    persistence: Persistence | None = None,
    announced: bool = False,
) -> AsyncIterator[Daemon]:
    """Start a daemon and stop it when the block ends; an announced one is found by `status` and `top`.

    Without a keepsake it starts from defaults and remembers nothing.
    """
    table = ConnectionTable(
        client_timeout_s=config.client_timeout,
        most=_most_connections(config.max_connections, _raise_open_files()),
        budget=Budget(config.body_budget_mib * 1024 * 1024),
    )
    host, port = config.address()
    roster = roster_of(config, exposed=not is_loopback(host))
    access = access_of(config, roster)
    backend_key = None
    if config.backend_key_file is not None:
        backend_key = read_secret(Path(config.backend_key_file), "backend key")
    listener = _listen(host, port)
    prober = Prober(backend_key)
    try:
        port = listener.getsockname()[1]
        backend = await _backend(config, prober, port)
        async with _Tasks() as tasks:
            daemon = _compose(
                config, predictor, access, roster, backend, backend_key, prober, tasks, (host, port), table
            )
            daemon.state_saver = _state_saver(config, persistence, daemon, tasks)
            loop = asyncio.get_running_loop()
            server = await loop.create_server(
                lambda: ServerConnection(daemon.gateway.handle, tasks.spawn, table),
                sock=listener,
                backlog=BACKLOG,
            )
            tasks.spawn(daemon.gateway.watch.run())
            backend.upstream.keep_spare(tasks.spawn)
            tasks.spawn(table.watch())
            try:
                with _word_of(daemon, port) if announced else nullcontext():
                    yield daemon
            finally:
                daemon.control.stopping = True
                server.close()
                for connection in list(table.every):
                    connection.abort()
                tasks.cancel()
                daemon.gateway.learn_queue.flush()
                if daemon.state_saver is not None:
                    daemon.state_saver.save()
        await backend.upstream.close()
    finally:
        listener.close()
        await prober.close()


def _compose(
    config: ServeConfig,
    predictor: Predictor,
    access: Access,
    roster: Roster,
    backend: Backend,
    backend_key: str | None,
    prober: Prober,
    tasks: "_Tasks",
    address: tuple[str, int],
    table: ConnectionTable,
) -> Daemon:
    request_stats, metrics, changes = RequestStats(time.monotonic), Metrics(), Changes()
    request_stats.on_finished = metrics.ended
    request_stats.shadow.resize(backend.slots)
    name = config.policy or DEFAULT_POLICY
    if name not in SERVABLE:
        raise ClairvoyantError(f"no policy {name!r}; there are {', '.join(SERVABLE)}", ExitCode.USAGE)
    policy = POLICIES[name]
    tau_s = DEFAULT_TAU_S if config.tau is None else config.tau or None
    scheduler = Scheduler(
        policy,
        workers={backend.name: backend.slots},
        tau_s=tau_s,
        capacity=config.queue_capacity,
        tenants=access.clients.tenants,
        everybody=access.clients.defaults.tenant,
    )
    dispatcher = Dispatcher(
        scheduler, clock=time.monotonic, spawn=tasks.spawn, on_change=changes.note, on_end=request_stats.ended
    )

    residents = Residents(scheduler, backend.name) if backend.adapter.SWAPS_MODELS else None

    outage = Outage(config.outage_grace, lambda: _give_up_waiting(dispatcher, request_stats, backend))

    def backend_changed() -> None:
        scheduler.set_slots(backend.name, 0 if backend.away else backend.slots)
        outage.note(away=backend.away)
        request_stats.shadow.resize(backend.slots)
        slots = plural(backend.slots, "slot")
        request_stats.event(
            logging.INFO, f"{backend.name} is {backend.state}, {slots} {backend.detail}".rstrip()
        )
        if residents is not None:
            residents.listed((model.name for model in backend.models), dispatcher.live.values())
        dispatcher.moved()

    rules = Rules(
        max_wait_s=config.max_wait,
        overload_status=config.overload_status,
        body_limit_bytes=config.body_limit_mib * 1024 * 1024,
        show_prompts=config.show_prompts,
        backend_key=backend_key.encode() if backend_key else None,
    )

    async def control(request: Request) -> None:
        await api(request)

    def on_trial() -> None:
        scheduler.set_slots(backend.name, 1)
        dispatcher.pump()
        scheduler.set_slots(backend.name, 0)

    watch = BackendWatch(
        backend, prober, backend_changed, at_work=lambda: bool(scheduler.running), on_trial=on_trial
    )
    gateway = Gateway(
        watch,
        dispatcher,
        predictor,
        request_stats,
        access,
        rules,
        control,
        Fallback(predictor),
        outage,
        residents,
    )
    host, port = address
    shown = f"[{host}]" if ":" in host else host
    tau_source = "default" if config.tau is None else "flag"
    snapshots = SnapshotBuilder(gateway, f"{shown}:{port}", time.monotonic(), tau_source)

    def reload() -> str:
        return roster.read_again(access.clients, gateway.set_clients, request_stats)

    api = ControlApi(gateway, snapshots, changes, metrics, reload)
    # A name may lead elsewhere for others, localhost to ::1 say, and this run's token must not go there.
    reachable = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else shown  # noqa: S104 - compared
    return Daemon(
        gateway,
        backend,
        snapshots,
        api,
        f"http://{reachable}:{port}",
        table,
        config.drain_timeout,
        asyncio.Event(),
        reload,
    )


def _give_up_waiting(dispatcher: Dispatcher, request_stats: RequestStats, backend: Backend) -> None:
    refused = plural(dispatcher.send_away_waiting(OutageError), "request")
    request_stats.event(logging.WARNING, f"{backend.name} is still {backend.state}: {refused} refused")


def _state_saver(
    config: ServeConfig, persistence: Persistence | None, daemon: Daemon, tasks: "_Tasks"
) -> StateSaver | None:
    if persistence is None:
        return None
    state_saver = StateSaver(
        persistence,
        daemon.gateway,
        daemon.snapshots,
        default_tau_s=DEFAULT_TAU_S,
        freeze=config.freeze,
        record_prompts=config.record_prompts,
    )
    state_saver.begin()
    tasks.spawn(state_saver.run())
    return state_saver


async def _backend(config: ServeConfig, prober: Prober, listen_port: int) -> Backend:
    found, all_found = await find_backend(config.backend, prober, listen_port=listen_port)
    log = logging.getLogger("clairvoyant")
    for each in all_found:
        log.info("found %s %s at %s", each.adapter.name, each.version, each.url)
    if not all_found:
        log.warning("nothing answers at %s yet; waiting for %s", found.url, found.adapter.title)
    elif len(all_found) > 1:
        log.info("using %s at %s; choose another with --backend", found.adapter.name, found.url)
    return _as_backend(found, config, seen=bool(all_found))


def _as_backend(found: Found, config: ServeConfig, *, seen: bool) -> Backend:
    upstream = Upstream(found.url, connect_timeout_s=config.connect_timeout)
    return Backend(
        name=found.adapter.name,
        adapter=found.adapter,
        upstream=upstream,
        prefix=found.prefix,
        slots=config.slots or found.slots or 1,
        slots_fixed=config.slots is not None,
        version=found.version,
        seen=seen,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by its connections; uvloop sets it on each, asyncio only where a socket names its protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = "the port is taken" if error.errno == 98 or "in use" in str(error) else error.strerror
        raise ClairvoyantError(
            f"cannot listen on {host}:{port}: {why}; choose another with --listen", ExitCode.USAGE
        ) from None
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _raise_open_files() -> int:
    """Raise the limit of open files as far as may be; return it."""
    # Each client costs two file descriptors; the usual soft limits (256 on macOS) are soon reached.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _most_connections(wanted: int | None, open_files: int) -> int:
    """Return how many clients are admitted: each may need a connection to the backend, too."""
    room = max(8, (open_files - OWN_DESCRIPTORS) // 2)
    return room if wanted is None else min(wanted, room)


class _word_of:  # noqa: N801 - reads as a phrase where it is used
    """Leaves word of a running daemon for `status` and `top`, readable by its owner alone."""

    def __init__(self, daemon: Daemon, port: int) -> None:
        access = daemon.gateway.access
        token = access.run_token if access.admin_token is None else None
        self._word = Word(daemon.base_url, os.getpid(), token)
        self._needed = token is not None and bool(access.clients.keys)
        self._path = state_dir() / f"daemon-{port}.json"

    def __enter__(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path.unlink(missing_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self._word))
        except OSError as error:  # a read-only home costs a convenience, not the service
            if self._needed:
                logging.getLogger("clairvoyant").warning(
                    "cannot write %s (%s), so nobody can see or steer this daemon; give --admin-token-file",
                    self._path,
                    error.strerror or error,
                )

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._path.unlink()


class _Tasks:
    """A TaskGroup whose members outlive the requests that started them, and are cancelled at the end."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "_Tasks":
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        while self._tasks:
            # What ends may start something more, a slot's release say: there is no time for that now.
            self.cancel()
            await asyncio.wait(self._tasks)
        await self._group.__aexit__(None, None, None)

    def spawn(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        task = self._group.create_task(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if asyncio.iscoroutine(work):
            # A task that is cancelled before its first step never awaits what it was given.
            task.add_done_callback(lambda _: work.close())
        return task

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()


async def _guarded(work: Awaitable[None]) -> None:
    try:
        await work
    except Exception:
        # One request's fault must not take the daemon, and every other request, with it.
        logging.getLogger("clairvoyant").exception("internal error; please report it")
