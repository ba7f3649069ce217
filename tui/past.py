"""The hour behind: a state every few seconds, packed, to go back to."""

import zlib
from bisect import bisect_left, bisect_right
from collections import deque

from tui.recording import decode, encode
from tui.snapshot import Snapshot

EVERY_S = 5.0
SPAN_S = 3600.0


class Past:
    """States by their time, the oldest first; without prompts, as in a recording."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=int(SPAN_S / EVERY_S))
        self._packed: deque[bytes] = deque(maxlen=int(SPAN_S / EVERY_S))

    def take(self, state: Snapshot) -> None:
        """Keep a state, if the last that was kept is old enough. Times that go back start anew."""
        if self._times and state.taken_at < self._times[-1]:
            self._times.clear()
            self._packed.clear()
        if not self._times or state.taken_at - self._times[-1] >= EVERY_S:
            self._times.append(state.taken_at)
            self._packed.append(zlib.compress(encode(state), 1))

    def before(self, at: float) -> Snapshot | None:
        """Return the newest state from before a time, else the oldest there is; None if there is none."""
        if not self._times:
            return None
        return self._unpacked(max(0, bisect_left(self._times, at) - 1))

    def after(self, at: float) -> Snapshot | None:
        """Return the oldest state from after a time; None if there is none."""
        index = bisect_right(self._times, at)
        return self._unpacked(index) if index < len(self._times) else None

    def _unpacked(self, index: int) -> Snapshot:
        return decode(zlib.decompress(self._packed[index]))
