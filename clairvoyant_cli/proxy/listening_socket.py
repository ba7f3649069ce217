"""The listening socket, and how many clients the process can serve."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from clairvoyant_cli.addresses import Address
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.limits import TICK_S, ConnectionTable
from clairvoyant_cli.http.listener import ClientConnection
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.proxy.tasks import Tasks, repeat
from clairvoyant_cli.system import claim_alone, start_accepting

log = logging.getLogger("clairvoyant")

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

BACKLOG = 2048
TAKEN = "the port is taken (clairvoyant status shows whether by another clairvoyant)"
FIRST_PAUSE_S, MAX_PAUSE_S = 0.005, 1.0
PAUSE_GROWTH = 1.0005  # so 10 ms after 10 s, 50 ms after 90 s, and a second after half an hour
OWN_DESCRIPTORS = 100  # for the listener, the database, probes, spare and idle connections to the backend


def listen(host: str, port: int, flag: str = "--listen") -> socket.socket:
    """Return a listening socket; ClairvoyantError that names the flag if the address is unavailable."""
    listener = listen_if_free(host, port, flag)
    if listener is None:
        raise _unavailable(host, port, TAKEN, flag)
    return listener


def listen_if_free(host: str, port: int, flag: str = "--listen") -> socket.socket | None:
    """Return a listening socket as `listen` does; None if the address is in use."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    claim_alone(listener)
    # Inherited by its connections; uvloop sets it on each, asyncio only where a socket names its protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise _unavailable(host, port, str(error.strerror), flag) from None
    listener.setblocking(False)
    return listener


class Listeners:
    """The listening sockets of a daemon. Of its addresses, all but the first may still be in use; the first
    may be the one of a daemon whose place this one takes (`replaces`).
    """

    def __init__(self, addresses: Sequence[Address], *, replaces: bool = False) -> None:
        """Listen on the first address; ClairvoyantError if it is unavailable."""
        (host, port), *more = addresses
        first = listen_if_free(host, port) if replaces else listen(host, port)
        self._open: dict[Address, socket.socket] = {}
        self._stopping: list[Callable[[], object]] = []
        self.addresses = [(host, port), *more]
        if first is not None:
            self.addresses[0] = host, int(first.getsockname()[1])
            self._open[self.addresses[0]] = first

    @property
    def is_first_open(self) -> bool:
        return self.addresses[0] in self._open

    def take(self, passed: Mapping[Address, socket.socket]) -> None:
        """Use the sockets of another daemon for our addresses."""
        for address, listener in passed.items():
            if address in self.addresses and address not in self._open:
                self._open[address] = listener
            else:
                listener.close()

    async def accept(
        self, make: Callable[[], asyncio.Protocol], spawn: Spawn, late: Callable[[Address], object]
    ) -> None:
        """Accept clients; at an address in use as soon as it is free, after a call of `late` with it."""

        async def begin(listener: socket.socket) -> None:
            self._stopping.append(await start_accepting(make, listener, BACKLOG, spawn))

        async def begin_late(address: Address) -> None:
            pause_s, listener = FIRST_PAUSE_S, None  # short, as clients are refused until the next try
            while listener is None:
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_GROWTH * pause_s, MAX_PAUSE_S)
                with suppress(ClairvoyantError):  # its interface may be down for a while
                    listener = listen_if_free(*address)
            self._open[address] = listener
            if address != self.addresses[0]:
                late(address)
            await begin(listener)

        for address in self.addresses:
            listener = self._open.get(address) or listen_if_free(*address)
            if listener is not None:
                self._open[address] = listener
                await begin(listener)
            else:
                log.info("%s:%d is in use; waiting for it to become free", *address)
                self._stopping.append(spawn(begin_late(address)).cancel)

    def pause(self, *, keep: bool) -> dict[Address, socket.socket]:
        """Stop accepting until `accept` is called again; `keep` the sockets, with the clients that wait in
        them, and return them.
        """
        kept = {address: each.dup() for address, each in self._open.items()} if keep else {}
        self.stop()
        self.close()
        self._open = kept
        return kept

    def stop(self) -> None:
        for stop in self._stopping:
            stop()
        self._stopping.clear()

    def close(self) -> None:
        for listener in self._open.values():
            listener.close()


@asynccontextmanager
async def serving(
    listener: socket.socket, serve: Callable[[Request], Awaitable[None]], most: int
) -> AsyncIterator[Tasks]:
    """Serve the requests of `most` clients at once until the block ends; yield the tasks that do."""
    table = ConnectionTable(most=most)
    try:
        async with Tasks() as tasks:
            stop = await start_accepting(
                lambda: ClientConnection(serve, tasks.spawn, table), listener, most, tasks.spawn
            )
            tasks.spawn(repeat("checking time-outs", table.check, TICK_S))
            try:
                yield tasks
            finally:
                stop()
                for connection in list(table.every):
                    connection.abort()
                tasks.cancel()
    finally:
        listener.close()


def _unavailable(host: str, port: int, why: str, flag: str) -> ClairvoyantError:
    message = f"cannot listen on {host}:{port}: {why}; choose another with {flag}"
    return ClairvoyantError(message, ExitCode.USAGE)


def max_connections(wanted: int | None, open_files: int) -> int:
    """Return how many clients are admitted: each may need a connection to the backend, too."""
    room = max(8, (open_files - OWN_DESCRIPTORS) // 2)
    return room if wanted is None else min(wanted, room)
