"""HTTP/1.1 framing in both directions: what a message is on the wire, and where it ends. No I/O.

Rule 1: a request that two parsers could read differently is refused, never repaired (RFC 9112, 11.2): bare CR
or LF, blanks around names, folded lines, two lengths, any coding but chunked. A response's head that usual
clients read is read as they do, passed on repaired, and ends its connection.
Rule 2: a body keeps its framing, Content-Length or chunked, unless the receiver cannot read it.
Rule 3: everything buffered has a limit: a head, a chunk's line, the trailers.
Rule 4: an answer that was cut looks cut to every client, whatever its version (RFC 9112, 6.3 and 8).
"""

import re
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import ClassVar, NamedTuple

from clairvoyant_cli.http.fields import (
    BARE_CR,
    BARE_LINE_END,
    NO_TRAILERS,
    NOT_CRLF,
    TCHAR,
    VALUE,
    Fields,
    FramingError,
    Header,
)
from clairvoyant_cli.http.heads import (
    RequestHead,
    ResponseHead,
    bodiless,
    read_request_head,
    read_response_head,
)

HEAD_LIMIT_BYTES = 256 * 1024
"""The longest head taken, on both sides. Node takes 16 KiB, nginx 32, h11 and uvicorn 64, Go 1024."""

TRAILER_LIMIT_BYTES = 64 * 1024
CHUNK_LINE_LIMIT_BYTES = 4096  # the longest line before a chunk, extensions included (Go's net/http: 4096)
CHUNK_SLACK_BYTES = 16 * 1024
"""Framing beyond 16 bytes per chunk and two per byte of data that one body may have, as in Go's net/http
(CVE-2023-39326: tiny chunks with long extensions)."""

CHUNKS_AT_ONCE = 256
"""Chunks read in one go: a quarter of a megabyte of one-byte chunks would stop everybody for 30 ms."""

MAX_INFORMATIONAL = 16  # 1xx answers before the final one; more are a flood (Go's net/http: 5)

_CHUNK_LINE = rb"([0-9A-Fa-f]{1,16})%b(?:;" + VALUE + rb")?\r\n"


class End(NamedTuple):
    trailers: list[Header]


class Malformed(NamedTuple):
    """The message cannot be read on: what a server answers to that, and why, in words."""

    status: int
    why: str


Event = RequestHead | ResponseHead | bytes | End | Malformed
"""What a reader finds, in order: a head, pieces of its body, the end; `Malformed` is the last of all."""


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNK_LINE = auto()
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    UNTIL_CLOSE = auto()
    TUNNEL = auto()
    DONE = auto()
    BROKEN = auto()


_SECTIONS = {
    _State.HEAD: (b"\r\n\r\n", HEAD_LIMIT_BYTES, 431, "the head"),
    _State.CHUNK_LINE: (b"\r\n", CHUNK_LINE_LIMIT_BYTES, 400, "a chunk's line"),
    _State.CHUNK_END: (b"", 2, 400, "the end of a chunk"),
    _State.TRAILERS: (b"\r\n\r\n", TRAILER_LIMIT_BYTES, 431, "the trailer section"),
}
"""What is held until it is whole: its end, the most bytes, and the status and name of one that is longer."""


