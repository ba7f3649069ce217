"""Where a daemon listens and is found: free at its start, or the place of a running daemon (`handover`)."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from clairvoyant_cli.addresses import Address, joined, local_url
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.listener import ClientConnection
from clairvoyant_cli.http.sockets import READ_BYTES
from clairvoyant_cli.protocols.conversation import KEY
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.handover import GOODBYE, SIGN, Handed, Handover, Moved, Wanted, name_of
from clairvoyant_cli.proxy.listening_socket import Listeners
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.scheduler.urgency import UrgencySource
from clairvoyant_cli.state.client import ControlClient, RunningDaemon, admin_token, state_dir
from clairvoyant_cli.system import create_for_owner, process_start, receive_sockets, remove, unix_listener

log = logging.getLogger("clairvoyant")

HAND_OVER_S = 30.0  # how long the old daemon may take to save its state and to hand over


async def _read(pipe: socket.socket) -> bytes:
    data = bytearray()
    with pipe:
        pipe.setblocking(False)
        while piece := await asyncio.get_running_loop().sock_recv(pipe, READ_BYTES):
            data += piece
    return bytes(data)


@dataclass(slots=True)
class Predecessor:
    """The daemon whose place this one takes. `take_place` goes first."""

    client: ControlClient
    handed: Handed = field(default_factory=lambda: Handed({}))
    _channel: socket.socket | None = None
    _received: int = 0
    _moved: dict[str, Moved] = field(default_factory=dict)  # by their ids here, until they are admitted
    _lines: AsyncGenerator[bytes, None] | None = None

    async def take_place(self, listeners: Listeners) -> None:
        """Have the running daemon hand over its place; ClairvoyantError if it does not, and goes on."""
        wanted = Wanted(listeners.addresses)
        try:
            async with asyncio.timeout(HAND_OVER_S):
                with TemporaryDirectory(prefix="clairvoyant-") as folder, ExitStack() as stack:
                    listener = unix_listener(folder)
                    if listener is not None:
                        stack.enter_context(listener)
                        wanted.channel = str(listener.getsockname())
                    self._lines = self.client.replace(msgspec.json.encode(wanted))
                    await anext(self._lines)
                    if listener is not None:
                        self._channel, _ = listener.accept()
                        self._channel.setblocking(False)
                self.handed = msgspec.json.decode(await anext(self._lines), type=Handed)
            if self._channel is not None:
                sockets = receive_sockets(self._channel, len(self.handed.addresses)) or []
                listeners.take(dict(zip(self.handed.addresses, sockets, strict=True)))
        except (ClairvoyantError, OSError, StopAsyncIteration, ValueError) as error:
            await self.close()
            why = f"cannot take the place of the daemon at {self.client.url}"
            raise ClairvoyantError(f"{why}: {error or 'it does not answer'}") from None

    def inform(self, daemon: Daemon) -> None:
        """Let a daemon know what this one knew, before it serves any request."""
        handed, operation, access = self.handed, daemon.operation, daemon.access
        KEY[:] = handed.key or KEY
        access.run_token = handed.token
        if handed.policy:
            with suppress(KeyError):  # this version has no such policy
                operation.choose_policy(handed.policy)
        if handed.tau_s is not None:
            operation.choose_tau(handed.tau_s or None)
        if handed.said:
            before, access.clients = access.clients, replace(access.clients, said=handed.said)
            operation.set_clients(access.clients, before)
        for server in daemon.pool:
            server.status.seen = server.status.seen or name_of(server) in handed.seen
        self._heed(daemon, handed)

    def _heed(self, daemon: Daemon, handed: Handed) -> None:
        for server in daemon.pool:
            server.lent = handed.needs.get(name_of(server), 0)
        daemon.dispatcher.scheduler.clients.lent = handed.running
        daemon.lifecycle.share_out()

    async def follow(self, daemon: Daemon) -> None:
        """Take over connections and slots until the old daemon has ended."""
        loop = asyncio.get_running_loop()
        daemon.admitted.functions.append(partial(self._admitted, daemon))
        if self._channel is not None:
            loop.add_reader(self._channel.fileno(), self._receive, self._channel, daemon)
        news = f"took the place of process {self.handed.pid}, which finishes the requests that it has started"
        daemon.journal.event(logging.INFO, news)
        try:
            with suppress(ClairvoyantError, StopAsyncIteration, msgspec.DecodeError):
                while self._lines is not None:
                    line = await anext(self._lines)
                    self._heed(daemon, msgspec.json.decode(line, type=Handed))
        finally:
            if self._channel is not None:
                loop.remove_reader(self._channel.fileno())
        self._heed(daemon, Handed({}))
        if daemon.state_saver is not None:
            await daemon.state_saver.sum_up_again()
        daemon.journal.event(logging.INFO, f"process {self.handed.pid} has ended")

    def _receive(self, channel: socket.socket, daemon: Daemon) -> None:
        with suppress(BlockingIOError):
            while (passed := receive_sockets(channel, 2)) is not None:
                daemon.spawn(self._connect(channel, daemon, self._received, *passed))
                self._received += 1
            asyncio.get_running_loop().remove_reader(channel.fileno())  # the old daemon has gone

    async def _connect(
        self,
        channel: socket.socket,
        daemon: Daemon,
        number: int,
        client: socket.socket,
        pipe: socket.socket | None = None,
    ) -> None:
        """Take over a connection, and the request in its pipe: it was sent to the old daemon."""
        raw, moved = b"", None
        if pipe is not None:
            line, _, raw = (await _read(pipe)).partition(b"\n")
            moved = msgspec.json.decode(line, type=Moved) if line else None
            if moved is None or len(raw) != moved.size:
                client.close()  # the old daemon has died
                return
        channel.send(SIGN.pack(number))
        client.setblocking(False)
        connection = ClientConnection(daemon.handle, daemon.spawn, daemon.connections, raw)
        if moved is not None:
            daemon.resubmissions.moved[connection] = moved.left
            self._moved[moved.left.next_id] = moved
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client)

    def _admitted(self, daemon: Daemon, exchange: Exchange) -> None:
        """Set what the operator of the old daemon has set of a request."""
        moved, dispatcher, now = self._moved.pop(exchange.id, None), daemon.dispatcher, daemon.journal.clock()
        if moved is None:
            return
        if moved.priority is not None:
            dispatcher.scheduler.reprioritise(exchange.id, moved.priority, now)
        if moved.promoted:
            dispatcher.scheduler.promote(exchange.id, now)
        if moved.urgency is not None:
            dispatcher.set_urgency(exchange, moved.urgency, UrgencySource.OPERATOR)

    def leave(self) -> None:
        """Tell the old daemon that this one stops on purpose, or has been replaced itself."""
        if self._channel is not None:
            with suppress(OSError):
                self._channel.send(SIGN.pack(GOODBYE))

    async def close(self) -> None:
        if self._lines is not None:
            await self._lines.aclose()
        await self.client.__aexit__()
        if self._channel is not None:
            self._channel.close()


class Place:
    """Where a daemon listens and is found: free at its start, or taken over, and given to another one."""

    def __init__(self, config: ServeConfig, access: Access, *, announced: bool, replaces: bool) -> None:
        """Listen on the first address; ClairvoyantError if it is unavailable. With `replaces` it may be that
        of a running daemon, whose place is taken by `take`.
        """
        self.listeners = Listeners(config.addresses(), replaces=replaces)
        self.addresses = self.listeners.addresses
        self._old: Predecessor | None = None
        self._access, self._announced = access, announced
        if not self.listeners.is_first_open:
            if config.start is not None:
                why = "--replace cannot go with --start: the LLM server would end with the old daemon"
                raise ClairvoyantError(why, ExitCode.USAGE)
            token = config.admin_token_file
            found = admin_token(Path(token)) if token else None
            client = ControlClient(local_url(*self.addresses[0]), found)
            if client.token is None:
                where = joined(*self.addresses[0])
                why = f"{where} is in use, and not by a daemon of this account; choose another with --listen"
                raise ClairvoyantError(why, ExitCode.USAGE)
            self._old = Predecessor(client)

    async def take(self, daemon: Daemon) -> None:
        """Take the place of the running daemon, if there is one, before anything is loaded or served."""
        if self._old is not None:
            await self._old.take_place(self.listeners)
            self._old.inform(daemon)

    async def open(self, daemon: Daemon) -> None:
        """Accept clients, and let another daemon take this place."""

        def connection() -> ClientConnection:
            return ClientConnection(daemon.handle, daemon.spawn, daemon.connections)

        def took(address: Address) -> None:
            daemon.journal.event(logging.INFO, f"listening on {joined(*address)} as well")
            daemon.lifecycle.expect()  # what listened there may be the server, and starts elsewhere

        async def resume() -> None:
            self.announce()
            await self.listeners.accept(connection, daemon.spawn, took)

        await self.listeners.accept(connection, daemon.spawn, took)
        if self._old is not None:
            daemon.spawn(self._old.follow(daemon))
        leave = (lambda: None) if self._old is None else self._old.leave
        daemon.control.hand_over = Handover(daemon, self.listeners, resume, leave).give

    @property
    def _path(self) -> Path:
        return state_dir() / f"daemon-{self.addresses[0][1]}.json"

    def announce(self) -> None:
        """Write the file by which `status` and `top` find the daemon, with its run token if it has one. Only
        its owner can read it.
        """
        if not self._announced:
            return
        access, path, pid = self._access, self._path, os.getpid()
        token = access.run_token if access.admin_token is None else None
        running = RunningDaemon(local_url(*self.addresses[0]), pid, token, process_start(pid))
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            remove(path)
            with os.fdopen(create_for_owner(path), "wb") as file:
                file.write(msgspec.json.encode(running))
        except OSError as error:  # a read-only home must not stop the service
            if token is not None and access.clients.keys:
                news = "cannot write %s (%s), so this daemon cannot be controlled; give --admin-token-file"
                log.warning(news, path, error.strerror or error)

    def leave(self, *, replaced: bool) -> None:
        """Accept nobody any more, and remove the file; if `replaced`, it is that of another daemon."""
        self.listeners.stop()
        if self._old is not None:
            self._old.leave()
        if self._announced and not replaced:
            with suppress(OSError):
                remove(self._path)

    async def close(self) -> None:
        if self._old is not None:
            await self._old.close()
        self.listeners.close()
