"""The client's side of the proxy: one connection, its requests in turn, the answers written back.

Rule 1: one request of a connection is served at a time; pipelined ones wait unread.
Rule 2: nothing is buffered without bound: a body nobody reads stops the reading of the socket.
Rule 3: when the client leaves, the task that serves it is cancelled at once.
Rule 4: an answer that cannot be finished ends with the connection, never with a faked ending.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

import httptools

from clairvoyant_cli.proxy.http1 import Header, RequestHead, ResponseHead, bodiless, chunk, last_chunk

READ_AHEAD_BYTES = 256 * 1024
"""How much of a body may wait unread before the socket is left alone (uvicorn and h11 hold 64 KiB)."""

HEAD_LIMIT_BYTES = 1024 * 1024
"""The longest head taken, as in Go's servers (net/http, DefaultMaxHeaderBytes): the parser knows no limit."""

LINGER_S = 2.0
"""How long a client may go on sending a body after it got its answer (nginx: lingering_timeout 5 s)."""

IGNORED_UPGRADES = frozenset({b"h2c", b"tls/1.0"})
"""Upgrades a server may ignore; Java's HTTP client offers h2c with every first request."""


class BodySink(Protocol):
    """Where a request's body flows while it is still arriving."""

    def body(self, data: bytes) -> None:
        """Take one piece."""
        ...

    def body_end(self, trailers: list[Header]) -> None:
        """Take the end."""
        ...


class Request:
    """A request on its way in: its head is here, its body may still be arriving."""

    def __init__(self, head: RequestHead, connection: "ServerConnection") -> None:
        self.head = head
        self.connection = connection
        self.complete = False
        self.trailers: list[Header] = []
        self.scheduled = False
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._limit = READ_AHEAD_BYTES
        self._arrived: asyncio.Future[None] | None = None
        self._sink: BodySink | None = None
        self._discarded = False
        self._expects = (head.get(b"expect") or b"").lower() == b"100-continue"

    def __repr__(self) -> str:
        state = "complete" if self.complete else f"{self._buffered} bytes waiting"
        return f"<Request {self.head.method.decode()} {self.head.path} ({state})>"

    @property
    def expects_continue(self) -> bool:
        """Whether the client still waits for `100 Continue` before it sends its body."""
        return self._expects and not self.complete and self._buffered == 0

    def schedule(self) -> None:
        """Take note that it waits in the queue: a client that has ended its side, or does so, gives it up."""
        self.scheduled = True
        self.connection.give_up_if_half_closed()

    def welcome_body(self) -> None:
        """Tell a client that asked that it may send its body."""
        if self.expects_continue:
            self._expects = False
            self.connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def read(self, limit_bytes: int) -> bytes | None:
        """Return the whole body; None if it is longer than `limit_bytes` (what has arrived is kept)."""
        self._limit = limit_bytes
        self.welcome_body()
        while not self.complete and self._buffered <= limit_bytes:
            self.connection.resume_reading()
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        self._limit = READ_AHEAD_BYTES
        if not self.complete or self._buffered > limit_bytes:
            return None
        if len(self._pieces) > 1:
            self._pieces = deque([b"".join(self._pieces)])
        return self._pieces[0] if self._pieces else b""

    def flow_to(self, sink: BodySink) -> None:
        """Send what has arrived, and all that will arrive, to `sink`."""
        self._sink = sink
        while self._pieces:
            sink.body(self._pieces.popleft())
        self._buffered = 0
        if self.complete:
            sink.body_end(self.trailers)
        else:
            self.connection.resume_reading()

    def discard(self) -> None:
        """Forget the body, what has come of it and what may come; the sink, if any, gets no more of it."""
        self._discarded = True
        self._sink = None
        self._pieces.clear()
        self._buffered = 0

    # Called by the connection as bytes arrive.

    def feed(self, data: bytes) -> None:
        """Take a piece of the body from the wire."""
        if self._sink is not None:
            self._sink.body(data)
            return
        if self._discarded:
            return
        self._pieces.append(data)
        self._buffered += len(data)
        if self._buffered > self._limit:
            self.connection.pause_reading()
            self._wake()

    def feed_end(self) -> None:
        """Take the end of the body from the wire."""
        self.complete = True
        if self._sink is not None:
            self._sink.body_end(self.trailers)
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)


class Throttle(Protocol):
    """Whatever feeds a connection and can be asked to wait."""

    def pause(self) -> None:
        """Stop feeding."""
        ...

    def resume(self) -> None:
        """Feed again."""
        ...


