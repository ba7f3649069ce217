"""Messages as clients and servers send them, right and wrong, and h11's reading of them beside ours.

h11 is somebody else's parser, as strict as most and laxer than ours here and there. What must hold:
1. how a message is cut into packets changes nothing;
2. what we take, h11 takes, and reads alike;
3. what h11 takes and we refuse, we refuse for one of the reasons in `STRICTER`;
4. what we write for the next hop, h11 reads as one message with the same body.
"""

import re
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import h11

from clairvoyant_cli.http.fields import NO_TRAILERS, Header
from clairvoyant_cli.http.framing import (
    End,
    Event,
    Malformed,
    RequestReader,
    ResponseReader,
    ResponseWriter,
    chunk,
    last_chunk,
)
from clairvoyant_cli.http.heads import RequestHead, ResponseHead, read_request_head

T = TypeVar("T")

STRICTER = (
    "a line of the head does not end with CRLF",
    "a line of the head is no field",
    "a chunk does not begin with its size",
    "a chunk holds more framing than body",
    "a chunk's line is longer than",
    "the Host field is missing",
    "only HTTP/1.0 and HTTP/1.1 are spoken here",
    "it does not speak HTTP/1.1",
    "the target holds a fragment",
    "the target is neither a path nor an http URL",
    "CONNECT takes host:port",
    "Content-Length and Transfer-Encoding exclude each other",
    "HTTP/1.0 knows no Transfer-Encoding",
    "the only transfer coding is chunked",
    "more than one Content-Length field",
    "Content-Length is no number of bytes",
    "Connection must not name",
    "the only expectation met here is 100-continue",
    "it sent more than",
    "it switches to a protocol that nobody offered",
    "the first line is no HTTP/1.1 status line",
    "this is no HTTP/1.1",
)

LAXER = ("multiple Transfer-Encoding headers", "Only Transfer-Encoding: chunked is supported")
"""What h11 says of a response that is `chunked` twice, which browsers, curl and Node read as once."""


@dataclass(slots=True)
class Read:
    """One message as a parser read it."""

    line: tuple[bytes, ...]
    headers: list[Header]
    body: bytes = b""
    trailers: list[Header] = field(default_factory=list)
    whole: bool = False


@dataclass(slots=True)
class Reading:
    """What a parser made of a connection's bytes: messages in order, and why it stopped, if it refused."""

    messages: list[Read] = field(default_factory=list)
    heads: list[RequestHead | ResponseHead] = field(default_factory=list)
    refused: str | None = None

    def same_as(self, other: "Reading") -> bool:
        """Whether both took the same; the words of a refusal may depend on what was there to see."""
        return (self.messages, self.refused is None) == (other.messages, other.refused is None)


# -- reading ----------------------------------------------------------------------------------------


def packets(random: Random, raw: bytes) -> list[bytes]:
    """Cut bytes into packets at random places, sometimes into single bytes."""
    if len(raw) < 400 and random.random() < 0.1:
        return [raw[i : i + 1] for i in range(len(raw))]
    cuts = sorted(random.randrange(len(raw) + 1) for _ in range(random.choice([0, 1, 2, 5, 12])))
    return [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True) if start < end]


def our_requests(pieces: list[bytes]) -> Reading:
    """Read requests as the listener does, each answered before the next is read."""
    reader, reading = RequestReader(), Reading()
    for piece in pieces:
        events = _drained(reader, piece)
        while _note(reading, events):
            head = reading.heads[-1]
            if not head.keep_alive or (isinstance(head, RequestHead) and head.http10):
                return reading
            events = reader.next_request() + _drained(reader, b"")
    return reading


def our_responses(pieces: list[bytes], request: RequestHead) -> Reading:
    """Read the answer to one request, and the end of the connection behind it."""
    reader, reading = ResponseReader(), Reading()
    reader.expect(request)
    for piece in pieces:
        _note(reading, _drained(reader, piece))
    if reading.refused is None:
        _note(reading, reader.close())
    return reading


def _drained(reader: RequestReader | ResponseReader, piece: bytes) -> list[Event]:
    events = reader.receive(piece) if piece or reader.pending else []
    while reader.pending:
        events += reader.receive(b"")
    return events


def _note(reading: Reading, events: list[Event]) -> bool:
    ended = False
    for event in events:
        if isinstance(event, Malformed):
            reading.refused = event.why
        elif isinstance(event, RequestHead):
            reading.heads.append(event)
            reading.messages.append(Read((event.method, event.target), event.headers))
        elif isinstance(event, ResponseHead):
            reading.heads.append(event)
            line = (b"%d" % event.status, event.reason)
            reading.messages.append(Read(line, event.headers, whole=event.status < 200))
        elif isinstance(event, End):
            reading.messages[-1].trailers = event.trailers
            reading.messages[-1].whole = True
            ended = True
        else:
            reading.messages[-1].body += event
    return ended


