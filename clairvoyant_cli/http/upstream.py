"""The server side of the proxy: connections to one LLM server, one answer at a time on each.

Rule 1: bytes go to their sink from the callback that received them; no task wakes up per token.
Rule 2: an idle connection is reused only while it is young, as a POST that meets a closing connection cannot
be repeated safely (RFC 9110, 9.2.2).
Rule 3: connecting has a timeout, answering has none.
"""

import asyncio
import errno
import math
import socket
import ssl
from asyncio.staggered import staggered_race
from collections import deque
from contextlib import suppress
from functools import partial
from typing import cast
from urllib.parse import urlsplit

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.framing import End, Event, Malformed, ResponseReader, chunk, last_chunk
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.http.limits import Throttle
from clairvoyant_cli.http.request import Piece
from clairvoyant_cli.http.sockets import Peer, end_with_reset, keep_alive, peer_of, unread

MAX_IDLE = 32  # how many idle connections are kept
MAX_IDLE_S = 2.0  # older ones are closed: cpp-httplib keeps them 5 s, Go and Node at least as long
MIN_IDLE_S = 0.05
"""Minimum rest: llama.cpp closes the connection of a streamed answer a millisecond after its end, without
announcing it, and a request sent in that millisecond is lost."""

NEXT_ADDRESS_S = 0.25  # RFC 8305, section 8: Connection Attempt Delay
IN_FLIGHT_S = 0.3  # what arrives sooner after a half-close may have been sent before the server saw it


class UpstreamError(Exception):
    """The backend could not be reached, or its answer broke off."""


class UnreachableError(UpstreamError):
    """No connection could be made: the request was not seen by the backend."""


class StaleError(UpstreamError):
    """A reused connection ended before any of the answer: the backend may have seen the request or not, so
    only idempotent ones may be repeated (RFC 9110, 9.2.2).
    """


class NotReadyError(UpstreamError):
    """The backend answered that it cannot serve yet: it has seen the request and done nothing with it."""


class RefusedError(UpstreamError):
    """The backend refused a request that another might answer, and has done nothing with it."""


class ResponseSink:
    """Receives an answer: 1xx answers, the head, pieces of the body; at last `end` or `failed`, once."""

    def informational(self, head: ResponseHead) -> None:
        pass

    def head(self, head: ResponseHead) -> None:
        raise NotImplementedError

    def data(self, data: bytes) -> None:
        raise NotImplementedError

    def end(self, trailers: list[Header]) -> None:
        raise NotImplementedError

    def failed(self, error: UpstreamError) -> None:
        raise NotImplementedError


