"""Finds the model, and whether to stream, in a body that is not read otherwise."""

import re
import zlib
from collections.abc import Sequence

from msgspec import Raw

from clairvoyant_cli.http.request import Piece
from clairvoyant_cli.protocols.lenient_json import OBJECT, Object, fitting, text
from clairvoyant_cli.protocols.prompt_text import short_name

MOST_BYTES = 1024 * 1024
BOM = b"\xef\xbb\xbf"  # nlohmann's parser (llama.cpp) and Python's skip it
GZIP = 16 + zlib.MAX_WBITS
END_BYTES = 2048  # of a long body that are looked at, at either end
_NAMED = re.compile(rb'[{,]\s*"(model|stream)"\s*:\s*("(?:[^"\\]|\\.)*+"|true|false)', re.DOTALL)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def named_model(pieces: Sequence[Piece], coding: bytes | None = None) -> str:
    """Return the model that a body names, "" if none: also behind a gzip coding (cpp-httplib), behind a byte
    order mark, or as `Model`, since Go, and so Ollama, ignores the case of names.
    """
    body = b"".join(pieces)[:MOST_BYTES]
    if coding is not None and coding.lower() in (b"gzip", b"x-gzip"):
        try:
            body = zlib.decompressobj(GZIP).decompress(body, MOST_BYTES)
        except zlib.error:
            return ""
    members = {
        name.casefold(): value for name, value in (fitting(OBJECT, body.removeprefix(BOM)) or {}).items()
    }
    # `/api/copy` names its model as the source; older clients of Ollama say `name`.
    named = (members[name] for name in ("model", "source", "name") if name in members)
    return next((short_name(value) for value in named if text(value)), "")


def outer_members(pieces: Sequence[Piece], *, whole: bool) -> Object:
    """Return `model` and `stream` of an object that is too long to decode, if they are near its beginning or,
    where it is `whole`, its end: OpenAI's clients send `messages` first.
    """
    beginning, end = _end_of(pieces), _end_of(pieces, last=True) if whole else b""
    members = Object()
    for part, is_end in (beginning, False), (end, True):
        for found in _NAMED.finditer(part):
            beside = _STRING.sub(b"", part[found.end() :] if is_end else part[: found.end()])
            # Only the object itself is open there.
            opened = beside.count(b"{") - beside.count(b"}")
            if opened == (-1 if is_end else 1) and beside.count(b"[") == beside.count(b"]"):
                members[found[1].decode()] = Raw(found[2])
    return members


def _end_of(pieces: Sequence[Piece], *, last: bool = False) -> bytes:
    end = b""
    for piece in reversed(pieces) if last else pieces:
        if len(end) >= END_BYTES:
            break
        end = bytes(piece[-END_BYTES:]) + end if last else end + bytes(piece[:END_BYTES])
    return end[-END_BYTES:] if last else end[:END_BYTES]
