"""The client side of the proxy: a connection, its requests in turn, and their answers.

Rule 1: one request of a connection is served at a time; pipelined ones wait unread.
Rule 2: nothing is buffered without bound: reading stops until the data is taken.
Rule 3: when the client leaves, the task that serves it is canceled, within `TICK_S` if data is unread.
Rule 4: an answer that cannot be finished ends with the connection, never with a faked ending.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.framing import End, Event, Malformed, RequestReader, ResponseWriter
from clairvoyant_cli.http.heads import RequestHead, ResponseHead, reason_of
from clairvoyant_cli.http.limits import (
    DELAYING_BYTES_PER_S,
    DELAYING_TIMEOUT_S,
    HOLDER_TIMEOUT_S,
    IDLE_CLIENT_S,
    MIN_BYTES_PER_S,
    READING,
    ConnectionTable,
    Ends,
    Patience,
    Throttle,
)
from clairvoyant_cli.http.request import READ_AHEAD_BYTES, Request
from clairvoyant_cli.http.sockets import (
    Peer,
    end_with_reset,
    has_unread,
    keep_alive,
    peer_of,
    reset_now,
    unacknowledged,
)

SHORT_PACKET_BYTES = 4096
"""What is read at once however much else is: it takes 30 us, and other clients must not wait for hundreds."""

DROPPED_LIMIT_BYTES = 16 * 1024 * 1024
"""What a client may send behind a request that waits in the queue, before it is taken for an attack."""

LEAVING_S = 0.0002  # about what it takes to clean up after a request whose client has left
REFUSED_LINGER_S = 0.5
TUNNEL_QUIET_S = 5.0
"""A tunnel that carries nothing for so long does not hold up a shutdown: a page may keep it open for days."""

LINGER_S = 2.0
"""How long a client that has its answer may take to end its side, too (nginx: lingering_timeout 5 s)."""


Handler = Callable[[Request], Awaitable[None]]
Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]


class ClientConnection(asyncio.Protocol):
    """One client connection. `handler` serves a request; `spawn` starts the task it runs in."""

    def __init__(self, handler: Handler, spawn: Spawn, table: ConnectionTable, arrived: bytes = b"") -> None:
        """`arrived` is what another process has read of it."""
        self.table = table
        self.peer = ""
        self.ends: Ends = ("", 0), ("", 0)
        self._handler = handler
        self._arrived = arrived
        self._spawn = spawn
        self._reader = RequestReader()
        self._request: Request | None = None
        self._writer: ResponseWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._slicing = False
        self._socket_reads = True
        self._half_closed = False
        self._ending = False
        self._resets = False
        self._dropped_bytes: int | None = None
        self._tunnel: Callable[[bytes], None] | None = None
        self._throttle: Throttle | None = None
        self._writing_paused = False
        self._refusal: Malformed | None = None
        self._patience = Patience()
        self._received = 0
        self._sent = 0
        self._taken = 0
        self.silent_s = 0.0  # in which nothing has come that is read, nor gone through a tunnel

    def __repr__(self) -> str:
        return f"<ClientConnection {self.peer} {self._request or 'idle'}>"

    @property
    def idle(self) -> bool:
        """Whether no request is being served or arriving, and no answer is on its way. A tunnel may owe an
        answer as long as it carries anything.
        """
        if self._tunnel is not None:
            return self.silent_s > TUNNEL_QUIET_S and not self.unsent
        return self._request is None and not (self._reader.held or self.unsent)

    @property
    def owes_request(self) -> bool:
        """Whether its client has asked for nothing yet, or not to the end."""
        request = self._request
        if request is None:
            return self._writer is None or bool(self._reader.held)
        return request.wanted and not request.scheduled

    @property
    def undecided(self) -> bool:
        """Whether a request is arriving of which it is not known yet whether it needs a slot."""
        request = self._request
        return bool(self._reader.held) if request is None else request.queued_as is None

    @property
    def tunnels(self) -> bool:
        """Whether it was switched to another protocol, such as WebSocket."""
        return self._tunnel is not None

    @property
    def gone(self) -> bool:
        return self._transport is None

    @property
    def head_sent(self) -> bool:
        return self._writer is not None and self._writer.begun

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are registered with asyncio's base class alone; they are whole ones.
        self._transport = cast(asyncio.Transport, transport)
        keep_alive(transport)
        self._transport.set_write_buffer_limits(high=READ_AHEAD_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else "local"
        own = transport.get_extra_info("sockname")
        if isinstance(peer, tuple) and isinstance(own, tuple):
            self.ends = peer[:2], own[:2]
        if not self.table.admit(self):
            self._write_refusal(Malformed(503, "too many connections; try again in a moment"))
            # It is not in the table, so nothing else looks after it.
            asyncio.get_running_loop().call_later(REFUSED_LINGER_S, self._let_go)
        elif self._arrived:
            self.data_received(self._arrived)
        else:
            self.table.pass_on(self)

    def data_received(self, data: bytes | bytearray) -> None:
        data = bytes(data)  # asyncio's Proactor hands in a bytearray after a pause; bytes are not copied
        if self._tunnel is not None:
            self.silent_s = 0.0
            self._tunnel(data)
        elif self._dropped_bytes is not None:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > DROPPED_LIMIT_BYTES:
                self.abort()
        elif not self._ending:
            self._received += len(data)
            self.silent_s = 0.0
            self._read(data)

    def eof_received(self) -> bool:
        """The client will send no more. A queued request is abandoned, as in Ollama and llama.cpp; any other
        is answered first, as it may come from a pipe. A tunnel ends on both sides.
        """
        request = self._request
        if request is None or request.scheduled or not request.complete or self._tunnel is not None:
            return False
        self._half_closed = True
        return True

    def waits_in_queue(self) -> None:
        """What the client asked for may take long: from now on, above all, its leaving must be noticed."""
        if self._half_closed:
            self.abort()
        elif len(self._reader.held) > READ_AHEAD_BYTES and not self._slicing:
            self._drop_pipelined()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._resets and self._transport is not None:
            reset_now(self._transport)
        self._transport = None
        self.table.remove(self)
        self._cancel_task()

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._throttle is not None:
            self._throttle.pause()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._throttle is not None:
            self._throttle.resume()

    def fed_by(self, throttle: Throttle | None) -> None:
        """Name what feeds the client from now on; it waits at once if the last answer is still on its way."""
        self._throttle = throttle
        if self._writing_paused and throttle is not None:
            throttle.pause()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, bytes):
                if self._request is not None:
                    self._request.feed(event)
            elif isinstance(event, RequestHead):
                self._writer = ResponseWriter(event)
                self._request = Request(event, self)
                self._task = self._spawn(self._serve(self._request))
            elif isinstance(event, End):
                if self._request is not None:
                    self._request.feed_end(event.trailers)
            elif isinstance(event, Malformed):
                self._refuse(event)
                return
        if self._slicing is not self._reader.pending:
            self._slicing = self._reader.pending
            self._follow_reading()
        if self._slicing:
            asyncio.get_running_loop().call_soon(self._read_on)
        elif self._request is not None and len(self._reader.held) > READ_AHEAD_BYTES:
            if self._request.scheduled:
                self._drop_pipelined()
            else:
                self.pause_reading()

    def _read(self, data: bytes) -> None:
        """Read what has come, or the next slice of it, if it is short or this turn of the loop has time."""
        is_short = 0 < len(data) <= SHORT_PACKET_BYTES
        if not is_short and READING.over and self._reader.postpone(data):
            self._slicing = True
            self._follow_reading()
            asyncio.get_running_loop().call_soon(self._read_on)
        else:
            self._take(self._reader.receive(data))

    def _read_on(self) -> None:
        """Read the next slice of what has been received; `resume_reading` comes back here."""
        if self._slicing and self._reading and self._transport is not None and not self._ending:
            self._read(b"")

    def _drop_pipelined(self) -> None:
        """Accept no more requests of a client that pipelines behind a queued one, which would hide its
        leaving. The connection ends with the present answer, so it knows that the others were not processed
        (RFC 9112, 9.3.2).
        """
        self._reader.stop()
        self._slicing = False
        self._dropped_bytes = 0
        if self._writer is not None:
            self._writer.keep_alive = False
        self.resume_reading()

    def _refuse(self, event: Malformed) -> None:
        if self._ending:
            return
        self.pause_reading()
        if self._task is not None:
            self._refusal = event
            self._cancel_task()
        else:
            self._write_refusal(event)

    def _cancel_task(self) -> None:
        """Cancel the task that serves, after its first step: before that it could not clean up."""
        if self._task is not None:
            asyncio.get_running_loop().call_soon(self._cancel_in_turn, self._task)

    def _cancel_in_turn(self, task: "asyncio.Task[None]") -> None:
        # A thousand that leave at once are a fifth of a second of cleaning up: not in one turn of the loop.
        if READING.over:
            asyncio.get_running_loop().call_soon(self._cancel_in_turn, task)
        elif not task.done():
            READING.charge(LEAVING_S)
            task.cancel()

    def _write_refusal(self, refusal: Malformed) -> None:
        text = f"clairvoyant: {refusal.why}\n".encode()
        self.write(
            b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Type: text/plain\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (refusal.status, reason_of(refusal.status), len(text), text)
        )
        self.close()

    async def _serve(self, request: Request) -> None:
        try:
            await self._handler(request)
        except asyncio.CancelledError:
            # The client left or cannot be read, or the daemon stops at once: the answer is not wanted.
            if self._refusal is not None and not self.head_sent:
                self._write_refusal(self._refusal)
            else:
                self.abort()
            raise
        except Exception:  # the client must not wait for an answer that will never come
            if self.head_sent:
                self.cut()
            else:
                self._write_refusal(Malformed(500, "internal error; its log says more"))
            raise
        finally:
            request.discard()
            self._throttle = None
            self._request = None
            self._task = None
        if self._tunnel is not None:
            self._let_go()  # the backend has ended it
        elif self._transport is not None and not self._ending:
            self._after_answer(request)

    def _after_answer(self, request: Request) -> None:
        writer = self._writer
        if not request.complete or writer is None or not writer.keep_alive or self._half_closed:
            self.close()
            return
        self.silent_s = 0.0
        self._take(self._reader.next_request())
        if len(self._reader.held) <= READ_AHEAD_BYTES:
            self.resume_reading()  # not only for the next request: a client's leaving is read, too
        self.table.pass_on(self)

    def retire(self) -> None:
        """Close as soon as no answer is owed."""
        if self._request is None:
            self.close()
        elif self._writer is not None:
            self._writer.keep_alive = False

    @property
    def request(self) -> Request | None:
        """The request that is being served."""
        return self._request

    def detach(self) -> socket.socket | None:
        """Stop reading, and return a duplicate of the socket for another process; None if the connection is
        about to end, has been detached already, or has sent a part of an answer.
        """
        stays = self.tunnels or self._half_closed or self._ending or not self._reading or self._slicing
        if stays or self.unsent or self._reader.held or self._transport is None:
            return None
        if self._request is not None and self.head_sent:
            return None
        self.pause_reading()
        return cast(socket.socket, self._transport.get_extra_info("socket")).dup()

    def tick(self, elapsed_s: float) -> None:
        self.silent_s += elapsed_s
        due = self._untaken()
        what = "reader" if due else self._waits_for()
        if what is None:  # of thousands that wait for their answers this is all
            self._patience.rests()
        elif not (self._has_patience(what, elapsed_s, due) or (what != "reader" and self._has_unread())):
            self._give_up(what)
            return
        if self._request is not None:
            self._notice_leaving()
        elif (
            what is None
            and self.silent_s > (LINGER_S if self._ending else IDLE_CLIENT_S)
            and (self._ending or not self._has_unread())
        ):
            self._let_go()  # the client has had its time to ask for more, or to end its side

    def _has_patience(self, what: str, elapsed_s: float, due: int) -> bool:
        moved = self._taken if what == "reader" else self._received
        timeout_s, bytes_per_s = self.table.client_timeout_s, MIN_BYTES_PER_S
        request = self._request
        if what == "reader" and request is not None and request.holds_slot:
            timeout_s = min(timeout_s, HOLDER_TIMEOUT_S)
        elif what == "body" and request is not None and request.delays_others:
            timeout_s, bytes_per_s = min(timeout_s, DELAYING_TIMEOUT_S), DELAYING_BYTES_PER_S
        return self._patience.lasts(what, moved, timeout_s, elapsed_s, due or float("inf"), bytes_per_s)

    def _has_unread(self) -> bool:
        """Whether what the client is waited for has come: uvloop runs timers before it reads."""
        return self._transport is not None and has_unread(self._transport)

    def _untaken(self) -> int:
        """Count what was written and has not reached the client: here, and in the kernel."""
        if self._transport is None or self._taken == self._sent:
            return 0
        left = self.unsent + unacknowledged(self._transport)
        self._taken = max(self._taken, self._sent - left)
        return self._sent - self._taken

    def _waits_for(self) -> str | None:
        if self._ending:
            return None
        if self._request is None:
            return "head" if self._reader.held else None
        wanted = not self._request.complete and self._reading and self._request.wanted
        return "body" if wanted and self._tunnel is None else None

    def _give_up(self, what: str) -> None:
        if what == "reader" and self._transport is not None:
            # What it has not read stays in the kernel, and a FIN would queue behind that.
            self._reset_at_end(self._transport)
            self.abort()
        else:
            self._refuse(Malformed(408, f"the request's {what} did not come in time"))

    def _notice_leaving(self) -> None:
        """Notice that a client has left although unread data precedes the end of its side."""
        if self._transport is None or self._request is None:
            return
        if self._socket_reads and not self._half_closed:
            return
        peer = peer_of(self._transport)
        if peer is Peer.GONE or (peer is Peer.HALF_CLOSED and self._request.scheduled):
            self.abort()

    def send_head(self, head: ResponseHead, *extra: Header) -> None:
        if self._writer is None or self._request is None:
            return
        if not self._request.complete and head.status != 101:
            self._writer.keep_alive = False  # the rest of the request's body may never come
        self.write(self._writer.head(head, *extra))

    def send_informational(self, head: ResponseHead) -> None:
        # Behind a head, which may have been sent early, it would be read as a part of the body.
        if self._writer is not None and self._request is not None and not self.head_sent:
            if head.status == 100:
                self._request.expects_continue = False
            self.write(self._writer.informational(head))

    def send_body(self, data: bytes) -> None:
        if self._writer is not None:
            self.write(self._writer.body(data))

    def send_end(self, trailers: list[Header]) -> None:
        if self._writer is not None:
            self.write(self._writer.end(trailers))

    def respond(self, head: ResponseHead, body: bytes, *extra: Header) -> None:
        """Send a whole answer of the proxy's own."""
        length = (b"Content-Length", b"%d" % len(body))
        whole = ResponseHead(head.status, head.reason, [*head.headers, length], length=len(body))
        self.send_head(whole, *extra)
        self.send_body(body)

    def tunnel(self, receive: Callable[[bytes], None]) -> None:
        """From now on, what the client sends goes to `receive` as it is (after 101 Switching Protocols)."""
        if self._half_closed:
            self.abort()
            return
        self._tunnel, self.silent_s = receive, 0.0
        rest = self._reader.rest()
        if rest:
            receive(rest)
        self.resume_reading()

    def write(self, data: bytes) -> None:
        """Put bytes on the wire; nothing happens once the client is gone."""
        if self._transport is not None and data and not self._ending:
            self._sent += len(data)
            if self._tunnel is not None:
                self.silent_s = 0.0
            self._transport.write(data)

    def pause_reading(self) -> None:
        """Leave what the client sends in the socket, and what has been received unread."""
        self._reading = False
        self._follow_reading()

    def resume_reading(self) -> None:
        if self._reading:
            return
        if self._slicing:
            asyncio.get_running_loop().call_soon(self._read_on)
        self._reading = True
        self._follow_reading()

    def _follow_reading(self) -> None:
        """Have the socket read if there is anyone to read for, and nothing left of what was received."""
        reads = self._reading and not self._slicing
        if reads is self._socket_reads or self._transport is None or self._transport.is_closing():
            return
        self._socket_reads = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def cut(self) -> None:
        """End an answer that cannot be finished, so that its client sees that it was not."""
        if self._transport is not None and self._writer is not None and self._writer.cut_needs_reset:
            self._reset_at_end(self._transport)
            self._let_go()
        else:
            self.close()

    def _reset_at_end(self, transport: asyncio.Transport) -> None:
        end_with_reset(transport)
        self._resets = True

    def close(self) -> None:
        """End our side after what is written; close when the client has read that. Closing at once could lose
        the end of an answer while the client still sends (RFC 9112, 9.6).
        """
        transport = self._transport
        if transport is None or self._ending or transport.is_closing():
            return
        self._ending = True
        self.silent_s = 0.0
        try:
            transport.write_eof()
        except OSError:  # asyncio's own loops: the client has reset it, and the news is on its way
            self.abort()
        self.resume_reading()

    def _let_go(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now and drop what has not been sent."""
        if self._transport is not None:
            self._transport.abort()
