"""Limits on clients: timeouts, connections, held bodies, and the share of a loop turn spent on parsing.

Rule 1: a timeout runs only while the client must send what it began, or read what it was sent.
Rule 2: a client that averages `MIN_BYTES_PER_S` never times out; a silent one does, and one that dribbles
bytes hardly later (Apache's mod_reqtimeout: MinRate=500).
Rule 3: if there is no room for another connection, one that waits for its client is closed: of the address
with the most of them, the one that has been silent longest.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from time import perf_counter
from typing import Protocol

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead

log = logging.getLogger("clairvoyant")

TICK_S = 0.5

TICKED = 500  # connections checked per turn of the loop, in a millisecond or less
MIN_BYTES_PER_S = 500.0

HOLDER_TIMEOUT_S = 10.0  # how long a client that holds a slot may leave its answer unread

DELAYING_TIMEOUT_S, DELAYING_BYTES_PER_S = 2.0, 100_000.0
"""How long an upload may stall while others wait for its slot or its memory, and how fast it must be on
average. Nobody waits for what a slow upload holds otherwise, so that it may take its time."""

DRAINING_TIMEOUT_S = 5.0  # how long a client may hold up the daemon's shutdown
MADE_WAY = 0.01  # the share of all connections that is closed at once if there is no room for another
IDLE_CLIENT_S = 120.0  # how long a connection may rest between two requests (nginx: keepalive_timeout 75 s)


@dataclass(slots=True)
class Patience:
    """A client's credit of seconds: waiting spends it, bytes earn it."""

    left_s: float = 0.0
    _what: str | None = None
    _moved: int = 0
    _due: float = 0.0

    def rests(self) -> None:
        """Nothing is waited for now: the next wait has the full timeout."""
        self._what = None

    def lasts(
        self,
        what: str | None,
        moved: int,
        timeout_s: float,
        elapsed_s: float,
        due: float = float("inf"),
        bytes_per_s: float = MIN_BYTES_PER_S,
    ) -> bool:
        """Record what is waited for (None: nothing) and the bytes moved in all; return False once `timeout_s`
        is used up. A client that moves all bytes `due` at the last call has the full timeout again.
        """
        progress = moved - self._moved
        if what is None or what != self._what or progress >= self._due:
            self.left_s = timeout_s
        else:
            self.left_s = min(timeout_s, self.left_s - elapsed_s + progress / bytes_per_s)
        self._what, self._moved, self._due = what, moved, due
        return self.left_s > 0


TURN_S = 0.004
"""How long a turn of the loop may last before reading waits; what has been begun is read to its end."""


class LoopTurn:
    """Tells when a turn of the loop has lasted long enough, counted from when that was first asked in it."""

    def __init__(self) -> None:
        self._ends_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def over(self) -> bool:
        """Whether what can wait is to be left to the next turn."""
        loop, now = asyncio.get_running_loop(), perf_counter()
        if self._loop is not loop:
            self._loop, self._ends_s = loop, now + TURN_S
            loop.call_soon(self._next)
        return now >= self._ends_s

    def charge(self, seconds: float) -> None:
        """Count what has been put off, and is to be done in this turn."""
        self._ends_s -= seconds

    async def next(self) -> None:
        while self.over:  # noqa: ASYNC110 - an event would wake all in the same turn
            await asyncio.sleep(0)

    def _next(self) -> None:
        self._loop = None


READING = LoopTurn()  # parsing of heads, chunks and bodies


class Throttle(Protocol):
    """A source of data that can be paused."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


Ends = tuple[tuple[str, int], tuple[str, int]]
"""The hosts and ports of a connection, the client's first."""


class ServedRequest(Protocol):
    """What the table sees of a request; `request.Request` explains."""

    queued_as: str | None

    def encoded(self, limit_bytes: int) -> bytes | None: ...


class ConnectedClient(Protocol):
    """A client's connection, as its requests and the table see it; `listener.ClientConnection` explains."""

    peer: str
    ends: Ends
    table: "ConnectionTable"
    silent_s: float

    @property
    def idle(self) -> bool: ...
    @property
    def owes_request(self) -> bool: ...
    @property
    def undecided(self) -> bool: ...
    @property
    def request(self) -> "ServedRequest | None": ...
    @property
    def tunnels(self) -> bool: ...
    @property
    def unsent(self) -> int: ...
    @property
    def gone(self) -> bool: ...
    @property
    def head_sent(self) -> bool: ...
    def tick(self, elapsed_s: float) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def waits_in_queue(self) -> None: ...
    def fed_by(self, throttle: Throttle | None) -> None: ...
    def send_informational(self, head: ResponseHead) -> None: ...
    def send_head(self, head: ResponseHead, *extra: Header) -> None: ...
    def send_body(self, data: bytes) -> None: ...
    def send_end(self, trailers: list[Header]) -> None: ...
    def respond(self, head: ResponseHead, body: bytes, *extra: Header) -> None: ...
    def tunnel(self, receive: Callable[[bytes], None]) -> None: ...
    def write(self, data: bytes) -> None: ...
    def cut(self) -> None: ...
    def retire(self) -> None: ...
    def detach(self) -> socket.socket | None: ...
    def abort(self) -> None: ...


