"""Gives the place of a daemon to a new one without a lost request (`serve --replace`); `place` takes it.

Rule 1: the new daemon asks at `/_clairvoyant/replace` once it is ready to serve. Until then the old one knows
nothing of it; if the new one fails to start, nothing has happened.
Rule 2: the old daemon passes its listening sockets and its idle connections over a Unix socket, so no client
sees that another process answers. Connections that are not accepted yet stay in the listening socket, which
both processes share. Windows cannot pass sockets: there, the old daemon closes them, and the new one listens
as soon as the address is free.
Rule 3: requests that have not been started are passed on with their connections and keep their age, so that
all that wait are in one queue. The old daemon serves the others to their ends.
Rule 4: the answer at `/_clairvoyant/replace` lasts as long as the old daemon, and tells how many slots of
each server it still needs; the new one uses the others only. That number never rises, as no connection comes.
What the old one runs of a client counts towards the client's limit.
Rule 5: the old daemon saves its learned state before it hands over, and none after that.
Rule 6: if the new daemon dies before the old one has ended, the old one accepts clients again. A new daemon
that stops on purpose, or has been replaced itself, says so (`GOODBYE`), and the old one closes its listening
sockets.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from clairvoyant_cli.addresses import Address, joined
from clairvoyant_cli.http.limits import ConnectedClient
from clairvoyant_cli.protocols.conversation import KEY
from clairvoyant_cli.proxy.composition import Daemon, policy_of
from clairvoyant_cli.proxy.listening_socket import Listeners
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.kept_places import Left
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.server_actions import InvalidError, RefusedError
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.urgency import UrgencySource
from clairvoyant_cli.system import send_sockets, unix_connection

LOOK_EVERY_S = 0.25
MOVED_BYTES = 8 << 20  # a queued request with a longer body stays with the old daemon
SIGN, GOODBYE = Struct("I"), 0xFFFFFFFF
"""What the new daemon sends over the Unix socket: the number of each connection that it has taken over, and
`GOODBYE` when it leaves on purpose."""


class Wanted(msgspec.Struct):
    """What a new daemon asks with: where it listens, and the path of its Unix socket, if it has one."""

    addresses: list[Address]
    channel: str = ""


class Moved(msgspec.Struct):
    """The first line in the pipe of a queued request: the bytes that follow, its id and age, and what the
    operator has set.
    """

    size: int
    left: Left
    promoted: bool = False
    priority: int | None = None
    urgency: int | None = None


class Handed(msgspec.Struct, omit_defaults=True):
    """What the old daemon says: `needs`, its slots of each server, and its `running` requests of each client;
    the rest once.
    """

    needs: dict[str, int]
    running: dict[str, int] = {}
    pid: int = 0
    seen: list[str] = []  # servers that were up
    addresses: list[Address] = []  # of the sockets that it has passed
    token: str = ""  # its run token
    key: bytes = b""  # of the hashes of conversations
    policy: str = ""  # what the operator has chosen
    tau_s: float | None = None
    said: dict[str, bool] = {}


def name_of(server: Server) -> str:
    host, port, prefix = server.place
    return f"{joined(host, port)}{prefix}"


def _event(handed: Handed) -> bytes:
    return b"data: " + msgspec.json.encode(handed) + b"\n\n"


class _Passing(NamedTuple):
    """A connection on its way to the new daemon, with its queued request, if it has one."""

    connection: ConnectedClient
    exchange: Exchange | None


async def _write(pipe: socket.socket, data: bytes) -> None:
    with pipe, suppress(OSError):  # the new daemon may have died
        await asyncio.get_running_loop().sock_sendall(pipe, data)


@dataclass(slots=True)
class Handover:
    """Gives the place of a daemon to another one. `resume` takes it back if that one dies."""

    daemon: Daemon
    listeners: Listeners
    resume: Callable[[], Coroutine[Any, Any, None]]
    handed_over: Callable[[], object]  # called once it is given
    _channel: socket.socket | None = None
    _passing: "dict[int, _Passing]" = field(default_factory=dict)  # the new daemon has not confirmed them
    _passed: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ending: "asyncio.Task[None] | None" = None
    _over: bool = False  # all is served
    _returns: bool = True  # if the new daemon dies
    _streams: bool = False  # the new daemon is connected
    _closes: bool = False  # connections cannot be passed, so idle ones are closed

    async def give(self, body: bytes) -> AsyncIterator[bytes]:
        """Hand over and yield what the new daemon has to know, until all is served; RefusedError if that is
        not possible now.
        """
        daemon, wanted = self.daemon, self._wanted(body)
        daemon.replaced = self._streams = self._returns = True
        self._passed = 0
        try:
            self._channel = unix_connection(wanted.channel) if wanted.channel else None
            self._closes = self._channel is None
            yield b"data: \n\n"  # connected
            yield _event(await self._hand_over())
            said = None
            while not self._over:
                if said != self._used():
                    said = self._used()
                    yield _event(Handed(*said))
                else:
                    yield b": \n\n"  # a new daemon that has died is noticed
                await self._change()
        except OSError as error:
            raise InvalidError(f"cannot connect to the new daemon: {error.strerror or error}") from None
        finally:
            self._streams = False
            self._return()

    def _wanted(self, body: bytes) -> Wanted:
        daemon = self.daemon
        try:
            wanted = msgspec.json.decode(body, type=Wanted)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidError("the body does not say where the new daemon listens") from None
        if daemon.replaced:
            raise RefusedError("another daemon is taking its place already")
        if daemon.config.start is not None:
            raise RefusedError("its LLM server would end with it (--start)")
        if daemon.dispatcher.scheduler.paused or daemon.operation.draining:
            raise RefusedError("it is paused or drains; first run: clairvoyant act resume")
        if not wanted.addresses or wanted.addresses[0] not in self.listeners.addresses:
            where = ", ".join(joined(*each) for each in self.listeners.addresses)
            raise RefusedError(f"it listens on {where}; give the new one the same --listen")
        return wanted

    async def _hand_over(self) -> Handed:
        daemon, scheduler, saver = self.daemon, self.daemon.dispatcher.scheduler, self.daemon.state_saver
        if saver is not None:
            saver.save()
            await asyncio.to_thread(saver.persistence.flush)
            saver.replaced = True
        self._ending = daemon.spawn(self._end())
        for job in list(scheduler):  # nobody can release them any more
            scheduler.release(job.id, daemon.journal.clock())
        kept = self.listeners.pause(keep=self._channel is not None)
        if self._channel is not None:
            send_sockets(self._channel, list(kept.values()))
            asyncio.get_running_loop().add_reader(self._channel.fileno(), self._heard)
        daemon.connections.pass_on = self._pass
        daemon.changed.functions.append(self._wake)
        self.handed_over()
        daemon.control.stop()
        left = f"{len(scheduler.running)} running and {len(scheduler)} queued requests"
        daemon.journal.event(logging.INFO, f"another daemon takes the place of this one, which has {left}")
        operation, access = daemon.operation, daemon.access
        return Handed(
            *self._used(),
            pid=os.getpid(),
            seen=[name_of(server) for server in daemon.pool if server.status.seen],
            addresses=list(kept),
            token=access.run_token,
            key=bytes(KEY),
            policy="" if operation.policy == policy_of(daemon.config).name else operation.policy,
            tau_s=(operation.tau_s or 0.0) if operation.tau_source == "operator" else None,
            said=dict(access.clients.said),
        )

    def _used(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many slots of each server this daemon may still use, and how many requests of each
        client it runs, with those of the daemon before it.
        """
        daemon, scheduler = self.daemon, self.daemon.dispatcher.scheduler
        coming = len(scheduler) + sum(each.undecided for each in daemon.connections.every)
        needs = {}
        for server in daemon.pool:
            running = len(scheduler.fleet.servers[server.id].running)
            needs[name_of(server)] = server.lent + max(running, min(server.room, running + coming))
        clients = scheduler.clients
        return needs, dict(Counter(clients.running) + Counter(clients.lent))

    def _wake(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY_S):
                await self._changed.wait()
        self._changed.clear()

    async def _end(self) -> None:
        """Serve what is here, pass on connections that have become idle, and stop the daemon at last."""
        daemon, loop = self.daemon, asyncio.get_running_loop()
        served_s: float | None = None
        while True:
            for connection in list(daemon.connections.every):
                self._pass(connection)
            busy = sum(not each.idle for each in daemon.connections.every) > self._streams
            if daemon.dispatcher.live or any(server.lent for server in daemon.pool):
                served_s = None
            elif not (busy or self._passing) or loop.time() > (served_s or inf) + daemon.drain_timeout_s:
                break  # a tunnel may stay open for days
            else:
                served_s = served_s or loop.time()
            await asyncio.sleep(LOOK_EVERY_S)
        self._over = True
        self._wake()
        daemon.stop_now()

    def _pass(self, connection: ConnectedClient) -> None:
        """Pass a connection to the new daemon if it is idle, or its request has not been started; close an
        idle one where that is not possible.
        """
        request, exchange, raw = connection.request, None, b""
        if self._channel is None:
            if self._closes:
                connection.retire()
            return
        if request is not None:
            exchange = self.daemon.dispatcher.live.get(request.queued_as or "")
            if exchange is None or exchange.attempts or exchange.attempt:
                return
            raw = request.encoded(MOVED_BYTES) or b""
        if not (raw or connection.idle) or (client := connection.detach()) is None:
            return
        passing, sockets = _Passing(connection, exchange), [client]
        if exchange is not None:
            sockets.append(self._piped(exchange.job, raw))
        passed = False
        with suppress(OSError):  # the new daemon may have died
            passed = send_sockets(self._channel, sockets)
        for each in sockets:
            each.close()
        if passed:
            self._passing[self._passed] = passing
            self._passed += 1
        else:
            self._keep(passing)

    def _piped(self, job: Job, raw: bytes) -> socket.socket:
        """Return a pipe from which a queued request can be read; it is not started meanwhile."""
        now = self.daemon.journal.clock()
        self.daemon.dispatcher.scheduler.hold(job.id, now)
        moved = Moved(
            len(raw),
            Left(job.id, now - job.arrival_s, now),
            promoted=job.promoted,
            priority=int(job.rank) if job.by_operator and not job.promoted else None,
            urgency=job.urgency if job.urgency_by == UrgencySource.OPERATOR else None,
        )
        theirs, ours = socket.socketpair()
        ours.setblocking(False)
        self.daemon.spawn(_write(ours, msgspec.json.encode(moved) + b"\n" + raw))
        return theirs

    def _keep(self, passing: "_Passing") -> None:
        """Go on with a connection that could not be passed."""
        if passing.exchange is not None:
            self.daemon.dispatcher.scheduler.release(passing.exchange.id, self.daemon.journal.clock())
        passing.connection.resume_reading()

    def _confirmed(self, passing: "_Passing") -> None:
        """End our side of a connection that the new daemon has."""
        daemon, exchange = self.daemon, passing.exchange
        if exchange is not None and exchange.end is None:
            daemon.dispatcher.withdraw(exchange)
            if daemon.state_saver is not None:
                daemon.state_saver.persistence.withdraw(exchange.id)
        passing.connection.abort()

    def _heard(self) -> None:
        """Read what the new daemon sends. What it has not confirmed, it has not read from."""
        if self._channel is None:
            return
        data = b""
        with suppress(OSError):
            data = self._channel.recv(SIGN.size * 1024)
        for (number,) in SIGN.iter_unpack(data):
            if number == GOODBYE:
                self._returns = False
                self.listeners.close()  # nobody accepts what would come
            elif (passing := self._passing.pop(number, None)) is not None:
                self._confirmed(passing)
        if not data:
            self._close_channel()
            self._wake()

    def _close_channel(self) -> None:
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None
        while self._passing:
            self._keep(self._passing.popitem()[1])

    def _return(self) -> None:
        """Go on as before if the new daemon has died."""
        daemon = self.daemon
        if self._over or not self._returns or daemon.operation.stopping or daemon.operation.stopped:
            return
        daemon.connections.pass_on = lambda connection: None
        self._close_channel()
        daemon.replaced = False
        if daemon.state_saver is not None:
            daemon.state_saver.replaced = False
        if self._ending is None:  # nothing was handed over yet
            return
        self._ending.cancel()
        self._ending = None
        daemon.changed.functions = [each for each in daemon.changed.functions if each != self._wake]
        daemon.spawn(self.resume())
        daemon.dispatcher.moved()
        news = "the daemon that was taking the place of this one has died; this one goes on"
        daemon.journal.event(logging.WARNING, news)