class Reader:
    """Reads the messages of one side of a connection, one after another. `held` are bytes that cannot be read
    yet: an incomplete line or head, or what follows a message that is not finished.

    A packet of very many tiny chunks is read in parts: while `pending`, `receive(b"")` returns more.
    """

    _start: ClassVar[re.Pattern[bytes]]  # what the first bytes of a head must look like
    _head_ends: ClassVar[tuple[bytes, ...]] = (b"\r\n\r\n",)
    _chunk_line: ClassVar[re.Pattern[bytes]]

    _state = _State.HEAD

    def __init__(self) -> None:
        self.pending = False
        self.held = bytearray()
        self._left = 0
        self._slack = 0

    def receive(self, data: bytes) -> list[Event]:
        """Read what has come; the events it makes whole."""
        if self._state is _State.LENGTH and len(data) < self._left and not self.pending:
            self._left -= len(data)
            return [data] if data else []
        events: list[Event] = []
        pos = 0
        try:
            if self.held:
                data = self._with_held(data)
            while pos < len(data) and self._state is not _State.BROKEN:
                step = self._STEPS.get(self._state)
                if step is None or self.pending:
                    self.held += data[pos:]
                    break
                pos = step(self, data, pos, events)
        except FramingError as error:
            self._state = _State.BROKEN
            self.held.clear()
            events.append(Malformed(error.status, str(error)))
        return events

    def postpone(self, data: bytes) -> bool:
        """Hold data for `receive(b"")`; False if another message must end first."""
        if self._state in (_State.DONE, _State.BROKEN):
            return False
        self.held += data
        self.pending = True
        return True

    def _with_held(self, data: bytes) -> bytes:
        if self._state is _State.DONE:
            return data
        before = len(self.held)
        self.held += data
        if not self.pending:
            start = max(0, before - 3)
            ends = self._head_ends if self._state is _State.HEAD else _SECTIONS[self._state][:1]
            if all(self.held.find(end, start) < 0 for end in ends):
                self._check_held(start)
                return b""
        self.pending = False
        return self.rest()

    def rest(self) -> bytes:
        """Return what is held, and let go of it: after a 101 it is no HTTP."""
        held = bytes(self.held)
        self.held.clear()
        return held

    def _hold(self, data: bytes, pos: int) -> int:
        self.held += data[pos:]
        self._check_held(0)
        return len(data)

    def _check_held(self, start: int) -> None:
        """Refuse at once what can never become whole: too long, or no HTTP from its first bytes on."""
        _, limit, status, what = _SECTIONS[self._state]
        if len(self.held) > limit:
            raise FramingError(status, f"{what} is longer than {limit} bytes")
        if self._state is _State.HEAD and self._start.match(self.held) is None:
            raise FramingError(400, "this is no HTTP/1.1")
        lenient = self._state is _State.HEAD and len(self._head_ends) > 1
        if (BARE_CR if lenient else BARE_LINE_END).search(self.held, start) is not None:
            raise FramingError(400, NOT_CRLF)

    # Each step reads from `pos` on and returns where it stopped.

    def _read_head(self, data: bytes, pos: int, events: list[Event]) -> int:
        begin, end = -1, len(data)
        for mark in self._head_ends:
            if (found := data.find(mark, pos, end)) >= 0:
                begin, end = found, found + len(mark)
        if begin < 0 or begin - pos > HEAD_LIMIT_BYTES:
            return self._hold(data, pos)
        head, self._state, self._left = self._head_in(data[pos : data.index(b"\n", begin) + 1])
        self._slack = CHUNK_SLACK_BYTES
        events.append(head)
        if self._state is _State.DONE:
            events.append(End([]))
        return end

    def _head_in(self, block: bytes) -> "tuple[RequestHead | ResponseHead, _State, int]":
        """Return a head, what follows it, and the length of the body where that is known."""
        raise NotImplementedError

    def _read_piece(self, data: bytes, pos: int, events: list[Event]) -> int:
        piece = data if pos == 0 and len(data) <= self._left else data[pos : pos + self._left]
        events.append(piece)
        self._left -= len(piece)
        if not self._left and self._state is _State.CHUNK:
            self._state = _State.CHUNK_END
        elif not self._left:
            self._state = _State.DONE
            events.append(End([]))
        return pos + len(piece)

    def _read_all(self, data: bytes, pos: int, events: list[Event]) -> int:
        events.append(data[pos:] if pos else data)
        return len(data)

    def _read_chunks(self, data: bytes, pos: int, events: list[Event]) -> int:
        """Read the chunks that are here whole, and the line of one that is not."""
        pieces: list[bytes] = []
        slack = self._slack
        while pos < len(data) and (line := self._chunk_line.match(data, pos)) is not None:
            end = line.end()
            size = int(line[1], 16)
            slack = min(CHUNK_SLACK_BYTES, slack + 16 + 2 * size - (end - pos))
            if slack < 0 or end - pos > CHUNK_LINE_LIMIT_BYTES:
                break
            if not size:
                self._state = _State.TRAILERS
                pos = end - 2  # the empty line after the trailers is found alike where there are none
                break
            stop = end + size
            if not data.startswith(b"\r\n", stop):
                self._state = _State.CHUNK
                self._left = size
                pos = end
                break
            pieces.append(data[end:stop])
            pos = stop + 2
            if len(pieces) == CHUNKS_AT_ONCE:
                self.pending = pos < len(data)
                break
        self._slack = slack
        # Chunks that came together leave together: one write for them all, not one for each token.
        if pieces:
            events.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if self._state is _State.CHUNK_LINE and not self.pending and pos < len(data):
            return self._hold_chunk_line(data, pos)
        return pos

    def _hold_chunk_line(self, data: bytes, pos: int) -> int:
        if self._chunk_line.match(data, pos) is not None:
            raise FramingError(400, "a chunk holds more framing than body")
        if data.find(b"\n", pos, pos + CHUNK_LINE_LIMIT_BYTES) >= 0:
            raise FramingError(400, "a chunk does not begin with its size")
        return self._hold(data, pos)

    def _read_chunk_end(self, data: bytes, pos: int, events: list[Event]) -> int:
        if data.startswith(b"\r\n", pos):
            self._state = _State.CHUNK_LINE
            return pos + 2
        if data[pos:] == b"\r":
            return self._hold(data, pos)
        raise FramingError(400, "a chunk is longer than its size")

    def _read_trailers(self, data: bytes, pos: int, events: list[Event]) -> int:
        end = data.find(b"\r\n\r\n", pos)
        if end < 0 or end - pos > TRAILER_LIMIT_BYTES:
            return self._hold(data, pos)
        self._state, passing = _State.DONE, list[Header]()
        if end > pos:
            fields = Fields.parse(data[pos + 2 : end + 2])
            named = zip(fields.keys, fields.items, strict=True)
            passing = [item for key, item in named if key not in NO_TRAILERS]
        events.append(End(passing))
        return end + 4

    _STEPS: ClassVar[dict[_State, Callable[["Reader", bytes, int, list[Event]], int]]] = {
        _State.HEAD: _read_head,
        _State.LENGTH: _read_piece,
        _State.CHUNK_LINE: _read_chunks,
        _State.CHUNK: _read_piece,
        _State.CHUNK_END: _read_chunk_end,
        _State.TRAILERS: _read_trailers,
        _State.UNTIL_CLOSE: _read_all,
        _State.TUNNEL: _read_all,
    }