Handler = Callable[[Request], Awaitable[None]]
Spawn = Callable[[Awaitable[None]], "asyncio.Task[None]"]


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Have the kernel ask whether the other side is still there: a laptop's lid says no goodbye."""
    peer = transport.get_extra_info("socket")
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class ServerConnection(asyncio.Protocol):
    """One client connection. `handler` serves a request; `spawn` starts the task it runs in."""

    def __init__(self, handler: Handler, spawn: Spawn, alive: set["ServerConnection"]) -> None:
        self._handler = handler
        self._spawn = spawn
        self._alive = alive
        self._parser = httptools.HttpRequestParser(self)
        self._requests: deque[Request] = deque()
        self._arriving: Request | None = None
        self._serving: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._half_closed = False
        self._tunnel: Callable[[bytes], None] | None = None
        self._target = b""
        self._headers: list[Header] = []
        self._chunked = False
        self._body_behind_offer = False
        self._feigning_head = False
        self._head_sent = False
        self._keep_alive = True
        self._throttle: Throttle | None = None
        self._writing_paused = False
        self._lingering = False
        self._head_bytes = 0
        self.peer = ""
        self.idle_since = asyncio.get_running_loop().time()

    def __repr__(self) -> str:
        return f"<ServerConnection {self.peer} {self._serving or 'idle'}>"

    @property
    def idle(self) -> bool:
        """Whether no request is being served or arriving."""
        return self._serving is None and self._arriving is None and self._tunnel is None

    @property
    def head_sent(self) -> bool:
        """Whether the answer to the present request has begun."""
        return self._head_sent

    # -- asyncio.Protocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the new client."""
        # uvloop's transports are registered with asyncio's base class alone; they are whole ones.
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)
        self._transport.set_write_buffer_limits(high=READ_AHEAD_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else "local"
        self._alive.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent."""
        if self._tunnel is not None:
            self._tunnel(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(400, b"Bad Request", f"not an HTTP/1.1 request: {error}")
        if self._arriving is None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                self._refuse(431, b"Request Header Fields Too Large", "the request's head is too long")

    def eof_received(self) -> bool:
        """The client will send no more. A scheduled request is given up, as Ollama and llama.cpp do;
        any other is answered first: it may come from a pipe that ended. A tunnel ends on both sides.
        """
        serving = self._serving
        if serving is None or serving.scheduled or not serving.complete or self._tunnel is not None:
            return False
        self._half_closed = True
        return True

    def give_up_if_half_closed(self) -> None:
        """Let a client go that ended its side before it was known what it asked for."""
        if self._half_closed:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: so is the reason to work for it."""
        self._transport = None
        self._alive.discard(self)
        self._requests.clear()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """The client reads slowly: whatever feeds it must wait."""
        self._writing_paused = True
        if self._throttle is not None:
            self._throttle.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writing_paused = False
        if self._throttle is not None:
            self._throttle.resume()

    def fed_by(self, throttle: Throttle | None) -> None:
        """Name what feeds the client from now on; it waits at once if the last answer is still on its way."""
        self._throttle = throttle
        if self._writing_paused and throttle is not None:
            throttle.pause()

    # -- the parser's callbacks ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A new request begins."""
        if self._feigning_head:
            return
        self._head_bytes = 0
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer once the body has begun."""
        if self._feigning_head:
            return
        if self._arriving is not None:
            self._arriving.trailers.append((name, value))
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: the request may be served while its body arrives."""
        if self._feigning_head:
            self._feigning_head = False
            return
        if self._lingering:
            self.close()  # the last answer said that the connection ends with it
            return
        parser = self._parser
        upgrade = b""
        if parser.should_upgrade():
            offered = next((v for k, v in self._headers if k.lower() == b"upgrade"), b"").strip()
            upgrade = b"" if offered.lower() in IGNORED_UPGRADES else offered
        head = RequestHead(
            parser.get_method(),
            self._target,
            self._headers,
            http10=parser.get_http_version() == "1.0",
            keep_alive=parser.should_keep_alive(),
            upgrade=upgrade,
        )
        self._body_behind_offer = head.has_body and parser.should_upgrade() and not upgrade
        request = Request(head, self)
        self._arriving = request
        self._requests.append(request)
        if self._serving is None:
            self._serve_next()
        else:
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._arriving is not None:
            self._arriving.feed(body)

    def on_message_complete(self) -> None:
        """The request has arrived whole."""
        self._head_bytes = 0
        if self._body_behind_offer:
            return  # httptools takes any offer of an upgrade for the end of the request
        arrived, self._arriving = self._arriving, None
        if arrived is not None:
            arrived.feed_end()

    # -- serving ------------------------------------------------------------------------------------

    def _serve_next(self) -> None:
        request = self._serving = self._requests.popleft()
        self._head_sent = False
        self._chunked = False
        self._keep_alive = request.head.keep_alive
        self._task = self._spawn(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            await self._handler(request)
        except asyncio.CancelledError:
            # The client left, or the daemon stops at once; either way nobody waits for the answer.
            self.abort()
            raise
        except Exception:
            self._apologise()
            raise
        finally:
            request.discard()
            self._throttle = None
            self._serving = None
            self._task = None
        if self._transport is not None and self._tunnel is None:
            self._after_answer(request)

    def _apologise(self) -> None:
        # A fault of our own: the client must not wait for an answer that will never come.
        if self._head_sent:
            self.abort()
            return
        self._keep_alive = False
        head = ResponseHead(500, b"Internal Server Error", [(b"Content-Type", b"text/plain")])
        self.respond(head, b"clairvoyant: internal error; its log says more\n")
        self.close()

    def _after_answer(self, request: Request) -> None:
        if not request.complete:
            self._linger()
            return
        if not self._keep_alive or self._half_closed:
            self.close()
            return
        self.idle_since = asyncio.get_running_loop().time()
        if self._requests:
            self._serve_next()
        if not self._requests:
            self.resume_reading()  # not only for the next request: a client's leaving is read, too

    def _linger(self) -> None:
        # The answer came before the body had been read. Closing now would reset the connection and may
        # take the answer with it (RFC 9112, section 9.6): end our side, read on for a moment, then close.
        assert self._transport is not None  # noqa: S101 - the caller looked
        self._lingering = True
        self._transport.write_eof()
        self.resume_reading()
        asyncio.get_running_loop().call_later(LINGER_S, self.close)

    def retire(self) -> None:
        """Close as soon as no answer is owed."""
        if self.idle:
            self.close()
        else:
            self._keep_alive = False

    def _refuse(self, status: int, reason: bytes, why: str) -> None:
        if self._serving is None and not self._lingering:
            text = f"clairvoyant: {why}\n".encode()
            self.write(
                b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Type: text/plain\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (status, reason, len(text), text)
            )
            self.close()
        else:
            self.abort()

    def _after_upgrade(self, rest: bytes) -> None:
        serving = self._serving
        if serving is not None and serving.head.upgrade:
            self._upgrade_rest = rest
            self.pause_reading()
            return
        self._parser = httptools.HttpRequestParser(self)
        if self._body_behind_offer and self._arriving is not None:
            self._body_behind_offer = False
            self._feigning_head = True
            self._parser.feed_data(self._arriving.head.framing())
        if rest:
            self.data_received(rest)

    _upgrade_rest = b""

    # -- answering ----------------------------------------------------------------------------------

    def send_head(self, head: ResponseHead, method: bytes, *extra: Header) -> None:
        """Begin the answer. The body's framing follows the head's, as far as the client can read it."""
        request = self._serving.head if self._serving is not None else None
        http10 = request is not None and request.http10
        if request is not None and request.upgrade and head.status != 101:
            self._keep_alive = False  # the parser stopped at the offer; what follows it is lost
        added = list(extra)
        self._chunked = False
        if not bodiless(method, head.status) and head.content_length is None:
            if http10:
                self._keep_alive = False
            else:
                self._chunked = True
                added.append((b"Transfer-Encoding", b"chunked"))
        if self._serving is not None and not self._serving.complete and head.status != 101:
            self._keep_alive = False  # the rest of the request's body may never come
        if not self._keep_alive:
            added.append((b"Connection", b"close"))
        elif http10:
            added.append((b"Connection", b"keep-alive"))
        self._head_sent = True
        self.write(head.encode(*added))

    def send_informational(self, head: ResponseHead) -> None:
        """Pass on a 1xx answer."""
        if self._serving is not None and not self._serving.head.http10:
            self._serving._expects = self._serving._expects and head.status != 100  # noqa: SLF001
            self.write(head.encode())

    def send_body(self, data: bytes) -> None:
        """Send a piece of the answer's body."""
        self.write(chunk(data) if self._chunked else data)

    def send_end(self, trailers: list[Header]) -> None:
        """End the answer's body as its framing demands."""
        if self._chunked:
            self.write(last_chunk(trailers))

    def respond(self, head: ResponseHead, body: bytes, *extra: Header) -> None:
        """Send a whole answer of our own."""
        method = self._serving.head.method if self._serving is not None else b"GET"
        length = (b"Content-Length", b"%d" % len(body))
        self.send_head(ResponseHead(head.status, head.reason, [*head.headers, length]), method, *extra)
        if not bodiless(method, head.status):
            self.write(body)

    def tunnel(self, receive: Callable[[bytes], None]) -> None:
        """From now on, what the client sends goes to `receive` as it is (after 101 Switching Protocols)."""
        self._tunnel = receive
        rest, self._upgrade_rest = self._upgrade_rest, b""
        if rest:
            receive(rest)
        self.resume_reading()

    def write(self, data: bytes) -> None:
        """Put bytes on the wire; nothing happens once the client is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Leave what the client sends in the socket."""
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read the socket again."""
        if not self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def pause(self) -> None:
        """Stop feeding the request's body onward (the upstream reads slowly)."""
        self.pause_reading()

    def resume(self) -> None:
        """Feed the request's body again."""
        self.resume_reading()

    def close(self) -> None:
        """Close after what is written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now and drop what has not been sent."""
        if self._transport is not None:
            self._transport.abort()
