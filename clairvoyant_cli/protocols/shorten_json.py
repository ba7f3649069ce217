"""Condenses long JSON as it streams past: structure is kept, long strings keep their two ends.

Rule 1: a piece costs time per byte at C speed; Python looks only at long strings, which are few.
Rule 2: valid JSON stays valid: strings are not cut within an escape, a surrogate pair or a UTF-8 sequence.
Rule 3: the result can be decoded in a few milliseconds, or there is none.
"""

import os
import re

END_BYTES = 2048
"""Bytes kept at either end of a long string. A predictor reads 280 and 168 characters
(predictor/lexical/words.py), the model of urgency 1,200 and 600 (predictor/urgency/model.py); an escape
takes up to six bytes."""

LONGEST_KEPT = 2 * END_BYTES + 128
"""The longest string that is kept whole, in bytes: from a shorter one there is little to take."""

ROOM_BYTES = 16  # to look for the place where a string is cut: longer than any escape, or pair of them
MAX_BYTES = 3 * 1024 * 1024  # the longest result: a conversation of nearly a million tokens in short messages
MAX_STEPS = 100_000
"""Strings, lists and objects in the result, each some 65 ns to decode. A thousand tools have 75,000."""

NUMBERS_A_STEP = 3  # numbers in a list cost less than that; prompts come as a hundred thousand token ids
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 400
"""Longer than any that a float holds. To decode one takes time that grows with the square of its length."""

_QUOTE, _ESCAPE = b'"', b"\\"

# Random, so that no client can forge a marker.
_SECRET = os.urandom(8).hex()
_JOINT = " … "
_MARK = "\ue000"
_MARKER = re.compile(f"{_MARK}{_SECRET} ([0-9]+){_MARK}")
_MARKER_BYTES = f"{_MARK}{_SECRET} %d{_MARK}".encode()


class Condenser:
    """Takes a JSON text in pieces, and returns it condensed: None if that were still too much."""

    def __init__(self) -> None:
        self.given_up = False
        self._kept: list[bytes] = []
        self._size = 0
        self._steps = 0
        self._left_out: int | None = None  # while the middle of a long string passes
        self._carried = b""  # an unfinished string, or the end of a long one as far as it has come

    def feed(self, piece: bytes | memoryview) -> None:
        """Take the next piece; a short one, of a quarter of a megabyte at most, costs little time."""
        if self.given_up:
            return
        # What is carried begins outside of escapes and holds the last there may be: `masked` is right again.
        text = self._carried + bytes(piece)
        masked = _masked(text)
        if self._steps + masked.count(_QUOTE) // 2 > MAX_STEPS:
            self._give_up()
            return
        done = self._condense(text, masked)
        self._carried = b"" if self.given_up else text[done:]

    def condensed(self) -> bytes | None:
        if self.given_up or self._left_out is not None:
            return None
        return b"".join((*self._kept, self._carried))

    def _condense(self, text: bytes, masked: bytes) -> int:
        """Keep what can be kept of a text, and return up to where it has been dealt with."""
        at = 0
        while True:
            if self._left_out is not None:
                at, closed = self._end_of_long(text, masked, at)
                if not closed:
                    return at
            opening = _long_or_open(masked, at)
            self._keep(text[at:opening], masked[at:opening])
            if len(text) - opening <= LONGEST_KEPT + 1 or self.given_up:
                return opening
            at = _safe_cut(masked, opening + 1 + END_BYTES)
            self._put(text[opening:at])
            self._left_out = 0

    def _keep(self, text: bytes, masked: bytes) -> None:
        parts = masked.split(_QUOTE)
        outside = b"".join(parts[::2])
        opened = outside.count(b"{") + outside.count(b"[")
        self._steps += len(parts) // 2 + opened + outside.count(b",") // NUMBERS_A_STEP
        self._put(text)
        if self._steps > MAX_STEPS or _LONG_NUMBER in outside.translate(_DIGITS):
            self._give_up()

    def _end_of_long(self, text: bytes, masked: bytes, at: int) -> tuple[int, bool]:
        """Skip a long string from `at`; return up to where, and whether it ended."""
        closing = masked.find(_QUOTE, at)
        end = len(text) - ROOM_BYTES if closing < 0 else closing
        tail = _safe_cut(masked, end - END_BYTES) if end - at > END_BYTES else at
        left_out = (self._left_out or 0) + tail - at
        if closing < 0:
            self._left_out = left_out
            return tail, False
        self._left_out = None
        self._put(_MARKER_BYTES % left_out)
        self._put(text[tail : closing + 1])
        return closing + 1, True

    def _put(self, text: bytes) -> None:
        self._kept.append(text)
        self._size += len(text)
        if self._size > MAX_BYTES:
            self._give_up()

    def _give_up(self) -> None:
        self.given_up = True
        self._kept.clear()
        self._carried = b""


def uncut(text: str) -> tuple[str, int]:
    """Return a string of a condensed text without its marker, and about how many characters longer it was."""
    marker = _MARKER.search(text) if _MARK in text else None
    if marker is None:
        return text, 0
    head, tail = text[: marker.start()], text[marker.end() :]
    characters_a_byte = min(1.0, (len(head) + len(tail)) / (2 * END_BYTES))
    return f"{head}{_JOINT}{tail}", round(int(marker[1]) * characters_a_byte) - len(_JOINT)


def _masked(text: bytes) -> bytes:
    """Return a text of equal length in which every quote delimits a string, and escapes are marked."""
    return text.replace(rb"\\", rb"\e").replace(rb"\"", rb"\q")


def _long_or_open(masked: bytes, at: int) -> int:
    """Return where the first string begins, from `at` outside of any, that is too long to keep or does not
    end; the text's length if there is none. Takes at most two searches per `LONGEST_KEPT` bytes.
    """
    inside = False
    while True:
        last = masked.rfind(_QUOTE, at, at + LONGEST_KEPT + 1)
        if last >= 0:
            inside ^= masked.count(_QUOTE, at, last + 1) % 2 == 1
            at = last + 1
        elif inside:
            return at - 1
        else:
            opening = masked.find(_QUOTE, at)
            if opening < 0:
                return len(masked)
            inside, at = True, opening + 1


def _safe_cut(masked: bytes, at: int) -> int:
    """Return the first place from `at` on at which a string may be cut; there are `ROOM_BYTES` behind it."""
    escape = masked.rfind(_ESCAPE, max(0, at - 6), at)
    if escape >= 0:
        at = max(at, escape + _escape_length(masked, escape))
    # A UTF-8 sequence goes on for three bytes at most.
    return next((place for place in range(at, at + 3) if masked[place] & 0xC0 != 0x80), at + 3)


def _escape_length(masked: bytes, escape: int) -> int:
    r"""Return the length of the escape that begins at `escape`; `\ud83d\ude00` is one."""
    if masked[escape + 1 : escape + 2] != b"u":
        return 2
    high = masked[escape + 2 : escape + 4].lower()
    if high in _HIGH_SURROGATES and masked[escape + 6 : escape + 8] == rb"\u":
        return 12
    return 6


_HIGH_SURROGATES = (b"d8", b"d9", b"da", b"db")