class RequestReader(Reader):
    """Reads a client's requests. One at a time: what is pipelined is held until `next_request`."""

    _chunk_line = re.compile(_CHUNK_LINE % b"")
    _start = re.compile(rb"(?:\r\n)?+" + TCHAR + rb"*+(?: |\Z)|\r\Z")

    def next_request(self) -> list[Event]:
        """The last request has been answered: read the one after it, as far as it is here."""
        self._state = _State.HEAD
        return self.receive(self.rest()) if self.held else []

    def stop(self) -> None:
        self._state = _State.BROKEN
        self.held.clear()
        self.pending = False

    def _head_in(self, block: bytes) -> tuple[RequestHead, _State, int]:
        # RFC 9112, 2.2: an empty line before a request is passed over; some clients end a body with one.
        head = read_request_head(block.removeprefix(b"\r\n"))
        if head.length is None:
            return head, _State.CHUNK_LINE, 0
        return head, _State.LENGTH if head.length else _State.DONE, head.length


class ResponseReader(Reader):
    """Reads a server's answers, each to the request that was announced by `expect`."""

    _chunk_line = re.compile(_CHUNK_LINE % rb"[ \t]*")  # clients skip blanks after the size
    _start = re.compile(rb"H(?:T(?:T(?:P(?:/.*)?)?)?)?\Z", re.DOTALL | re.IGNORECASE)
    _head_ends = (b"\n\r\n", b"\n\n")

    def __init__(self) -> None:
        super().__init__()
        self._state = _State.DONE
        self.head: ResponseHead | None = None
        self._method = b"GET"
        self._offered: list[bytes] = []
        self._informational = 0

    def expect(self, request: RequestHead) -> None:
        self._state = _State.HEAD
        self.head = None
        self._method = request.method
        self._offered = request.upgrade.lower().split(b", ")
        self._informational = 0

    @property
    def reusable(self) -> bool:
        """Whether the connection can take another request: the answer was whole, and nothing follows it."""
        whole = self._state is _State.DONE and not self.held
        return whole and self.head is not None and self.head.keep_alive

    @property
    def begun(self) -> bool:
        return bool(self.head is not None or self.held or self._informational)

    def close(self) -> list[Event]:
        """The server will send no more: what that makes of the answer."""
        state, self._state = self._state, _State.BROKEN
        if state in (_State.UNTIL_CLOSE, _State.TUNNEL):
            return [End([])]
        if state in (_State.DONE, _State.BROKEN):
            return []
        return [Malformed(502, "it closed the connection before its answer was complete")]

    def _head_in(self, block: bytes) -> tuple[ResponseHead, _State, int]:
        head = read_response_head(block)
        if head.status < 200 and head.status != 101:
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise FramingError(502, f"it sent more than {MAX_INFORMATIONAL} informational answers")
            return head, _State.HEAD, 0
        self.head = head
        if head.status == 101:
            if not set(head.upgraded_to()) & (set(self._offered) - {b""}):
                raise FramingError(502, "it switches to a protocol that nobody offered")
            return head, _State.TUNNEL, 0
        head.keep_alive = head.keep_alive and (head.chunked or head.length is not None)
        if head.length == 0 or bodiless(self._method, head.status):
            return head, _State.DONE, 0
        if head.chunked:
            return head, _State.CHUNK_LINE, 0
        return head, _State.UNTIL_CLOSE if head.length is None else _State.LENGTH, head.length or 0


