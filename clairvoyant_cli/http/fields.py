"""The fields of a head or trailer section, and which of them pass to the next hop.

Rule 1: a line that some parser would not accept as a field invalidates the head (RFC 9112, 5).
Rule 2: end-to-end fields pass untouched: order, duplicates, letter case and bytes.
Rule 3: hop-by-hop fields end here (RFC 9110, 7.6.1). `Connection` cannot make fields hop-by-hop that frame,
route, authenticate or guard.
"""

import re
from collections.abc import Iterable

Header = tuple[bytes, bytes]

MAX_FIELDS = 1000  # the most fields in a head or a trailer section (Apache: 100, hyper: 100, Node: 2000)
MAX_MEMBERS = 50
"""The most members in a line of a comma-separated field that is read here (`Connection` and its kind)."""

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection transfer-encoding upgrade te expect http2-settings".split()
)
"""Fields of one connection only. `Expect` is among them because the proxy answers or re-sends it."""

FRAMING_FIELDS = frozenset(b"content-length transfer-encoding host trailer".split())
"""Fields that decide where a message ends or goes. A request that calls one hop-by-hop is refused: the next
server would read another message."""

END_TO_END = frozenset(
    b"authorization proxy-authorization proxy-authenticate www-authenticate cookie set-cookie x-api-key "
    b"api-key origin referer forwarded via accept date vary cache-control range x-real-ip user-agent".split()
)
END_TO_END_PREFIXES = (b"content-", b"accept-", b"if-", b"sec-", b"access-control-", b"x-forwarded-")
"""Fields that pass although `Connection` names them: they authenticate, guard or describe. All others it
names are dropped."""

NO_TRAILERS = (
    FRAMING_FIELDS | END_TO_END | HOP_BY_HOP | {b"content-type", b"content-encoding", b"content-range"}
)
"""Fields that mean nothing, or too much, after a body (RFC 9110, 6.5.1); they are not passed on there."""

TCHAR = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
VALUE = rb"[\t\x20-\x7e\x80-\xff]*+"
_FIELD_LINES = re.compile(rb"(?:" + TCHAR + rb"++:" + VALUE + rb"\r\n)*+")
BARE_CR = re.compile(rb"\r(?=[^\n])")
BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")

_LISTED = frozenset(b"connection transfer-encoding te upgrade expect".split())
_SINGLE = frozenset(b"host content-length".split())

NOT_CRLF = "a line of the head does not end with CRLF"


class FramingError(Exception):
    """A message that has no single reading; `status` is what a server answers to it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Fields:
    """The fields of a head: `items` as they came, their names in lower case as `keys`, the `first` value of
    each, and the members of comma-separated ones, all lines together, in lower case, as `listed`.
    """

    __slots__ = ("first", "items", "keys", "listed")

    def __init__(self, items: Iterable[Header]) -> None:
        """Take the fields; FramingError if one that must stand alone is repeated."""
        self.items: list[Header] = []
        self.keys: list[bytes] = []
        self.first: dict[bytes, bytes] = {}
        self.listed: dict[bytes, list[bytes]] = {}
        for item in items:
            key, value = item[0].lower(), item[1]
            self.items.append(item)
            self.keys.append(key)
            if key in _LISTED:
                members = value.lower().split(b",")
                if len(members) > MAX_MEMBERS + 1:
                    raise FramingError(431, f"more than {MAX_MEMBERS} members in {key.decode().title()}")
                listed = self.listed.setdefault(key, [])
                for member in members:
                    listed.append(member.strip(b" \t"))
            elif key in self.first:
                if key in _SINGLE:
                    raise FramingError(400, f"more than one {key.decode().title()} field")
                continue
            self.first[key] = value

    @classmethod
    def parse(cls, block: bytes, start: int = 0) -> "Fields":
        """Read lines, each with its CRLF; FramingError if they are no fields (RFC 9112, 5; RFC 9110, 5.5)."""
        lines = block[start:].split(b"\r\n")
        if len(lines) > MAX_FIELDS + 1:
            raise FramingError(431, f"more than {MAX_FIELDS} fields")
        if _FIELD_LINES.fullmatch(block, start) is None:
            raise no_head(block, "a line of the head is no field")
        lines.pop()
        items: list[Header] = []
        for line in lines:
            name, _, value = line.partition(b":")
            items.append((name, value.strip(b" \t")))
        return cls(items)

    def passing(self, *dropped: bytes) -> list[Header]:
        """Return the fields that pass to the next hop, without those named (Rules 2 and 3)."""
        stop = HOP_BY_HOP.union(dropped)
        named = self.listed.get(b"connection")
        if named:
            passing = FRAMING_FIELDS | END_TO_END
            stop = stop.union(
                name for name in named if name not in passing and not name.startswith(END_TO_END_PREFIXES)
            )
        kept: list[Header] = []
        for key, item in zip(self.keys, self.items, strict=True):
            if key not in stop:
                kept.append(item)
        return kept


def no_head(block: bytes, why: str) -> FramingError:
    return FramingError(400, NOT_CRLF if BARE_LINE_END.search(block) is not None else why)
