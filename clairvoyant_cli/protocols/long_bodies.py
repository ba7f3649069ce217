"""Reads a long body slice by slice: leaves pictures out, and gives up what would take long to decode."""

import re

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The longest body that is decoded, pictures aside: more than nearly any context. Takes 5 ms."""

MAX_STEPS = 100_000
"""Strings, lists and objects in a body, each some 65 ns to decode. A thousand tools have 75,000."""

NUMBERS_A_STEP = 3  # numbers in a list cost less than that; prompts come as a hundred thousand token ids

PICTURE = re.compile(rb"([A-Za-z0-9+/]{16})[A-Za-z0-9+/\\]{1024,}(?<!\\)")
"""Base64; some clients escape its slashes. What is left out follows 16 characters, so it is in no escape."""

EVERY_BYTES = 4096  # where a picture is looked for: what is left of one is no longer

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 400
"""Longer than any that a float holds. To decode one takes time that grows with the square of its length."""

_QUOTE, _ESCAPE = b'"', b"\\"


class LongBody:
    """A body without its pictures, as far as it was fed. `is_readable` until it is too long or has too many
    parts; `left_out` counts the bytes of the pictures.
    """

    def __init__(self) -> None:
        self.is_readable = True
        self.left_out = 0
        self._kept: list[bytes] = []
        self._size = 0
        self._steps = 0
        self._in_string = False
        self._escape = b""  # a backslash at the end of the last slice that escapes the first byte of the next

    def feed(self, piece: bytes) -> None:
        """Take the next piece. One of 64 KiB takes at most 1 ms."""
        text = without_pictures(piece)
        self.left_out += len(piece) - len(text)
        self._kept.append(text)
        self._size += len(text)
        # Without escapes, every quote delimits a string.
        bare = (self._escape + text).replace(rb"\\", b"").replace(rb"\"", b"")
        self._escape = _ESCAPE if bare.endswith(_ESCAPE) else b""
        self._steps += bare.count(_QUOTE) // 2
        if self._size <= MAX_BODY_BYTES and self._steps <= MAX_STEPS:
            parts = bare.split(_QUOTE)
            outside = b"".join(parts[self._in_string :: 2])
            self._in_string ^= len(parts) % 2 == 0
            self._steps += outside.count(b"{") + outside.count(b"[") + outside.count(b",") // NUMBERS_A_STEP
            if self._steps <= MAX_STEPS and _LONG_NUMBER not in outside.translate(_DIGITS):
                return
        self.is_readable = False
        self._kept.clear()

    def text(self) -> bytes | None:
        return b"".join(self._kept) if self.is_readable else None


def without_pictures(piece: bytes) -> bytes:
    kept: list[bytes] = []
    start = at = 0
    while at < len(piece):
        if (found := PICTURE.match(piece, at)) is not None:
            kept.append(piece[start : found.end(1)])
            start = at = found.end()
        at += EVERY_BYTES
    kept.append(piece[start:])
    return b"".join(kept)
