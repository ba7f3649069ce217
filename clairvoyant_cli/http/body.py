"""Holds a request's body while it waits: long ones in anonymous mappings, which return to the system whole.

Malloc would keep that memory in fragments: a daemon that once held 200 MB of pictures would stay as large.
"""

from mmap import mmap

SHORT_BYTES = 64 * 1024
BLOCK_BYTES = 1024 * 1024

Piece = bytes | memoryview


class WaitingBody:
    """Pieces of a body in order. `size` counts its bytes, `charged` those beyond the first `SHORT_BYTES`."""

    __slots__ = ("_block", "_filled", "_pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Piece] = []
        self._block: memoryview | None = None
        self._filled = 0

    @property
    def charged(self) -> int:
        """Bytes that count against what all bodies may take together: a short one is always held."""
        return max(0, self.size - SHORT_BYTES)

    @property
    def pieces(self) -> list[Piece]:
        """What has come so far."""
        if self._block is not None and self._filled:
            return [*self._pieces, self._block[: self._filled]]
        return list(self._pieces)

    def append(self, data: bytes) -> None:
        """Take a piece from the wire."""
        self.size += len(data)
        if self.size <= SHORT_BYTES:
            self._pieces.append(data)
            return
        rest = memoryview(data)
        while rest:
            if self._block is None:
                self._block, self._filled = memoryview(mmap(-1, BLOCK_BYTES)), 0
            room = rest[: BLOCK_BYTES - self._filled]
            self._block[self._filled : self._filled + len(room)] = room
            self._filled += len(room)
            rest = rest[len(room) :]
            if self._filled == BLOCK_BYTES:
                self._pieces.append(self._block)
                self._block = None

    def clear(self) -> None:
        """Let go of it."""
        self.size = self._filled = 0
        self._pieces.clear()
        self._block = None
