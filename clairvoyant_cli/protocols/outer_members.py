"""Finds a few outer members of a body as its bytes come, however long it is and whatever else is in it: the
model that it names, and fields that a client may not set. Nothing is decoded but these.
"""

import re
import zlib
from collections.abc import Iterator, Sequence

import msgspec

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Piece
from clairvoyant_cli.protocols.printable import MAX_NAME_CHARS, printable

SLICE_BYTES = 64 * 1024  # how much is looked at at a time: at most some milliseconds
MAX_PIECES = 1024  # this many small pieces are joined at a time
MOST_BYTES = 1024 * 1024  # of a compressed body, as it is when decompressed
GZIP = 16 + zlib.MAX_WBITS
LONGEST = 2048  # bytes of a name and its value that are kept
MOST_REPEATS = 256  # of wanted names in one object, after which nothing is told of it
LONGEST_NAME = 64  # bytes of a wanted name, all of it in escapes

NAMES = frozenset(("model", "source", "name", "stream", "priority"))
_WANTED = re.compile(rb'"(?:%b|[^"\\]{0,64}\\u[^"]{0,64})"' % "|".join(NAMES).encode(), re.IGNORECASE)
"""Strings that may be a wanted name. Any other costs nothing in Python: a body may have millions."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_FIELD = re.compile(
    rb'content-disposition:[^\r\n]*?[;\s]name\s*(?:\*[^=]*)?=\s*(?:"(?P<quoted>[^"\r\n]*)"|(?P<bare>[^;\s]+))'
    rb"[^\r\n]*\r?\n(?:[^\r\n]+\r?\n)*\r?\n(?P<value>[^\r\n]{0,1024})",
    re.IGNORECASE,
)
_NO_MEMBERS = (b"audio/", b"image/", b"video/", b"application/octet-stream")
_BEFORE_AN_OBJECT = b" \t\r\n\0\xef\xbb\xbf\xfe\xff"  # blanks, and what begins UTF-8, UTF-16 and UTF-32


class OuterMembers:
    """Those of a JSON object, by their names in lower case: Go, and so Ollama, ignores their case.

    Texts and `true` are kept; any other value counts as "". `is_text` is False once the bytes cannot be
    UTF-8: other parsers may read them in another coding. `size` is the number of bytes fed.
    """

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.is_text = True
        self.size = 0
        self._depth = 0  # of open lists and objects, before `_held`
        self._held = b""  # the last two strings and what is behind them: a value may be still to come
        self._in_string = False  # one that is too long to be held goes on
        self._repeats = 0

    @property
    def model(self) -> str:
        """The model named; `/api/copy` names it as the source, older clients of Ollama as `name`."""
        named = (self.found.get(name, "") for name in ("model", "source", "name"))
        return printable(next(filter(None, named), ""), MAX_NAME_CHARS)

    def sets(self, name: str) -> bool | None:
        """Whether a member is there; None if that cannot be told."""
        return name in self.found if self.is_text and self._repeats < MOST_REPEATS else None

    def feed(self, piece: Piece) -> None:
        self.size += len(piece)
        text = self._held + bytes(piece)
        self.is_text = self.is_text and b"\0" not in text
        # Without escapes, every quote delimits a string.
        bare = text.replace(rb"\\", b"__").replace(rb"\"", b"__")
        escape = b"\\" if bare.endswith(b"\\") else b""  # of the first byte that comes next
        parts = bare.removesuffix(escape).split(b'"')
        goes_on = self._in_string
        between, strings = parts[goes_on::2], parts[1 - goes_on :: 2]
        if goes_on:
            between.insert(0, b"")
        # Now string k stands between `between[k]` and `between[k + 1]`; the last may not be whole.
        if self._depth - _closed(between) <= 1 and self._repeats < MOST_REPEATS:
            self._look_for_names(bare, between, strings)
        whole = len(strings) < len(between)
        for kept in range(max(goes_on, len(strings) - 2), len(strings)):
            held = b'"' + b'"'.join(parts[2 * kept + 1 - goes_on :])
            if kept == len(strings) - 1 and whole and not between[-1].strip():
                held = b'"%b"' % strings[-1]  # blanks may go on for long
            if len(held) <= LONGEST:
                self._depth, self._in_string = self._depth + _opened(between[: kept + 1]), False
                self._held = held + escape
                return
        self._depth, self._in_string = self._depth + _opened(between), not whole
        self._held = escape

    def _look_for_names(self, bare: bytes, between: list[bytes], strings: list[bytes]) -> None:
        depth, counted, quotes, at = self._depth, 0, int(self._in_string), 0
        for found in _WANTED.finditer(bare):
            quotes, at = quotes + bare.count(b'"', at, found.start()), found.start()
            k, inside = divmod(quotes, 2)
            if inside or k >= len(between) - 1 or len(strings[k]) > LONGEST_NAME:
                continue
            depth, counted = depth + _opened(between[counted : k + 1]), k + 1
            if depth == 1 and self._repeats < MOST_REPEATS:
                self._keep_value(
                    _read(strings[k]), between[k + 1], strings[k + 1 : min(k + 2, len(between) - 1)]
                )

    def _keep_value(self, name: str, after: bytes, strings: list[bytes]) -> None:
        """Keep the value of a member, if its name is one: `after` it stands a colon, and maybe a string."""
        self._repeats += 1
        after = after.strip()
        if after.startswith(b":") and name.casefold() in NAMES:
            text = _read(strings[0]) if after == b":" and strings else ""
            self.found[name.casefold()] = text or ("true" if after[1:].lstrip().startswith(b"true") else "")


def _opened(between: list[bytes]) -> int:
    """Return how many more lists and objects were opened than closed."""
    brackets = b"".join(between).translate(None, _NO_BRACKETS)
    return 2 * (brackets.count(b"{") + brackets.count(b"[")) - len(brackets)


def _closed(between: list[bytes]) -> int:
    """Return how many lists and objects from before are closed at most."""
    brackets = b"".join(between).translate(None, _NO_BRACKETS)
    for _ in range(8):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return brackets.count(b"}") + brackets.count(b"]")


class FormFields(OuterMembers):
    """The fields of a multipart form, or the members of an object: some handlers read one whatever the
    content type is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tail = b""
        self._first = b""  # byte of the body that is not blank

    def feed(self, piece: Piece) -> None:
        self._first = self._first or bytes(piece).lstrip(_BEFORE_AN_OBJECT)[:1]
        if self._first == b"{":
            super().feed(piece)
            return
        self.size += len(piece)
        text = self._tail + bytes(piece)
        for field in _FIELD.finditer(text):
            name = (field["quoted"] or field["bare"] or b"").decode(errors="replace").rpartition("'")[2]
            if name.casefold() in NAMES:
                self.found[name.casefold()] = field["value"].decode(errors="replace")
        self._tail = text[-LONGEST:]