class ResponseWriter:
    """Frames the answer to one request so that its client can read it, and see where it was cut.

    `cut_needs_reset`: the end of the connection would pass for the end of the answer (RFC 9112, 8).
    """

    def __init__(self, request: RequestHead) -> None:
        self.keep_alive = request.keep_alive
        self.begun = False
        self.cut_needs_reset = False
        self._request = request
        self._bodiless = True
        self._chunked = False

    def informational(self, head: ResponseHead) -> bytes:
        """Return a 1xx answer; b"" for a client of HTTP/1.0, which knows none (RFC 9110, 15.2)."""
        return b"" if self._request.http10 else head.encode()

    def head(self, head: ResponseHead, *extra: Header) -> bytes:
        """Return the beginning of the answer; its framing is the server's where the client can read that."""
        self.begun = True
        if head.status == 101:
            self.cut_needs_reset, self._bodiless = True, False
            switched = (b"Upgrade", b", ".join(head.upgraded_to()))
            return head.encode((b"Connection", b"Upgrade"), switched, *extra)
        added = list(extra)
        self._bodiless = bodiless(self._request.method, head.status)
        if not self._bodiless and head.length is None and self._request.http10:
            self.cut_needs_reset = True
            self.keep_alive = False
        elif not self._bodiless and head.length is None:
            self._chunked = True
            added.append((b"Transfer-Encoding", b"chunked"))
        if not self.keep_alive:
            added.append((b"Connection", b"close"))
        elif self._request.http10:
            added.append((b"Connection", b"keep-alive"))
        return head.encode(*added)

    def body(self, data: bytes) -> bytes:
        if self._chunked:
            return chunk(data)
        return b"" if self._bodiless else data

    def end(self, trailers: Iterable[Header]) -> bytes:
        return last_chunk(trailers) if self._chunked else b""


def chunk(data: bytes | memoryview) -> bytes:
    """Return `data` as one chunk of a chunked body; b"" for none, which would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""  # type: ignore[str-format]


def last_chunk(trailers: Iterable[Header]) -> bytes:
    return b"\r\n".join((b"0", *map(b": ".join, trailers), b"", b""))
