"""Runs a daemon: finds its servers, listens, and shuts it down."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.http.limits import TICK_S
from clairvoyant_cli.proxy.access.clients_file import access_of, clients_file_of
from clairvoyant_cli.proxy.access.programs import Programs
from clairvoyant_cli.proxy.composition import Daemon, policy_of
from clairvoyant_cli.proxy.learning.persistence import Persistence
from clairvoyant_cli.proxy.observing.traces import traces_to
from clairvoyant_cli.proxy.place import Place
from clairvoyant_cli.proxy.requests.encoder import Encode
from clairvoyant_cli.proxy.servers.find_servers import find_servers
from clairvoyant_cli.proxy.servers.own_server import own_server
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.tasks import Tasks, repeat
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
    self_test: Callable[[Daemon], Coroutine[Any, Any, None]] | None = None,
    programs: Programs | None = None,
    replace: bool = False,
) -> AsyncIterator[Daemon]:
    """Start a daemon, and stop it when the block ends. `status` and `top` find it if it is `announced`.

    Without `persistence` it starts from defaults and remembers nothing. `clock` gives the seconds by which
    everything is ordered and measured; the event loop's timers should follow it. `encode` reads prompts for
    second predictions, which `predictor` takes as opinions. `urgency` predicts the urgency of
    requests for which no rule or client gives one. `self_test` runs as long as the daemon. `programs` tells
    the programs of this machine apart. With `replace`, it takes the place of the daemon at its address.
    """
    policy_of(config)  # refused before anything is started
    traces = traces_to(config.otlp_endpoint) if announced else None
    exposed = not all(is_loopback(host) for host, _ in config.addresses())
    clients_file = clients_file_of(config, exposed=exposed)
    access = access_of(config, clients_file)
    access.programs = programs
    place = Place(config, access, announced=announced, replaces=replace)
    servers: list[Server] = []
    try:
        servers = await find_servers(config, place.addresses)
        async with own_server(config) as own, Tasks() as tasks:
            daemon = Daemon(
                config,
                predictor,
                access=access,
                clients_file=clients_file,
                servers=servers,
                own=place.addresses,
                spawn=tasks.spawn,
                clock=clock,
                encode=encode,
                urgency=urgency,
            )
            await place.take(daemon)
            daemon.remember(persistence)

            table = daemon.connections
            await place.open(daemon)
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
            try:
                place.announce()
                yield daemon
            finally:
                place.leave(replaced=daemon.replaced)
                daemon.operation.stopped = True  # what ends from here on was not ended by its client
                daemon.control.stop()
                for connection in list(table.every):
                    connection.abort()
                tasks.cancel()
                daemon.learn_queue.flush()
                if daemon.state_saver is not None:
                    daemon.state_saver.save()
        servers += [server for server in daemon.pool if server not in servers]
    finally:
        await place.close()
        for server in servers:
            await server.close()
        if traces is not None:
            await traces.close()