def may_have_members(head: RequestHead) -> bool:
    return not (head.get(b"content-type") or b"").lstrip().lower().startswith(_NO_MEMBERS)


def members_of(head: RequestHead) -> OuterMembers:
    """Return what reads the body of a request, by its type."""
    is_form = (head.get(b"content-type") or b"").lstrip().lower().startswith(b"multipart/")
    return FormFields() if is_form or not may_have_members(head) else OuterMembers()


async def read_members(pieces: Sequence[Piece], members: OuterMembers) -> None:
    """Look through pieces of a body, without holding up the loop."""
    for part in slices(pieces):
        await READING.next()
        members.feed(part)


def slices(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield a body in slices of at most `SLICE_BYTES`."""
    small: list[Piece] = []
    size = 0
    for piece in pieces:
        if size + len(piece) <= SLICE_BYTES and len(small) < MAX_PIECES:
            small.append(piece)
            size += len(piece)
            continue
        if small:
            yield b"".join(small)
        at = 0
        while len(piece) - at > SLICE_BYTES:
            yield piece[at : at + SLICE_BYTES]
            at += SLICE_BYTES
        small = [piece[at:]]
        size = len(piece) - at
    yield b"".join(small)


async def named_model(pieces: Sequence[Piece], head: RequestHead) -> str:
    """Return the model that a body names, also behind a gzip coding (cpp-httplib); "" if none."""
    members, coding = members_of(head), head.get(b"content-encoding")
    if coding is not None and coding.lower() in (b"gzip", b"x-gzip"):
        try:
            pieces = [zlib.decompressobj(GZIP).decompress(b"".join(pieces), MOST_BYTES)]
        except zlib.error:
            return ""
    await read_members(pieces, members)
    return members.model


def _read(string: bytes) -> str:
    """Return what a string between quotes says; half an emoji, which no text can hold, is left as written."""
    if b"\\" in string:
        try:
            return str(msgspec.json.decode(b'"' + string + b'"', type=str))
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    return string.decode(errors="replace")