def h11_requests(raw: bytes) -> Reading:
    connection, reading = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 24), Reading()
    connection.receive_data(raw)
    try:
        while not isinstance(event := connection.next_event(), type) or event is h11.PAUSED:
            if event is h11.PAUSED:
                # An upgrade was offered: refused, as any server may.
                connection.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
            else:
                _note_h11(reading, event)
            if isinstance(event, h11.EndOfMessage) and connection.our_state is h11.SEND_RESPONSE:
                connection.send(h11.Response(status_code=404, headers=[("Content-Length", "0")]))
                connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return reading
            if connection.our_state is connection.their_state is h11.DONE:
                connection.start_next_cycle()
    except h11.RemoteProtocolError as error:
        reading.refused = str(error)
    return reading


def h11_responses(raw: bytes, method: bytes, *, close: bool) -> Reading:
    """Read the answer to one request with h11; `close` says that the connection ends behind it."""
    connection, reading = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 24), Reading()
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "t")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(raw)
    if close:
        connection.receive_data(b"")
    try:
        while not isinstance(event := connection.next_event(), type):
            _note_h11(reading, event)
            if isinstance(event, h11.EndOfMessage):
                break
    except h11.RemoteProtocolError as error:
        reading.refused = str(error)
    return reading


def _note_h11(reading: Reading, event: object) -> None:
    if isinstance(event, h11.Request):
        reading.messages.append(Read((event.method, event.target), event.headers.raw_items()))
    elif isinstance(event, h11.InformationalResponse | h11.Response):
        line = (b"%d" % event.status_code, event.reason)
        whole = isinstance(event, h11.InformationalResponse)
        reading.messages.append(Read(line, event.headers.raw_items(), whole=whole))
    elif isinstance(event, h11.Data):
        reading.messages[-1].body += event.data
    elif isinstance(event, h11.EndOfMessage):
        reading.messages[-1].trailers = event.headers.raw_items()
        reading.messages[-1].whole = True


def complaint(ours: Reading, theirs: Reading) -> str | None:
    """Say how two readings differ in a way they must not; None if they do not."""
    for number, mine in enumerate(ours.messages):
        if number >= len(theirs.messages):
            # We pass over an empty line before a request, h11 does not (RFC 9112, 2.2: a server should).
            repaired = isinstance(head := ours.heads[number], ResponseHead) and not head.keep_alive
            if not mine.whole or repaired or theirs.refused in ("no request line received", *LAXER):
                return None
            return f"h11 does not see message {number}: {theirs.refused}"
        its = theirs.messages[number]
        if (mine.line, _plain(mine.headers)) != (its.line, _plain(its.headers)):
            return f"message {number} begins otherwise: {mine} {its}"
        if mine.whole and not its.whole:
            return f"h11 sees no end of message {number}: {theirs.refused}"
        if mine.whole and (mine.body, mine.trailers) != (its.body, _passing(its.trailers)):
            return f"message {number} has another body or other trailers: {mine} {its}"
        if not its.body.startswith(mine.body):
            return f"message {number} has another body: {mine} {its}"
    taken = theirs.refused is None and all(message.whole for message in theirs.messages)
    if ours.refused is not None and taken and not ours.refused.startswith(STRICTER):
        return f"refused without a reason that is known: {ours.refused}"
    if ours.refused is None and len(theirs.messages) > len(ours.messages):
        return f"h11 sees more messages: {theirs.messages[len(ours.messages)]}"
    return None


def _plain(headers: list[Header]) -> list[Header]:
    # h11 writes the one coding it knows in lower case, and keeps control characters (we write blanks) and a
    # length that chunks override.
    headers = [(k, re.sub(rb"[\x01-\x08\x0b-\x1f\x7f]", b" ", v).strip()) for k, v in headers]
    if any(k.lower() == b"transfer-encoding" for k, _ in headers):
        headers = [(k, v) for k, v in headers if k.lower() != b"content-length"]
    return [(k, v.lower() if k.lower() == b"transfer-encoding" else v) for k, v in headers]


def _passing(trailers: list[Header]) -> list[Header]:
    return [trailer for trailer in trailers if trailer[0].lower() not in NO_TRAILERS]


# -- writing on -------------------------------------------------------------------------------------


def forwarded(head: RequestHead, message: Read) -> bytes:
    wire = head.encode(b"backend:1")
    if head.length is None:
        return wire + chunk(message.body) + last_chunk(message.trailers)
    return wire + message.body


