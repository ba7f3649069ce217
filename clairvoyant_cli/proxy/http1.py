"""HTTP/1.1 messages as they travel through the proxy: heads, hop-by-hop rules, framing. No I/O.

Rule 1: what is end-to-end passes untouched: order, duplicates, letter case and bytes of every header.
Rule 2: what is hop-by-hop (RFC 9110, section 7.6.1) ends here and is made anew for the next hop.
Rule 3: a body keeps its framing, Content-Length or chunked, unless the receiver cannot read it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

Header = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"expect"}
)
"""Headers of one connection only. `Expect` is among them because the proxy answers or re-sends it."""

LAST_CHUNK = b"0\r\n\r\n"


def find(headers: Iterable[Header], name: bytes) -> bytes | None:
    """Return the first value of a header, stripped; `name` in lower case."""
    for key, value in headers:
        if key.lower() == name:
            return value.strip()
    return None


def tokens(headers: Iterable[Header], name: bytes) -> set[bytes]:
    """Return the comma-separated tokens of a header, all its lines together, in lower case."""
    found: set[bytes] = set()
    for key, value in headers:
        if key.lower() == name:
            found.update(token.strip().lower() for token in value.split(b","))
    return found


def end_to_end(headers: Iterable[Header], *dropped: bytes) -> list[Header]:
    """Return the headers that pass to the next hop; those named in `dropped` and in Connection do not."""
    headers = list(headers)
    stop = HOP_BY_HOP.union(dropped, tokens(headers, b"connection"))
    return [header for header in headers if header[0].lower() not in stop]


@dataclass(slots=True)
class RequestHead:
    """The first line and the headers of a request."""

    method: bytes
    target: bytes
    headers: list[Header]
    http10: bool = False
    keep_alive: bool = True
    upgrade: bytes = b""

    @property
    def path(self) -> str:
        """The target's path, without scheme, authority and query."""
        return self.origin_form().split(b"?", 1)[0].decode("latin-1")

    def origin_form(self) -> bytes:
        """Return the target as the next server wants it: a path with its query, or `*`."""
        target = self.target
        if target.startswith(b"/") or target == b"*":
            return target
        rest = target.split(b"://", 1)[-1]
        slash = rest.find(b"/")
        return rest[slash:] if slash >= 0 else b"/"

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a header; `name` in lower case."""
        return find(self.headers, name)

    @property
    def has_body(self) -> bool:
        """Whether a body follows, by the headers alone."""
        length = self.get(b"content-length")
        return self.chunked or (length is not None and length != b"0")

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return b"chunked" in tokens(self.headers, b"transfer-encoding")

    def framing(self) -> bytes:
        """Return a head that says of the body what this one says, and nothing else."""
        length = self.get(b"content-length")
        told = b"Transfer-Encoding: chunked" if self.chunked else b"Content-Length: " + (length or b"0")
        return b"POST / HTTP/1.1\r\n" + told + b"\r\n\r\n"

    def encode(self, host: bytes, *extra: Header, drop: tuple[bytes, ...] = ()) -> bytes:
        """Return the head to send upstream: Host set to the upstream's own, the rest end-to-end."""
        lines = [self.method + b" " + self.origin_form() + b" HTTP/1.1", b"Host: " + host]
        lines += [key + b": " + value for key, value in end_to_end(self.headers, b"host", *drop)]
        if self.chunked:
            lines.append(b"Transfer-Encoding: chunked")
        if self.upgrade:
            lines.append(b"Connection: Upgrade")
            lines.append(b"Upgrade: " + self.upgrade)
        if b"trailers" in tokens(self.headers, b"te"):
            lines.append(b"Connection: TE")
            lines.append(b"TE: trailers")
        lines += [key + b": " + value for key, value in extra]
        return b"\r\n".join(lines) + b"\r\n\r\n"


@dataclass(slots=True)
class ResponseHead:
    """The status line and the headers of a response."""

    status: int
    reason: bytes
    headers: list[Header] = field(default_factory=list)

    @property
    def content_length(self) -> int | None:
        """The announced length of the body in bytes; None where there is none."""
        length = find(self.headers, b"content-length")
        return int(length) if length is not None and length.isdigit() else None

    @property
    def chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return b"chunked" in tokens(self.headers, b"transfer-encoding")

    def encode(self, *extra: Header) -> bytes:
        """Return the head to send to the client: end-to-end headers, then `extra`."""
        lines = [b"HTTP/1.1 %d %s" % (self.status, self.reason)]
        lines += [key + b": " + value for key, value in end_to_end(self.headers)]
        lines += [key + b": " + value for key, value in extra]
        return b"\r\n".join(lines) + b"\r\n\r\n"


def bodiless(method: bytes, status: int) -> bool:
    """Whether the response to `method` with `status` ends with its head (RFC 9112, section 6.3)."""
    return method == b"HEAD" or status in (204, 304) or 100 <= status < 200


def chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: Iterable[Header]) -> bytes:
    """Return the end of a chunked body with its trailers."""
    lines = [key + b": " + value for key, value in trailers]
    if not lines:
        return LAST_CHUNK
    return b"0\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"