@dataclass(slots=True, eq=False)
class ConnectionTable:
    """The open client connections, at most `most`.

    The bodies of waiting requests may hold `body_budget_bytes` together, and hold `body_bytes`, those of each
    client `bodies`.
    """

    client_timeout_s: float = 30.0
    most: int = 16_384
    body_budget_bytes: int = 256 * 1024 * 1024
    body_bytes: int = 0
    bodies: Counter[str] = field(default_factory=Counter)
    # Uploads that wait for room, by client, each with its size in bytes.
    waiting: "dict[str, dict[asyncio.Future[None], int]]" = field(default_factory=dict)
    slot_wanted: Callable[[], bool] = lambda: False  # returns whether requests are queued
    pass_on: "Callable[[ConnectedClient], object]" = lambda connection: None  # called once it may be idle
    every: "dict[ConnectedClient, None]" = field(default_factory=dict)  # in order of arrival
    _checked_s: float | None = None

    def admit(self, connection: ConnectedClient) -> bool:
        """Add a connection, if necessary in place of ones that wait for their clients; False without room."""
        if len(self.every) >= self.most and not self._make_way():
            return False
        self.every[connection] = None
        return True

    def _make_way(self) -> bool:
        """Close connections (Rule 3): a share of `MADE_WAY`, as looking for them takes milliseconds."""
        unfinished, resting = dict[str, list[ConnectedClient]](), list[ConnectedClient]()
        for connection in self.every:
            if connection.owes_request:
                unfinished.setdefault(connection.peer, []).append(connection)
            elif connection.idle:
                resting.append(connection)
        of_one = max(unfinished.values(), key=len, default=resting)
        of_one.sort(key=attrgetter("silent_s"), reverse=True)
        leaving = of_one[: max(1, int(MADE_WAY * self.most))]
        for connection in leaving:
            self.remove(connection)
            connection.abort()
        return bool(leaving)

    def remove(self, connection: ConnectedClient) -> None:
        self.every.pop(connection, None)

    def hold(self, client: str, change: int) -> None:
        """Count what the bodies of a client hold."""
        self.body_bytes += change
        self.bodies[client] += change
        if not self.bodies[client]:
            del self.bodies[client]
        if self.waiting and change <= 0:
            self._let_in()

    async def make_room(self, client: str, size: int) -> None:
        """Count `size` bytes towards the bodies of a client, as soon as there is room for them.

        The room for a whole body is taken at once: bodies that each hold a part would wait for each other.
        """
        if client not in self.waiting and self._fits(client, size):
            self.hold(client, size)
            return
        place = asyncio.get_running_loop().create_future()
        others = self.waiting.setdefault(client, {})
        others[place] = size
        try:
            await place
        except asyncio.CancelledError:
            others.pop(place, None)
            self.hold(client, 0 if place.cancelled() else -size)
            raise

    def _fits(self, client: str, size: int) -> bool:
        """Whether a client may hold `size` bytes more: with what it holds it leaves as much to others."""
        return self.bodies[client] <= self.body_budget_bytes - self.body_bytes - size

    def _let_in(self) -> None:
        for client in sorted(self.waiting, key=self.bodies.__getitem__):
            waiting = self.waiting[client]
            while waiting:
                place, size = next(iter(waiting.items()))
                if not place.done():
                    if not self._fits(client, size):
                        break
                    self.hold(client, size)
                    place.set_result(None)
                del waiting[place]
            else:
                del self.waiting[client]

    def is_pressed(self, client: str) -> bool:
        """Whether another client, whose bodies hold less, waits for room."""
        return any(self.bodies[other] < self.bodies[client] for other in self.waiting)

    @property
    def tunnels(self) -> int:
        """How many of the connections are tunnels, such as WebSockets."""
        return sum(connection.tunnels for connection in self.every)

    async def check(self) -> None:
        """Check the timeouts of all connections; it is to be called every `TICK_S`."""
        now = asyncio.get_running_loop().time()
        # What the process slept through or was stopped for beyond that, clients could not use.
        elapsed_s = min(now - (self._checked_s or now - TICK_S), 2 * TICK_S)
        self._checked_s = now
        for number, connection in enumerate(list(self.every), 1):
            try:
                if connection in self.every:  # it may have gone since
                    connection.tick(elapsed_s)
            except Exception:
                # One connection's fault must not leave all the others without a timeout.
                log.exception("internal error; please report it")
            if not number % TICKED:
                await asyncio.sleep(0)