def answered(request: RequestHead, reading: Reading) -> tuple[bytes, ResponseWriter]:
    """Return an answer as it goes to the client, and the writer, which knows whether the connection ends."""
    writer = ResponseWriter(request)
    *informational, head = [each for each in reading.heads if isinstance(each, ResponseHead)]
    message = reading.messages[-1]
    wire = b"".join(writer.informational(each) for each in informational) + writer.head(head)
    return wire + writer.body(message.body) + writer.end(message.trailers), writer


# -- making -----------------------------------------------------------------------------------------

TOKEN = b"abcXYZ019!#$%&'*+-.^_`|~"
VALUE = bytes(range(0x21, 0x7F)) + bytes(range(0x80, 0x100)) + b"  \t"


class Messages:
    """Makes messages, mostly right; `mischief` is how many of a thousand choices are wrong ones."""

    def __init__(self, random: Random, mischief: int = 30) -> None:
        self._random = random
        self._mischief = mischief

    def request(self) -> bytes:
        return b"".join(self._request() for _ in range(self._random.choice([1, 1, 1, 2, 3])))

    def response(self, method: bytes) -> bytes:
        informational = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * self._pick([0], [1, 2, 20])
        status = self._pick(
            [b"200", b"404", b"204", b"304", b"500"], [b"99", b"1000", b"000", b"101", b"999"]
        )
        version = self._pick([b"HTTP/1.1"], [b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 "])
        reason = self._pick([b" OK", b" Not Found", b" ", b" \xc3\xbcber"], [b"", b"  x", b" a\x00"])
        body, fields = self._body(close=True)
        if method == b"HEAD" or status in (b"204", b"304"):
            body = b""
        return informational + self._head(version + b" " + status + reason, fields) + body

    def _request(self) -> bytes:
        method = self._pick(
            [b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS"], [b"get", b"PO ST", b"", b"CONNECT"]
        )
        target = self._pick(
            [b"/", b"/api/chat", b"/a?b=c#d", b"/%2e/~", b'/"<>\\^`{|}'],
            [
                b"http://h/p?q",
                b"http://h?q=/p",
                b"*",
                b"/a#b",
                b"h:1",
                b"//x",
                b"/a b",
                b"/\x7f",
                b"/\xe9",
                b"",
            ],
        )
        version = self._pick(
            [b"HTTP/1.1"], [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/1.1x", b"", b"HTTP/01.1"]
        )
        body, fields = self._body(close=False)
        host = self._pick([[b"Host: t"]], [[], [b"Host: t", b"Host: u"], [b"Host:"], [b"Host: t\r\n u"]])
        space = self._pick([b" "], [b"  ", b"\t"])
        start = self._pick([b""], [b"\r\n", b"\n", b" "])
        return start + self._head(method + space + target + space + version, host + fields) + body

    def _head(self, line: bytes, fields: list[bytes]) -> bytes:
        random = self._random
        fields = fields + [self._field() for _ in range(random.randrange(5))]
        if random.random() < 0.3:
            random.shuffle(fields)
        return b"".join(each + self._eol() for each in (line, *fields)) + self._eol()

    def _field(self) -> bytes:
        random = self._random
        special = [
            b"Connection: close", b"Connection: keep-alive", b"Connection: content-length",
            b"Connection: host", b"Connection: x-mine, te", b"Connection: Upgrade",
            b"Upgrade: websocket", b"Upgrade: h2c, foo",
            b"TE: trailers", b"Trailer: X-T", b"Expect: 100-continue", b"Expect: 200-ok", b"X-Mine: 1",
        ]  # fmt: skip
        broken = [
            b" folded", b"\tfolded", b"no colon", b": no name", b"blank : x", b"X\xe9: y", b"\x7fX: y",
            b"X-Nul: a\x00b", b"X-Cr: a\rb", b"X-Bel: a\x07b", b"X-Vt: \x0ba",
        ]  # fmt: skip
        name = bytes(random.choice(TOKEN) for _ in range(random.randint(1, 8)))
        value = bytes(random.choice(VALUE) for _ in range(random.choice([0, 1, 8, 40])))
        colon, end = random.choice([b":", b": ", b":\t ", b": "]), random.choice([b"", b" ", b"\t"])
        usual = b"X-" + name + colon + value + end
        return self._pick([usual, usual, usual, random.choice(special)], broken)

    def _body(self, *, close: bool) -> tuple[bytes, list[bytes]]:
        random = self._random
        hidden = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n"
        body = random.choice([b"", b"river", hidden, b"0\r\n\r\n", random.randbytes(300)])
        how = random.choice(["length", "length", "chunked", "none"])
        if how == "none":
            return (body if close else b""), []
        if how == "length":
            said = self._pick(
                [b"%d"],
                [
                    b"+%d",
                    b"0%d",
                    b"%d, %d",
                    b"0x%d",
                    b"-%d",
                    b"%d ",
                    b"",
                    b"1e1",
                    b"99999999999999999999",
                    b"%d\x0b",
                ],
            )
            value = said % ((len(body),) * said.count(b"%d")) if b"%d" in said else said
            name = self._pick(
                [b"Content-Length", b"content-length"], [b"Content-Length ", b" Content-Length"]
            )
            fields = [name + b": " + value]
            return body, self._pick([fields], [fields * 2, [*fields, b"Transfer-Encoding: chunked"]])
        coding = self._pick(
            [b"chunked", b"Chunked"],
            [
                b"xchunked",
                b"chunked, chunked",
                b"gzip, chunked",
                b"identity",
                b"",
                b"chunked;q=1",
                b"\x0bchunked",
            ],
        )
        return self._chunked(body), [b"Transfer-Encoding: " + coding]

    def _chunked(self, body: bytes) -> bytes:
        random, wire, at = self._random, b"", 0
        while at < len(body):
            piece = body[at : at + random.choice([1, 2, 7, 50, 400])]
            at += len(piece)
            size = self._pick(
                [b"%x", b"%X", b"00%x", b"%x;ext=1"],
                [
                    b"0x%x",
                    b"%x ",
                    b" %x",
                    b"+%x",
                    b"-%x",
                    b"%x;a\n",
                    b"fffffffffffffffff%x",
                    b"%x;" + b"e" * 5000,
                ],
            )
            wire += (
                size % len(piece) + self._eol() + piece + self._pick([b"\r\n"], [b"", b"\n", b"xx", b"\r"])
            )
        trailer = self._pick(
            [b"", b"X-T: 1\r\n"], [b"Content-Length: 5\r\n", b"Host: evil\r\n", b"no colon\r\n"]
        )
        return wire + self._pick([b"0", b"000"], [b"", b"0x0", b"-0"]) + self._eol() + trailer + self._eol()

    def _eol(self) -> bytes:
        return self._pick([b"\r\n"], [b"\n", b"\r", b"\r\r\n"], share=0.2)

    def _pick(self, right: list[T], wrong: list[T], share: float = 1.0) -> T:
        bad = self._random.randrange(1000) < self._mischief * share
        return self._random.choice(wrong if bad else right)


# -- comparing ---------------------------------------------------------------------------------------


def requests_agree(random: Random, messages: Messages) -> None:
    """Read a connection's requests both ways, write them on, read what was written; AssertionError if that
    shows a difference that must not be.
    """
    raw = messages.request()
    ours = our_requests(packets(random, raw))
    assert ours.same_as(our_requests([raw])), raw
    assert complaint(ours, h11_requests(raw.replace(b" /\xe9 ", b" /%E9 "))) is None, raw
    for head, message in zip(ours.heads, ours.messages, strict=True):
        if not isinstance(head, RequestHead) or not message.whole or head.method == b"CONNECT":
            continue
        [seen] = h11_requests(forwarded(head, message)).messages
        assert seen.line == (head.method, head.origin_form), raw
        assert (seen.whole, seen.body, seen.trailers) == (True, message.body, message.trailers), raw
        assert [value for name, value in seen.headers if name.lower() == b"host"] == [b"backend:1"], raw


def responses_agree(random: Random, messages: Messages) -> None:
    """Read an answer both ways, write it to clients of both versions, read what was written; AssertionError
    if that shows a difference that must not be.
    """
    method = random.choice([b"GET", b"GET", b"POST", b"HEAD"])
    raw = messages.response(method)
    request = read_request_head(method + b" / HTTP/1.1\r\nHost: t\r\n")
    ours = our_responses(packets(random, raw), request)
    assert ours.same_as(our_responses([raw], request)), raw
    assert complaint(ours, h11_responses(raw, method, close=True)) is None, raw
    if ours.refused is not None:
        return
    answer = ours.messages[-1]
    for version in (b"1.1", b"1.0"):
        client = read_request_head(method + b" / HTTP/" + version + b"\r\nHost: t\r\n")
        wire, writer = answered(client, ours)
        assert version == b"1.1" or b"chunked" not in wire.split(b"\r\n\r\n")[0].lower(), raw
        seen = h11_responses(wire, method, close=not writer.keep_alive).messages[-1]
        assert (seen.line, seen.whole, seen.body) == (answer.line, True, answer.body), raw
        assert version == b"1.0" or seen.trailers == answer.trailers, raw
