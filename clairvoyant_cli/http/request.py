"""An incoming request and its body. A body that is not read stops reading the socket."""

import asyncio
from collections import deque
from collections.abc import Sequence
from mmap import mmap
from typing import Protocol

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.limits import ConnectedClient

CONTINUE_S = 1.0
"""How long to wait for a backend's `100 Continue` before sending one; an HTTP/1.0 server sends none (RFC
9110, 10.1.1)."""


SHORT_BYTES = 64 * 1024
READ_AHEAD_BYTES = SHORT_BYTES
"""How much of a body, or of pipelined requests, may wait before the socket is left alone (as in uvicorn)."""

PART_OF_UNKNOWN = 4  # of the budget for all bodies: kept for each chunked body, whose length is not known

BLOCK_BYTES = 1024 * 1024
TURN_BYTES = 256 * 1024
"""How much of a body is sent in a turn of the loop, which takes 1 to 5 ms."""

Piece = bytes | memoryview


class BodySink(Protocol):
    """Where a request's body flows while it is still arriving."""

    def body(self, data: Piece) -> None:
        """Take one piece."""

    def body_end(self, trailers: list[Header]) -> None:
        """Take the end."""


class Request:
    """A request on its way in: its head is here, its body may still be arriving. While it `expects_continue`,
    its client waits for `100 Continue`.

    Long bodies are held in anonymous mappings, which return to the system whole: malloc would keep fragments.
    """

    def __init__(self, head: RequestHead, connection: ConnectedClient) -> None:
        self.head = head
        self.connection = connection
        self.complete = False
        self.trailers: list[Header] = []
        self.scheduled = False
        self.queued_as: str | None = (
            None  # its id in the queue, "" if it needs no slot; None: not decided yet
        )
        self.holds_slot = False
        self.opened = False
        self._size = 0  # in bytes, of what has arrived and waits
        self._pieces: list[Piece] = []
        self._block: memoryview | None = None  # the last piece of a long body, as far as it is `_filled`
        self._filled = 0
        self._charged = 0
        self._reserved = 0
        self._client = ""
        self._limit = READ_AHEAD_BYTES
        self._news = asyncio.Event()  # more has come than may wait, or all of it
        self._sink: BodySink | None = None
        self._flow: deque[Piece] = deque()
        self._flow_stopped = False
        self._discarded = False
        self.expects_continue = head.expects_continue

    def __repr__(self) -> str:
        state = "complete" if self.complete else f"{self._size} bytes waiting"
        return f"<Request {self.head.method.decode()} {self.head.path} ({state})>"

    @property
    def answered(self) -> bool:
        """Whether any of the answer was sent. A head that the proxy sent early (`opened`) does not count."""
        return self.connection.head_sent and not self.opened

    @property
    def wanted(self) -> bool:
        """Whether the client is waited for: more of the body is to come, and it may come."""
        return not (self.complete or self._discarded or self.expects_continue)

    def schedule(self) -> None:
        """Mark it as queued: a client that ends its side now abandons it."""
        self.scheduled = True
        self.connection.waits_in_queue()

    def welcome_body(self) -> None:
        """Send `100 Continue` if the client waits for it."""
        if self.expects_continue:
            self.expects_continue = False
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def welcome_body_soon(self) -> None:
        """Send `100 Continue` if the client waits for it, unless the backend answers first."""
        if self.expects_continue:
            asyncio.get_running_loop().call_later(CONTINUE_S, self._welcome_late_body)

    def _welcome_late_body(self) -> None:
        if not self._discarded and not self.connection.head_sent:
            self.welcome_body()

    async def read(self, limit_bytes: int, client: str = "") -> list[Piece] | None:
        """Return the whole body in pieces; None if it is longer than `limit_bytes`, or if it is chunked, than
        its part of the budget. What has arrived is kept then, and the rest stays in the socket.

        The first `SHORT_BYTES` are read at once, more once there is room for the bodies of the client.
        """
        if self._charged:
            self.connection.table.hold(self._client, -self._charged)
            self.connection.table.hold(client, self._charged)
        self._client = client
        if self.expects_continue:
            self.welcome_body()
        if not self.complete:
            await self._read_to(min(limit_bytes, SHORT_BYTES))
        if not self.complete and limit_bytes > SHORT_BYTES:
            limit_bytes = await self._read_long(limit_bytes)
        if not self.complete or self._size > limit_bytes:
            self.connection.pause_reading()
            return None
        return self.arrived

    async def _read_long(self, limit_bytes: int) -> int:
        """Read a body for which room is needed; return its limit."""
        table, length = self.connection.table, self.head.length
        if length is None:
            limit_bytes = min(limit_bytes, table.body_budget_bytes // PART_OF_UNKNOWN)
        room = min(length or limit_bytes, limit_bytes) - SHORT_BYTES
        table.hold(self._client, -self._charged)  # else what those that wait have read would fill the room
        self._charged = 0
        await table.make_room(self._client, room)
        self._charged, self._reserved = self._charged + room, room
        try:
            await self._read_to(limit_bytes)
        finally:
            self._reserved = 0
            self._charge()
        return limit_bytes

    async def _read_to(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        while not self.complete and self._size <= limit_bytes:
            self.connection.resume_reading()
            self._news.clear()
            await self._news.wait()
        self._limit = READ_AHEAD_BYTES

    @property
    def delays_others(self) -> bool:
        """Whether others wait for the memory or the slot that it holds while its body arrives."""
        table = self.connection.table
        return table.is_pressed(self._client) or (self.holds_slot and table.slot_wanted())

    @property
    def arrived(self) -> list[Piece]:
        """The pieces of what has arrived of a body, and waits."""
        if self._block is not None and self._filled:
            return [*self._pieces, self._block[: self._filled]]
        return list(self._pieces)

    @property
    def is_kept(self) -> bool:
        """Whether all of it is here, so that it can be sent again."""
        return self.complete and (self._size > 0 or not self.head.has_body)

    def whole(self, limit_bytes: int) -> bytes | None:
        """Return a body that has arrived whole and still waits; None if it is longer, or has gone."""
        if not self.complete or self._sink is not None or not 0 < self._size <= limit_bytes:
            return None
        return b"".join(self.arrived)

    def encoded(self, limit_bytes: int) -> bytes | None:
        """Return a request that has arrived whole as its client sent it; None if that is not possible, or its
        body is longer.
        """
        head, body = self.head, b"" if not self.head.has_body else self.whole(limit_bytes)
        if not self.complete or body is None or self.trailers or head.http10 or head.upgrade:
            return None
        if head.length is None:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        close = [] if head.keep_alive else [(b"Connection", b"close")]
        return head.encode(head.authority, *close, drop=(b"expect",)) + body

    def replace_body(self, body: bytes, outdated: Sequence[bytes]) -> None:
        """Send another body in place of one that has arrived whole, without the fields in `outdated`."""
        self._clear()
        self._append(body)
        self._charge()
        head, dropped = self.head, (*outdated, b"content-length")
        kept = [field for field in head.headers if field[0].lower() not in dropped]
        if head.length is not None:
            head.length = len(body)
            kept.append((b"Content-Length", b"%d" % len(body)))
        head.replace(kept)

    def flow_to(self, sink: BodySink, *, keep: bool = False) -> None:
        """Send what has arrived, and all that will, to `sink`; `keep` a whole body, to send it again."""
        self._sink = sink
        self._flow = deque(self.arrived)
        self._flow_stopped = False
        if not keep:
            self._clear()
        self._pump()

    def pause(self) -> None:
        """Stop feeding the body onward: the sink reads slowly."""
        self.connection.pause_reading()
        self._flow_stopped = True

    def resume(self) -> None:
        """Feed the body again."""
        self.connection.resume_reading()
        self._flow_stopped = False
        if self._flow:
            self._pump()

    def _pump(self) -> None:
        sink = self._sink
        if sink is None:
            return
        left = TURN_BYTES
        while self._flow and not self._flow_stopped:
            if left <= 0:
                asyncio.get_running_loop().call_soon(self._pump_on)
                return
            piece = self._flow.popleft()
            if len(piece) > TURN_BYTES:
                self._flow.appendleft(piece[TURN_BYTES:])
            sink.body(piece[:TURN_BYTES])
            left -= min(len(piece), TURN_BYTES)
        if self._flow:
            return
        if self._charged:
            self._charge()
        if self.complete:
            sink.body_end(self.trailers)
        elif not self._flow_stopped:
            self.connection.resume_reading()

    def _pump_on(self) -> None:
        if self._flow:
            self._pump()

    def sent(self) -> None:
        self._clear()
        if self._charged:
            self._charge()

    def _append(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= SHORT_BYTES:
            self._pieces.append(data)
            return
        rest = memoryview(data)
        while rest:
            if self._block is None:
                self._block, self._filled = memoryview(mmap(-1, BLOCK_BYTES)), 0
            room = rest[: BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + len(room)] = room
            self._filled += len(room)
            rest = rest[len(room) :]
            if self._filled == BLOCK_BYTES:
                self._pieces.append(self._block)
                self._block = None

    def _clear(self) -> None:
        self._size = self._filled = 0
        self._pieces, self._block = [], None

    def discard(self) -> None:
        """Forget the body, what has come of it and what may come; the sink, if any, gets no more of it."""
        self._discarded = True
        self._sink = None
        self._flow.clear()
        self.sent()

    def _charge(self) -> None:
        """Count the bytes of the body that wait here, beyond the first `SHORT_BYTES`, towards the budgets."""
        charged = max(self._reserved, self._size - SHORT_BYTES, 0)
        if charged != self._charged:
            self.connection.table.hold(self._client, charged - self._charged)
            self._charged = charged

    # Called by the connection as bytes arrive.

    def feed(self, data: bytes) -> None:
        self.expects_continue = False
        if self._flow:
            self._flow.append(data)
        elif self._sink is not None:
            self._sink.body(data)
        elif not self._discarded:
            self._append(data)
            if self._size > SHORT_BYTES:
                self._charge()
            if self._size > self._limit:
                self.connection.pause_reading()
                self._news.set()

    def feed_end(self, trailers: list[Header]) -> None:
        self.complete, self.expects_continue = True, False
        self.trailers = trailers
        if self._sink is not None and not self._flow:
            self._sink.body_end(trailers)
        self._news.set()
