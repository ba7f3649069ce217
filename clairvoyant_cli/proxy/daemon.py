"""Runs a daemon: finds its servers, listens, and shuts it down."""

import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress

import msgspec

from clairvoyant_cli.addresses import Address, is_loopback, joined
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.http.limits import TICK_S
from clairvoyant_cli.http.listener import ClientConnection
from clairvoyant_cli.proxy.access.clients_file import access_of, clients_file_of
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.access.programs import Programs
from clairvoyant_cli.proxy.composition import Daemon, policy_of
from clairvoyant_cli.proxy.learning.persistence import Persistence
from clairvoyant_cli.proxy.listening_socket import Listeners
from clairvoyant_cli.proxy.observing.traces import traces_to
from clairvoyant_cli.proxy.requests.encoder import Encode
from clairvoyant_cli.proxy.servers.find_servers import find_servers
from clairvoyant_cli.proxy.servers.own_server import own_server
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.tasks import Tasks, repeat
from clairvoyant_cli.state.client import RunningDaemon, state_dir
from clairvoyant_cli.system import create_for_owner, process_start, remove
from predictor.record import Predictor, UrgencyPredictor

log = logging.getLogger("clairvoyant")


@asynccontextmanager
async def running_daemon(
    config: ServeConfig,
    predictor: Predictor,
    *,
    persistence: Persistence | None = None,
    announced: bool = False,
    clock: Callable[[], float] = time.monotonic,
    encode: Encode | None = None,
    urgency: UrgencyPredictor | None = None,
    self_test: Callable[[Daemon], Awaitable[None]] | None = None,
    programs: Programs | None = None,
) -> AsyncIterator[Daemon]:
    """Start a daemon, and stop it when the block ends. `status` and `top` find it if it is `announced`.

    Without `persistence` it starts from defaults and remembers nothing. `clock` gives the seconds by which
    everything is ordered and measured; the event loop's timers should follow it. `encode` reads prompts for
    second predictions, which `predictor` takes as opinions. `urgency` predicts the urgency of
    requests for which no rule or client gives one. `self_test` runs as long as the daemon. `programs` tells
    the programs of this machine apart.
    """
    policy_of(config)  # refused before anything is started
    traces = traces_to(config.otlp_endpoint) if announced else None
    exposed = not all(is_loopback(host) for host, _ in config.addresses())
    clients_file = clients_file_of(config, exposed=exposed)
    access = access_of(config, clients_file)
    access.programs = programs
    listeners = Listeners(config.addresses())
    servers: list[Server] = []
    try:
        servers = await find_servers(config, listeners.addresses)
        async with own_server(config) as own, Tasks() as tasks:
            daemon = Daemon(
                config,
                predictor,
                access=access,
                clients_file=clients_file,
                servers=servers,
                own=listeners.addresses,
                spawn=tasks.spawn,
                clock=clock,
                encode=encode,
                urgency=urgency,
            )
            daemon.remember(persistence)

            def took(address: Address) -> None:
                daemon.journal.event(logging.INFO, f"listening on {joined(*address)} as well")
                daemon.lifecycle.expect()  # what listened there may be the server, and starts elsewhere

            handle, table = daemon.handle, daemon.connections
            await listeners.accept(lambda: ClientConnection(handle, tasks.spawn, table), tasks.spawn, took)
            if traces is not None:
                daemon.keepers.functions.append(traces.keeper())
            for server in daemon.pool:
                daemon.lifecycle.start(server)
            if own is not None:
                daemon.lifecycle.expect()
            loops = (
                repeat("checking time-outs", table.check, TICK_S),
                daemon.preemption.run(),
                None if own is None else own.run(),
                None if daemon.second_opinions is None else daemon.second_opinions.run(),
                None if self_test is None else self_test(daemon),
                daemon.recorder.run() if announced else None,  # only then does anyone look back
            )
            for loop in filter(None, loops):
                tasks.spawn(loop)
            port = listeners.addresses[0][1]
            try:
                with _run_file(daemon.base_url, port, access) if announced else nullcontext():
                    yield daemon
            finally:
                daemon.operation.stopped = True  # what ends from here on was not ended by its client
                daemon.control.stop()
                listeners.stop()
                for connection in list(table.every):
                    connection.abort()
                tasks.cancel()
                daemon.learn_queue.flush()
                if daemon.state_saver is not None:
                    daemon.state_saver.save()
        servers += [server for server in daemon.pool if server not in servers]
    finally:
        listeners.close()
        for server in servers:
            await server.close()
        if traces is not None:
            await traces.close()


@contextmanager
def _run_file(base_url: str, port: int, access: Access) -> Iterator[None]:
    """Keep the file by which `status` and `top` find the daemon while the block runs, with its run token if
    it has one. Only its owner can read it.
    """
    token = access.run_token if access.admin_token is None else None
    path = state_dir() / f"daemon-{port}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove(path)
        with os.fdopen(create_for_owner(path), "wb") as file:
            pid = os.getpid()
            file.write(msgspec.json.encode(RunningDaemon(base_url, pid, token, process_start(pid))))
    except OSError as error:  # a read-only home must not stop the service
        if token is not None and access.clients.keys:
            news = "cannot write %s (%s), so this daemon cannot be controlled; give --admin-token-file"
            log.warning(news, path, error.strerror or error)
    try:
        yield
    finally:
        with suppress(OSError):
            remove(path)
