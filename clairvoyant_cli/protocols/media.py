"""Recognises pictures, recordings and files in requests of every dialect. They are no text: a server makes
a number of tokens of each that says nothing about text, however long it is in base64.

Rule: a long payload is replaced by a stand-in, a hash of its bytes, before a body is decoded. How the body is
cut into slices makes no difference.
"""

import os
import re
from hashlib import blake2b
from typing import NamedTuple

LEAST_BYTES = 1024  # of base64 that is replaced
FIELD_BYTES = 128  # before it, in which the name of its field is looked for

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/\\"
"""With the backslash: some clients escape its slashes."""

_LONG = re.compile(rb'(?:;base64,|[\[,:]\s*")([A-Za-z0-9+/\\]{%d,})' % LEAST_BYTES)
_UNENDED = re.compile(rb'(?:;base64,|[\[,:]\s*")[A-Za-z0-9+/\\]{0,%d}\Z' % LEAST_BYTES)
_PROBE = re.compile(rb"[A-Za-z0-9+/\\]{32}")  # looked for at intervals, which takes a tenth of the time
_FIELD = re.compile(
    rb'(?:"data:[^",]+;base64,|(?:"(?:data|file_data|image|image_url|url|audio|video|result)"\s*:|[\[,])\s*")\Z'
)
"""What a payload follows. Texts, signatures and the like are left as they are."""

_KIND = re.compile(
    r"(?:input_|output_)?(?P<kind>image|audio|video|file|document)(?:_url|_file|_embeds|_pil)?"
    r"|computer_screenshot|image_generation_call"
)
_KEY, _MARK = os.urandom(16), os.urandom(8).hex().encode()
_STAND_IN = re.compile(_MARK + rb"[0-9a-f]{32}")


class Medium(NamedTuple):
    """A medium as its tokens are learned: its kind (image, audio, video or file), and its size in base64, of
    which a step is a factor of four.
    """

    kind: str
    size: int


def kind_of(part_type: str) -> str:
    """Return the kind of medium that a part of this type is, in any dialect; "" for any other part."""
    found = _KIND.fullmatch(part_type)
    kind = "" if found is None else found["kind"] or "image"
    return "file" if kind == "document" else kind


class Payloads:
    """Replaces the payloads of a body that comes in slices; `left_out` counts their bytes."""

    def __init__(self) -> None:
        self.left_out = 0
        self._sizes: dict[bytes, int] = {}  # of what each stand-in replaces
        self._held = b""  # the end of the last slice, as far as a payload may begin in it
        self._hash: blake2b | None = None  # of a payload that goes on
        self._size = 0

    def feed(self, piece: bytes) -> bytes:
        """Take the next slice; return what is left of the body, up to where that is certain."""
        piece, self._held = self._held + piece, b""
        kept: list[bytes] = []
        at = 0
        if self._hash is not None:
            at = self._take(self._hash, piece, 0, len(piece) - len(piece.lstrip(_BASE64)), kept)
        is_long = len(piece) >= LEAST_BYTES and any(
            _PROBE.match(piece, start) for start in range(at, len(piece), LEAST_BYTES // 2)
        )
        for found in _LONG.finditer(piece, at) if is_long else ():
            begin, end = found.span(1)
            if _FIELD.search(piece, max(0, begin - FIELD_BYTES), begin) is not None:
                kept.append(piece[at:begin])
                self._hash, self._size = blake2b(digest_size=16, key=_KEY), 0
                at = self._take(self._hash, piece, begin, end, kept)
        if self._hash is None:
            begun = _UNENDED.search(piece, max(at, len(piece) - LEAST_BYTES - FIELD_BYTES))
            certain = max(at, (len(piece) if begun is None else begun.start()) - FIELD_BYTES)
            kept.append(piece[at:certain])
            self._held = piece[certain:]
        return b"".join(kept)

    def end(self) -> bytes:
        """Return what is left of the end of a body."""
        kept = b"" if self._hash is None else self._stand_in(self._hash)
        kept, self._held = kept + self._held, b""
        return kept

    def length_of(self, text: bytes) -> int:
        """Return how long a text was in the body, with what was left out of it."""
        if not self._sizes:
            return len(text)
        return len(text) + sum(self._sizes.get(found, 0) for found in _STAND_IN.findall(text))

    def _take(self, known: blake2b, piece: bytes, begin: int, end: int, kept: list[bytes]) -> int:
        """Add to a payload; return where it ends. Backslashes at its end may be escapes of what follows."""
        run = piece[begin:end].rstrip(b"\\")
        known.update(run)
        self._size += len(run)
        if end < len(piece):
            kept.append(self._stand_in(known))
        else:
            self._held = piece[begin + len(run) :]
        return begin + len(run)

    def _stand_in(self, known: blake2b) -> bytes:
        stand_in = _MARK + known.hexdigest().encode()
        self._sizes[stand_in] = self._size - len(stand_in)
        self.left_out += self._size - len(stand_in)
        self._hash = None
        return stand_in
