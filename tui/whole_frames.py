"""Frames that are sent in one piece.

Textual writes where a frame begins, the frame, and where it ends, each for itself; each wakes the thread that
sends, and is a call of the system. That is a tenth of what a small frame costs.
"""

from functools import cache

from textual.driver import Driver

BEGINS, ENDS = "\x1b[?2026h", "\x1b[?2026l"

MAX_CHARACTERS = 8192
"""What is longer goes in the pieces that Textual made: some consoles take no more at a time."""


@cache
def whole_frames(driver: type[Driver]) -> type[Driver]:
    """Return a driver that sends small frames whole, and is the given one in all else."""

    class Whole(driver):  # type: ignore[misc, valid-type]  # which it is depends on the system
        _frame: tuple[str, ...] = ()

        def write(self, data: str) -> None:
            if not self._frame and data != BEGINS:
                super().write(data)
                return
            self._frame += (data,)
            if data == ENDS:
                frame, self._frame = self._frame, ()
                pieces = ("".join(frame),) if sum(map(len, frame)) <= MAX_CHARACTERS else frame
                for piece in pieces:
                    super().write(piece)

    return Whole
