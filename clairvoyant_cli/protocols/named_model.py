"""Finds the model in a body that is not read otherwise, to choose among several servers by it."""

import zlib
from collections.abc import Sequence

from clairvoyant_cli.http.request import Piece
from clairvoyant_cli.protocols.lenient_json import OBJECT, fitting, text
from clairvoyant_cli.protocols.prompt_text import short_name

MOST_BYTES = 1024 * 1024
BOM = b"\xef\xbb\xbf"  # nlohmann's parser (llama.cpp) and Python's skip it
GZIP = 16 + zlib.MAX_WBITS


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
