"""The backend's side of the proxy: connections to one LLM server, an answer at a time on each.

Rule 1: bytes go to their sink from the callback that received them; no task wakes for a token.
Rule 2: an idle connection is used again only while it is young: local servers drop idle ones after a few
seconds, and a POST that met a closing connection could not be repeated safely (RFC 9110, 9.2.2). While one
rests, a spare is opened in its place, so that a request that comes at once need not wait for a handshake.
Rule 3: there is a limit on connecting, none on answering: a long answer is what we are here for.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.http1 import LAST_CHUNK, Header, ResponseHead, bodiless, chunk, last_chunk
from clairvoyant_cli.proxy.listener import Throttle, keep_alive

MAX_IDLE_S = 2.0
"""Idle connections older than this are closed: cpp-httplib keeps them 5 s, Go and Node at least as long."""

MIN_IDLE_S = 0.05
"""Younger ones rest first: llama.cpp closes the connection of a streamed answer a millisecond after its end,
without having said so, and a request that goes out in that millisecond is lost."""

MAX_IDLE = 32
"""How many idle connections are kept."""


Spawn = Callable[[Awaitable[None]], "asyncio.Task[None]"]


class UpstreamError(Exception):
    """The backend could not be reached, or its answer broke off."""


class UnreachableError(UpstreamError):
    """No connection could be made: the request was not seen by the backend."""


class ResponseSink(Protocol):
    """Who receives an answer. `end` or `failed` is called exactly once, last."""

    def informational(self, head: ResponseHead) -> None:
        """Take a 1xx answer."""
        ...

    def head(self, head: ResponseHead) -> None:
        """Take the final answer's head."""
        ...

    def data(self, data: bytes) -> None:
        """Take a piece of the body."""
        ...

    def end(self, trailers: list[Header]) -> None:
        """Take the end: the answer is whole."""
        ...

    def failed(self, error: UpstreamError) -> None:
        """Take note that the answer will never be whole."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to the backend."""

    def __init__(self, pool: "Upstream") -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sink: ResponseSink | None = None
        self._method = b"GET"
        self._chunked_request = False
        self._request_complete = True
        self._reset()
        self._out: list[bytes] = []
        self._reading = True
        self._hanging_up = False
        self.throttle: Throttle | None = None
        self.idle_since = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _reset(self) -> None:
        self._reason = b""
        self._headers: list[Header] = []
        self._trailers: list[Header] = []
        self._head_done = False
        self._until_eof = False
        self._informational = False
        self._complete = False
        self._reusable = True
        self._raw = False

    # -- asyncio.Protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the new connection."""
        # uvloop's transports are registered with asyncio's base class alone; they are whole ones.
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        """Parse what the backend sent and hand it on in one piece."""
        sink = self._sink
        if sink is None:
            # Nobody asked: the rest of an answer that was given up, or a server that closes with a 408.
            if not self._hanging_up:
                self.close()
            return
        if self._raw:
            sink.data(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._raw = True
            rest = data[upgrade.args[0] :]
            if rest:
                sink.data(rest)
            return
        except httptools.HttpParserError as error:
            self._flush(sink)
            if not self._complete:
                self._fail(UpstreamError(f"it sent a malformed answer ({error})"))
                self.close()
                return
            self._reusable = False
        self._flush(sink)
        if self._complete:
            self._finish(sink)

    def eof_received(self) -> bool:
        """The backend will send no more; close our side too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; a body that only ends with it is whole now."""
        self._transport = None
        self._pool.forget(self)
        if not self.closed.done():
            self.closed.set_result(None)
        if self._sink is None:
            return
        if self._until_eof and self._head_done and exc is None:
            self._reusable = False
            self._finish(self._sink)
        else:
            self._fail(UpstreamError("it closed the connection before its answer was complete"))

    def pause_writing(self) -> None:
        """The backend reads slowly: the client must wait."""
        if self.throttle is not None:
            self.throttle.pause()

    def resume_writing(self) -> None:
        """The backend has caught up."""
        if self.throttle is not None:
            self.throttle.resume()

    # -- the parser's callbacks ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new head begins."""
        if self._complete:
            self._reusable = False  # an answer to no question
        else:
            self._reason = b""
            self._headers = []

    def on_status(self, status: bytes) -> None:
        """A piece of the reason phrase."""
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after the body."""
        (self._trailers if self._head_done else self._headers).append((name, value))

    def on_headers_complete(self) -> None:
        """A head is complete."""
        if self._complete or self._sink is None:
            return
        status = self._parser.get_status_code()
        head = ResponseHead(status, self._reason, self._headers)
        self._informational = 100 <= status < 200 and status != 101
        if self._informational:
            self._sink.informational(head)
            return
        self._head_done = True
        ends = bodiless(self._method, status)
        self._until_eof = not ends and head.content_length is None and not head.chunked
        self._reusable = self._parser.should_keep_alive() and not self._until_eof
        self._sink.head(head)
        if ends and status != 101:
            # llhttp does not know that the question was HEAD: it would wait for a body.
            self._complete = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._complete:
            self._out.append(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if not self._informational and self._parser.get_status_code() != 101:
            self._complete = True

    # -- one answer ---------------------------------------------------------------------------------

    def begin(self, head: bytes, method: bytes, sink: ResponseSink, *, body: bool, chunked: bool) -> None:
        """Send a request's head and give its answer to `sink`; `body` says whether a body follows."""
        self._reset()
        self._parser = httptools.HttpResponseParser(self)
        self._method = method
        self._sink = sink
        self._chunked_request = chunked
        self._request_complete = not body
        if self._transport is None:
            self._fail(UpstreamError("it closed the connection before it was asked"))
            return
        self.write(head)

    def body(self, data: bytes) -> None:
        """Send a piece of the request's body."""
        self.write(chunk(data) if self._chunked_request else data)

    def body_end(self, trailers: list[Header]) -> None:
        """Send the end of the request's body."""
        self._request_complete = True
        if self._chunked_request:
            self.write(last_chunk(trailers) if trailers else LAST_CHUNK)

    def write(self, data: bytes) -> None:
        """Put bytes on the wire."""
        if self._transport is not None and data:
            self._transport.write(data)

    def pause(self) -> None:
        """Leave what the backend sends in the socket: the client reads slowly."""
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read the socket again."""
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection now; whoever waited for its answer does not any more."""
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
        """Give the answer up and wait until the backend has noticed; False if it took too long.

        Our half of the connection is closed first. A server whose handler ends when its client leaves
        closes its own half then, which is the one signal every backend gives that the work has stopped.
        """
        self.let_go()
        transport = self._transport
        if transport is None:
            return True
        if transport.can_write_eof():
            with suppress(OSError, RuntimeError):
                transport.write_eof()
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await asyncio.shield(self.closed)
        noticed = self._transport is None
        transport.abort()
        return noticed

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    @property
    def open(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    def _flush(self, sink: ResponseSink) -> None:
        out = self._out
        if out:
            sink.data(out[0] if len(out) == 1 else b"".join(out))
            self._out = []

    def _finish(self, sink: ResponseSink) -> None:
        self._sink = None
        self.throttle = None
        self.resume()
        if self._reusable and self._request_complete:
            self._pool.keep(self)
        else:
            self.close()
        sink.end(self._trailers)

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
        self.port = port or (443 if parts.scheme == "https" else 80)
        self.host_header = parts.netloc.rpartition("@")[2].encode()
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[UpstreamConnection] = deque()
        self._spare: UpstreamConnection | None = None
        self._spare_ends: asyncio.TimerHandle | None = None
        self._opening_spare = False
        self._spawn: Spawn | None = None

    def __repr__(self) -> str:
        spare = "" if self._spare is None else ", a spare"
        return f"<Upstream {self.url}: {len(self._idle)} idle{spare}>"

    def keep_spare(self, spawn: Spawn) -> None:
        """From now on have a spare connection opened whenever another one begins to rest."""
        self._spawn = spawn

    async def connect(self) -> UpstreamConnection:
        """Return a connection that is free; `UnreachableError` if none can be made."""
        now = asyncio.get_running_loop().time()
        while self._idle and now - self._idle[0].idle_since >= MIN_IDLE_S:
            connection = self._idle.popleft()
            if connection.open and now - connection.idle_since <= MAX_IDLE_S:
                return connection
            connection.close()
        spare = self._take_spare()
        return spare if spare is not None and spare.open else await self._open()

    async def _open(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(self),
                    self.host,
                    self.port,
                    ssl=self._ssl,
                    server_hostname=self.host if self._ssl else None,
                )
        except TimeoutError:
            raise UnreachableError(f"no connection within {self._connect_timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise UnreachableError(f"TLS failed: {error.reason or error}") from None
        except OSError as error:
            raise UnreachableError(reason(error)) from None
        return connection

    def keep(self, connection: UpstreamConnection) -> None:
        """Take back a connection whose answer is complete."""
        if not connection.open:
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE:
            self._idle.popleft().close()
        # Only a server that keeps connections gets a spare: one that serves a single connection at a time
        # would wait for a request on the spare and hear nobody else.
        if self._spawn is not None and self._spare is None and not self._opening_spare:
            self._opening_spare = True
            self._spawn(self._open_spare())

    def forget(self, connection: UpstreamConnection) -> None:
        """Drop a connection that is closed."""
        if connection is self._spare:
            self._take_spare()
        with suppress(ValueError):
            self._idle.remove(connection)

    async def close(self) -> None:
        """Close the idle connections and the spare, and return when they are gone."""
        self._spawn = None
        spare = self._take_spare()
        closing = [*self._idle, *([spare] if spare is not None else [])]
        self._idle.clear()
        for connection in closing:
            connection.abort()
        await asyncio.gather(*(connection.closed for connection in closing))

    async def _open_spare(self) -> None:
        try:
            spare = await self._open()
        except UnreachableError:
            return  # whoever asks next hears why
        finally:
            self._opening_spare = False
        self._spare = spare
        self._spare_ends = asyncio.get_running_loop().call_later(MAX_IDLE_S, spare.close)

    def _take_spare(self) -> UpstreamConnection | None:
        if self._spare_ends is not None:
            self._spare_ends.cancel()
        spare, self._spare, self._spare_ends = self._spare, None, None
        return spare


def reason(error: OSError) -> str:
    """Say in words why a connection could not be made."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    text = error.strerror or str(error)
    # uvloop and asyncio put several attempts into one message; the first says enough.
    return text.splitlines()[0].lower() if text else type(error).__name__
