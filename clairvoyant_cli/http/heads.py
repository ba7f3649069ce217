"""The heads of requests and responses: how they are parsed, and how they pass to the next hop."""

import re
import string
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from urllib.parse import quote

from clairvoyant_cli.http.fields import (
    BARE_CR,
    FRAMING_FIELDS,
    NOT_CRLF,
    TCHAR,
    VALUE,
    Fields,
    FramingError,
    Header,
    no_head,
)

TARGET_LIMIT_BYTES = 64 * 1024

IGNORED_UPGRADES = (b"h2c", b"tls/")
"""Upgrade offers that are dropped, as any server may (RFC 9110, 7.8): Java's HTTP client offers h2c with
every first request, and TLS must not start within a connection."""

_REQUEST_LINE = re.compile(rb"(" + TCHAR + rb"++) ([\x21-\x7e\x80-\xff]++) HTTP/([0-9])\.([0-9])\r\n")
_FOLD = re.compile(rb"\r\n[ \t]+")  # RFC 9112, 5.2
_STATUS_LINE = re.compile(rb"HTTP/([0-9])\.([0-9]) ([1-9][0-9][0-9])(?: (" + VALUE + rb"))?\r\n")
_ABSOLUTE = re.compile(rb"https?://([^/?#@]++)([/?].*)?", re.IGNORECASE)
_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]++\]|[^/?#@:\[\]]++):[0-9]{1,5}")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_BARE_FOLD = re.compile(rb"\n[ \t]+")
_CONTROLS = re.compile(rb"[^\t\x20-\x7e\x80-\xff]")
_IGNORED = re.compile(TCHAR + rb"++(?:(?:[ \t]++" + TCHAR + rb"++)++:)?")
"""Lines that are no fields, but that clients pass over: a name alone, and names with blanks in them."""


class Head:
    """The fields of a head. `get` returns the first value of one, which is named in lower case; None without
    it.
    """

    __slots__ = ("fields", "get")

    fields: Fields
    get: Callable[[bytes], bytes | None]

    @property
    def headers(self) -> list[Header]:
        return self.fields.items

    def replace(self, headers: Iterable[Header]) -> None:
        """Take other fields in place of these."""
        self.fields = Fields(headers)
        self.get = self.fields.first.get


class RequestHead(Head):
    """The first line and the fields of a request, and what follows from them.

    `target` is as received, in ASCII; `path` lacks scheme, authority and query. `authority` is that of an
    absolute target, else `Host` (RFC 9112, 3.2.2). `length` counts the body's bytes, None if chunked.
    `upgrade` holds the offered protocols, b"" for none.
    """

    __slots__ = (
        "authority",
        "expects_continue",
        "has_body",
        "http10",
        "keep_alive",
        "length",
        "method",
        "origin_form",
        "target",
        "upgrade",
    )

    def __init__(self, method: bytes, target: bytes, fields: Fields, *, http10: bool = False) -> None:
        """Determine length, target and host; FramingError if one of them is ambiguous."""
        options = fields.listed.get(b"connection", ())
        for name in options:
            if name in FRAMING_FIELDS and name in fields.first:
                raise FramingError(400, f"Connection must not name {name.decode().title()}")
        self.fields, self.get = fields, fields.first.get
        self.method = method
        self.target = target
        self.length = _request_length(fields, http10=http10)
        self.has_body = self.length != 0
        self.keep_alive = (b"keep-alive" in options) if http10 else (b"close" not in options)  # RFC 9112, 9.3
        self.http10 = http10
        self.authority, self.origin_form = _resolve(method, target, fields, http10=http10)
        expected = fields.listed.get(b"expect")
        if expected is not None and expected != [b"100-continue"]:
            raise FramingError(417, "the only expectation met here is 100-continue")
        self.expects_continue = expected is not None and not http10
        self.upgrade = b""
        if method == b"GET" and self.length == 0 and not http10 and b"upgrade" in options:
            offers = [offer.strip(b" \t") for offer in fields.first.get(b"upgrade", b"").split(b",")]
            passing = (offer for offer in offers if offer and not offer.lower().startswith(IGNORED_UPGRADES))
            self.upgrade = b", ".join(passing)

    def __repr__(self) -> str:
        return f"<RequestHead {self.method.decode()} {self.path!r}>"

    @property
    def path(self) -> str:
        return self.origin_form.partition(b"?")[0].decode("ascii")

    @property
    def query(self) -> bytes:
        return self.origin_form.partition(b"?")[2]

    def encode(
        self, host: bytes, *extra: Header, drop: Sequence[bytes] = (), target: bytes | None = None
    ) -> bytes:
        """Return the head for the next server: its own `Host`, maybe another `target`, the end-to-end fields
        and `extra`.
        """
        lines = [self.method + b" " + (target or self.origin_form) + b" HTTP/1.1", b"Host: " + host]
        lines += map(b": ".join, (*self.fields.passing(b"host", *drop), *extra))
        if self.length is None:
            lines.append(b"Transfer-Encoding: chunked")
        if self.upgrade:
            lines += [b"Connection: Upgrade", b"Upgrade: " + self.upgrade]
        if b"trailers" in self.fields.listed.get(b"te", ()):
            lines += [b"Connection: TE", b"TE: trailers"]
        return b"\r\n".join(lines) + b"\r\n\r\n"


class ResponseHead(Head):
    """Status line and fields of a response. `length` of the body in bytes, None if its end is marked."""

    __slots__ = ("chunked", "keep_alive", "length", "reason", "status")

    def __init__(
        self,
        status: int,
        reason: bytes,
        headers: Iterable[Header] | Fields = (),
        length: int | None = None,
        *,
        chunked: bool = False,
        keep_alive: bool = True,
    ) -> None:
        self.fields = headers if isinstance(headers, Fields) else Fields(headers)
        self.get = self.fields.first.get
        self.status, self.reason = status, reason
        self.length, self.chunked, self.keep_alive = length, chunked, keep_alive

    def upgraded_to(self) -> list[bytes]:
        """Return the protocols that a 101 names, in lower case."""
        return self.fields.listed.get(b"upgrade", [])

    def encode(self, *extra: Header) -> bytes:
        """Return the head for the client: end-to-end fields, then `extra`."""
        # RFC 9110, 8.6: a 1xx or a 204 has no length, and a client that believed one would wait for it.
        drop = (b"content-length",) if self.status < 200 or self.status == 204 else ()
        lines = [b"HTTP/1.1 %d %b" % (self.status, self.reason)]
        lines += map(b": ".join, (*self.fields.passing(*drop), *extra))
        return b"\r\n".join(lines) + b"\r\n\r\n"


def read_request_head(block: bytes) -> RequestHead:
    """Parse a request's head, each line with its CRLF; FramingError if it is invalid (RFC 9112, 3)."""
    line = _REQUEST_LINE.match(block)
    if line is None and block.find(b"\r\n") <= TARGET_LIMIT_BYTES:
        raise no_head(block, "the first line is no HTTP/1.1 request line")
    if line is None or len(line[2]) > TARGET_LIMIT_BYTES:
        raise FramingError(414, f"the target is longer than {TARGET_LIMIT_BYTES} bytes")
    method, target, major, minor = line.groups()
    if major != b"1":
        raise FramingError(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    if not target.isascii():
        # Most servers read raw UTF-8 as what it means; encoded, all do (RFC 3987, 3.1).
        target = quote(target, safe=string.punctuation).encode()
    return RequestHead(method, target, Fields.parse(block, line.end()), http10=minor == b"0")


def read_response_head(block: bytes) -> ResponseHead:
    """Parse a response's head; FramingError if it is invalid (RFC 9112, 4).

    What usual clients read is read here, too, and passed on repaired: folded lines, chunks from HTTP/1.0,
    `chunked` twice or beside a length, which it overrides (RFC 9112, 6.3), and what `_repaired` does. The
    connection takes no other request then.
    """
    try:
        return _response_head(block)
    except FramingError:
        head = _response_head(_repaired(block))
        head.keep_alive = False
        return head


def _repaired(block: bytes) -> bytes:
    """Return a head with its lines ended by CRLF, with Content-Lengths that agree as one (RFC 9110, 8.6), and
    without blanks before colons (RFC 9112, 5.1), control characters (RFC 9110, 5.5), and what is `_IGNORED`.
    """
    if BARE_CR.search(block) is not None:
        raise FramingError(400, NOT_CRLF)
    line, _, rest = block.replace(b"\r\n", b"\n").partition(b"\n")
    lines, lengths = [_CONTROLS.sub(b" ", line[:5].upper() + line[5:])], set[bytes]()
    for text in _BARE_FOLD.sub(b" ", rest).split(b"\n")[:-1]:
        name, colon, value = text.partition(b":")
        name = name.rstrip(b" \t")
        if name.lower() == b"content-length":
            given = {length.strip(b" \t").removeprefix(b"+") for length in value.split(b",")} - lengths
            lines += [name + b": " + length for length in given]
            lengths |= given
        elif not _IGNORED.fullmatch(name + colon):
            lines.append(name + colon + _CONTROLS.sub(b" ", value))
    return b"\r\n".join(lines) + b"\r\n"


def _response_head(block: bytes) -> ResponseHead:
    line = _STATUS_LINE.match(block)
    if line is None:
        raise no_head(block, "the first line is no HTTP/1.1 status line")
    major, minor, status, reason = line.groups(b"")
    if major != b"1":
        raise FramingError(502, "it does not speak HTTP/1.1")
    fields, http10 = Fields.parse(_FOLD.sub(b" ", block[line.end() :])), minor == b"0"
    options = fields.listed.get(b"connection", ())
    keep_alive = (b"keep-alive" in options) if http10 else (b"close" not in options)  # RFC 9112, 9.3
    codings = fields.listed.get(b"transfer-encoding", [])
    if set(codings) <= {b"identity"}:
        return ResponseHead(int(status), reason, fields, _length(fields), keep_alive=keep_alive)
    if set(codings) - {b"identity"} != {b"chunked"}:
        raise FramingError(502, "the only transfer coding is chunked")
    if http10 or codings.count(b"chunked") > 1 or b"content-length" in fields.first:
        keep_alive = False
        fields = Fields(item for item in fields.items if item[0].lower() != b"content-length")
    return ResponseHead(int(status), reason, fields, chunked=True, keep_alive=keep_alive)


def bodiless(method: bytes, status: int) -> bool:
    """Whether the response to `method` with `status` ends with its head (RFC 9112, 6.3)."""
    return method == b"HEAD" or status in (204, 304) or status < 200


def _request_length(fields: Fields, *, http10: bool) -> int | None:
    """Return a request's length, None if it is chunked; FramingError for any doubt (RFC 9112, 6.1 to 6.3)."""
    codings = fields.listed.get(b"transfer-encoding")
    if codings is None:
        return _length(fields) or 0
    if b"content-length" in fields.first:
        raise FramingError(400, "Content-Length and Transfer-Encoding exclude each other")
    if http10:
        raise FramingError(400, "HTTP/1.0 knows no Transfer-Encoding")
    if codings != [b"chunked"]:
        raise FramingError(501, "the only transfer coding is chunked")
    return None


def _length(fields: Fields) -> int | None:
    length = fields.first.get(b"content-length")
    if length is None:
        return None
    if _LENGTH.fullmatch(length) is None:
        raise FramingError(400, "Content-Length is no number of bytes")
    return int(length)


def _resolve(method: bytes, target: bytes, fields: Fields, *, http10: bool) -> tuple[bytes, bytes]:
    """Return the authority and the target in origin form (RFC 9112, 3.2 and 3.3)."""
    host = fields.first.get(b"host")
    if host is None and not http10:
        raise FramingError(400, "the Host field is missing")
    if b"#" in target.partition(b"?")[0]:
        # Servers that cut a fragment off would see another path; in the query it changes nothing.
        raise FramingError(400, "the target holds a fragment")
    if method == b"CONNECT":
        if _AUTHORITY.fullmatch(target) is None:
            raise FramingError(400, "CONNECT takes host:port")
        return target, b""
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return host or b"", target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise FramingError(400, "the target is neither a path nor an http URL")
    authority, rest = absolute.groups(b"")
    return authority, rest if rest.startswith(b"/") else b"/" + rest


REASONS = {status.value: status.phrase.encode() for status in HTTPStatus} | {
    499: b"Client Closed Request",
    529: b"Overloaded",
}


def reason_of(status: int) -> bytes:
    return REASONS.get(status, b"Error")
