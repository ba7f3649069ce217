"""Inserts a field into a JSON object as it streams past, and leaves every other byte as it is.

Rule: the field comes first, so nothing is held back. The object must not have that field already: readers
take the last of two.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.request import BodySink, Piece

_OPENING = re.compile(rb'[ \t\r\n]*\{(?=[ \t\r\n]*")')

LOOKED_AT_BYTES = 256

OUTDATED = (b"content-length", b"content-md5", b"digest", b"content-digest")
"""Fields of a head that tell of a body as it was (RFC 9110, 8.6; RFC 9530)."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What is put into a body, and behind how many of its bytes."""

    text: bytes
    at: int


def opening_of(pieces: Sequence[Piece]) -> int:
    """Return the number of bytes before a body's first field; 0 if there is none or it is too far."""
    beginning = b""
    for piece in pieces:
        beginning += piece[: LOOKED_AT_BYTES - len(beginning)]
        if len(beginning) == LOOKED_AT_BYTES:
            break
    found = _OPENING.match(beginning)
    return 0 if found is None else found.end()


class Stamping:
    def __init__(self, sink: BodySink, stamp: Stamp) -> None:
        self._sink = sink
        self._stamp = stamp
        self._left = stamp.at

    def body(self, data: Piece) -> None:
        if self._left <= 0:
            self._sink.body(data)
        elif len(data) < self._left:
            self._left -= len(data)
            self._sink.body(data)
        else:
            at, self._left = self._left, 0
            self._sink.body(b"".join((data[:at], self._stamp.text, data[at:])))

    def body_end(self, trailers: list[Header]) -> None:
        self._sink.body_end(trailers)
