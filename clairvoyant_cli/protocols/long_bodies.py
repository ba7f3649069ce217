"""Reads a long body slice by slice: leaves payloads out, and gives up what would take long to decode."""

from clairvoyant_cli.protocols.media import Payloads

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The longest body that is decoded, pictures aside: more than nearly any context. Takes 5 ms."""

MAX_STEPS = 100_000
"""Strings, lists and objects in a body, each some 65 ns to decode. A thousand tools have 75,000."""

NUMBERS_A_STEP = 3  # numbers in a list cost less than that; prompts come as a hundred thousand token ids

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 400
"""Longer than any that a float holds. To decode one takes time that grows with the square of its length."""

_QUOTE, _ESCAPE = b'"', b"\\"


class LongBody:
    """A body without its payloads, as far as it was fed. `is_readable` until it is too long or has too many
    parts.
    """

    def __init__(self) -> None:
        self.is_readable = True
        self.payloads = Payloads()
        self._kept: list[bytes] = []
        self._size = 0
        self._steps = 0
        self._in_string = False
        self._escape = b""  # a backslash at the end of the last slice that escapes the first byte of the next

    def feed(self, piece: bytes) -> None:
        """Take the next piece. One of 64 KiB takes at most 1 ms."""
        self._take(self.payloads.feed(piece))

    def _take(self, text: bytes) -> None:
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
        """Return what is left of a body that was fed whole; None if it is not readable."""
        if self.is_readable:
            self._take(self.payloads.end())
        return b"".join(self._kept) if self.is_readable else None