class UpstreamConnection(asyncio.Protocol):
    def __init__(self, pool: "Upstream") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._sink: ResponseSink | None = None
        self.rested = False
        self._chunked_request = False
        self._request_complete = True
        self._reading = True
        self._hanging_up = False
        self._half_closed_s = math.inf
        self.throttle: Throttle | None = None
        self.idle_since = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are registered with asyncio's base class alone; they are whole ones.
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)

    def data_received(self, data: bytes | bytearray) -> None:
        sink = self._sink
        if sink is not None:
            # asyncio's Proactor hands in a bytearray after a pause; bytes are not copied.
            self._take(self._reader.receive(bytes(data)), sink)
        elif not self._hanging_up:
            # Nobody asked: the rest of an answer that was given up, or a server that closes with a 408.
            self.close()
        elif (
            self._transport is not None
            and asyncio.get_running_loop().time() - self._half_closed_s >= IN_FLIGHT_S
        ):
            # The server has not noticed, as Python's http.server, which does when a write fails.
            end_with_reset(self._transport)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        self._pool.forget(self)
        if not self.closed.done():
            self.closed.set_result(None)
        if exc is not None and transport is not None and self._sink is not None:
            # A write failed: the server has closed its side. Its answer, 413 or 401, may have come before.
            for data in unread(transport):
                if self._sink is not None:
                    self._take(self._reader.receive(data), self._sink)
        while self._reader.pending and self._sink is not None:
            self._take(self._reader.receive(b""), self._sink)
        sink = self._sink
        if sink is None:
            return
        if exc is not None or (self.rested and not self._reader.begun):
            self._lost()
        else:
            self._take(self._reader.close(), sink)

    def pause_writing(self) -> None:
        if self.throttle is not None:
            self.throttle.pause()

    def resume_writing(self) -> None:
        if self.throttle is not None:
            self.throttle.resume()

    def begin(self, request: RequestHead, wire: bytes, sink: ResponseSink) -> None:
        """Send a request's head, `wire`, and give its answer to `sink`."""
        self._reader.expect(request)
        self._sink = sink
        self._chunked_request = request.length is None
        self._request_complete = not request.has_body
        if self._transport is None:
            self._lost()
        else:
            self._transport.write(wire)  # uvloop sends what is written in a turn of the loop in one piece

    def body(self, data: Piece) -> None:
        self.write(chunk(data) if self._chunked_request else data)

    def body_end(self, trailers: list[Header]) -> None:
        self._request_complete = True
        if self._chunked_request:
            self.write(last_chunk(trailers))

    def write(self, data: Piece) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def pause(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()
            if self._reader.pending:
                asyncio.get_running_loop().call_soon(self._read_on)

    def abort(self) -> None:
        """Close the connection now; its sink is not called any more."""
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    def let_go(self) -> None:
        """Hear no more of the answer: whatever still comes of it is dropped."""
        self._sink = None
        self._hanging_up = True
        self.throttle = None
        self.resume()

    async def hang_up(self, patience_s: float) -> bool:
        """Abandon the answer and wait until the backend has noticed; False on a timeout. Half-closing first
        makes most servers close their own half when their handler ends: the only sign that the work has
        stopped. One that writes on after it gets a reset. It is half-closed next time, too: an unstreamed
        answer is not stopped by a reset, and its slot is free when it is written.
        """
        self.let_go()
        transport = self._transport
        if transport is None:
            return True
        if transport.can_write_eof():
            self._half_closed_s = asyncio.get_running_loop().time()
            with suppress(OSError, RuntimeError):
                transport.write_eof()
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await asyncio.shield(self.closed)
        noticed = self._transport is None
        transport.abort()
        return noticed

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def paused(self) -> bool:
        """Whether it is not read, as its client does not take what comes."""
        return not self._reading

    @property
    def open(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def is_there(self) -> bool:
        return self.open and self._transport is not None and peer_of(self._transport) is Peer.OPEN

    def _take(self, events: list[Event], sink: ResponseSink) -> None:
        for event in events:
            if isinstance(event, bytes):
                sink.data(event)
            elif isinstance(event, ResponseHead):
                (sink.head if event.status >= 200 or event.status == 101 else sink.informational)(event)
            elif isinstance(event, End):
                self._finish(sink, event.trailers)
            elif isinstance(event, Malformed):
                self._fail(UpstreamError(event.why))
                self.close()
            if self._sink is not sink:
                return  # the answer is over, or not wanted any more
        if self._reader.pending:
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        # A client that reads slowly stops this, too: `resume` comes back here.
        if self._sink is not None and self._reading and self._reader.pending:
            self._take(self._reader.receive(b""), self._sink)

    def _finish(self, sink: ResponseSink, trailers: list[Header]) -> None:
        self._sink = None
        self.throttle = None
        self.resume()
        self.rested = True
        if self._reader.reusable and self._request_complete:
            self._pool.keep(self)
        elif self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()  # it answered early, and may never read the rest of the request
        else:
            self.close()
        sink.end(trailers)

    def _lost(self) -> None:
        if self.rested and not self._reader.begun:
            self._fail(StaleError("it closed the connection before it answered"))
        else:
            self._fail(UpstreamError("it closed the connection before its answer was complete"))

    def _fail(self, error: UpstreamError) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.failed(error)


class Upstream:
    """The connections to one backend. `url`: http or https, host and port; a path is not part of it."""

    def __init__(self, url: str, *, connect_timeout_s: float = 5.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClairvoyantError(f"{url!r} is not a backend URL; give one like http://127.0.0.1:11434")
        try:
            port = parts.port
        except ValueError:
            raise ClairvoyantError(f"{url!r} has no valid port; give one like :11434") from None
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.host = parts.hostname
        self._is_address = ":" in self.host or self.host.replace(".", "").isdigit()
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.host_header = parts.netloc.rpartition("@")[2].encode()
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[UpstreamConnection] = deque()

    def __repr__(self) -> str:
        return f"<Upstream {self.url}: {len(self._idle)} idle>"

    async def connect(self, *, fresh: bool = False) -> UpstreamConnection:
        """Return a free connection, a new one if `fresh`; UpstreamError if there is none."""
        now = asyncio.get_running_loop().time()
        while not fresh and self._idle and now - self._idle[0].idle_since >= MIN_IDLE_S:
            connection = self._idle.popleft()
            # The backend may have ended it a moment ago, which the kernel knows before the event loop does.
            if now - connection.idle_since <= MAX_IDLE_S and connection.is_there():
                return connection
            connection.close()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._connect_first()
        except TimeoutError:
            raise UnreachableError(f"no connection within {self._connect_timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise UnreachableError(f"TLS failed: {error.reason or error}") from None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise UpstreamError("this machine allows no more open files") from None
            raise UnreachableError(reason(error)) from None

    async def _connect_first(self) -> UpstreamConnection:
        """Connect to the first address of the host that answers ("happy eyeballs", RFC 8305), as uvloop
        tries one address after the other, each until the kernel gives up.
        """
        if self._is_address:
            return await self._connect(self.host)  # nothing to look up, which takes a thread
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        attempts = [partial(self._connect, str(address[0])) for *_, address in found]
        won, _, errors = await staggered_race(attempts, NEXT_ADDRESS_S)
        if won is None:
            raise next(filter(None, errors))
        return cast(UpstreamConnection, won)

    async def _connect(self, address: str) -> UpstreamConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: UpstreamConnection(self),
            address,
            self.port,
            ssl=self._ssl,
            server_hostname=self.host if self._ssl else None,
        )
        return connection

    def keep(self, connection: UpstreamConnection) -> None:
        if not connection.open:
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE:
            self._idle.popleft().close()

    def forget(self, connection: UpstreamConnection) -> None:
        with suppress(ValueError):
            self._idle.remove(connection)

    async def close(self) -> None:
        """Close the idle connections, and return when they are gone."""
        closing = list(self._idle)
        self._idle.clear()
        for connection in closing:
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in closing))


def reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    text = error.strerror or str(error)
    # uvloop and asyncio put several attempts into one message; the first says enough.
    return text.splitlines()[0].lower() if text else type(error).__name__
