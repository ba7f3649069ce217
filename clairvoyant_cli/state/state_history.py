"""The hour behind: a state every few seconds, packed, to go back to. A daemon keeps one for whoever comes, a
screen another of what it has seen, before which it puts what it fetches.

Rule 1: states lie in pages of a minute. The first of a page is whole; the others tell of what has ended, and
of the log, only what is new since the one before, for a hundred states would say the same a hundred times.
Rule 2: no prompt text, as in a recording.
Rule 3: what is kept is bounded, in time and in bytes; the oldest goes first.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec

from clairvoyant_cli.state.recording import RecordingError, decode, encode
from clairvoyant_cli.state.snapshot import MAX_LOG, MAX_RECENT, FinishedRequest, LogEvent, Snapshot

EVERY_S = 5.0
SPAN_S = 3600.0
PAGE = 12
"""States of a page: a minute of them."""

MAX_BYTES = 8 << 20
"""What a past may take; where thousands wait and hundreds of clients ask, it reaches back less far then."""

_LEVEL = 1


@dataclass(frozen=True, slots=True)
class _Told:
    """Of a line, when it was and what a page tells but once."""

    taken_at: float
    recent: tuple[FinishedRequest, ...] = ()
    log: tuple[LogEvent, ...] = ()


_told = msgspec.json.Decoder(_Told).decode


@dataclass(slots=True)
class Page:
    """States that follow each other, by their times, packed: a line each."""

    times: list[float] = field(default_factory=list)
    _packed: bytearray = field(default_factory=bytearray)
    _packer: Any = None

    @property
    def size(self) -> int:
        """Bytes that it takes, roughly."""
        return len(self._packed)

    def add(self, at: float, line: bytes) -> None:
        """Put a line after the others."""
        if self._packer is None:
            self._packer = zlib.compressobj(_LEVEL)
        self.times.append(at)
        self._packed += self._packer.compress(line + b"\n")

    def close(self) -> None:
        """Take nothing more."""
        if self._packer is not None:
            self._packed += self._packer.flush()
            self._packer = None

    def lines(self) -> list[bytes]:
        """Return the lines."""
        packed = bytes(self._packed)
        if self._packer is not None:
            packed += self._packer.copy().flush()
        return zlib.decompress(packed).splitlines() if packed else []


class Past:
    """Pages by their time, the oldest first."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._pages: deque[Page] = deque()
        self._before: Snapshot | None = None
        self._opened: tuple[Page, list[bytes]] | None = None
        self._max_bytes = max_bytes

    @property
    def begins_at(self) -> float | None:
        """When the oldest state was taken; None where there is none."""
        return self._pages[0].times[0] if self._pages else None

    @property
    def size(self) -> int:
        """Bytes that the pages take."""
        return sum(page.size for page in self._pages)

    def is_due(self, at: float) -> bool:
        """Whether the last state that was kept is old enough for another, or later than that."""
        last_at = self._pages[-1].times[-1] if self._pages else None
        return last_at is None or at - last_at >= EVERY_S or at < last_at

    def take(self, state: Snapshot) -> None:
        """Keep a state, if it is due. Times that go back start anew."""
        at = state.taken_at
        if not self.is_due(at):
            return
        if self._pages and at < self._pages[-1].times[-1]:
            self._pages.clear()
        page = self._pages[-1] if self._pages else None
        before = self._before
        if page is None or before is None or len(page.times) >= PAGE or state.pid != before.pid:
            if page is not None:
                page.close()
            page, before = Page(), None
            self._pages.append(page)
        page.add(at, encode(state if before is None else _since(before, state)))
        self._before = state
        self._opened = None
        while len(self._pages) > 1 and (
            self._pages[0].times[-1] < at - SPAN_S or self.size > self._max_bytes
        ):
            self._pages.popleft()

    def before(self, at: float) -> Snapshot | None:
        """Return the newest state from before a time, else the oldest there is; None if there is none."""
        every = [*chain.from_iterable(page.times for page in self._pages)]
        return self._state(every[max(0, bisect_left(every, at) - 1)]) if every else None

    def after(self, at: float) -> Snapshot | None:
        """Return the oldest state from after a time; None if there is none."""
        every = [*chain.from_iterable(page.times for page in self._pages)]
        index = bisect_right(every, at)
        return self._state(every[index]) if index < len(every) else None

    def page_before(self, at: float) -> bytes:
        """Return the lines of the newest page that begins before a time; none where there is no such page."""
        pages = (page for page in reversed(self._pages) if page.times[0] < at)
        page = next(pages, None)
        return b"" if page is None else b"\n".join(page.lines())

    def put_before(self, lines: bytes) -> bool:
        """Put a fetched page before all others, as far as it is older; say whether any of it is, and fits in.
        RecordingError if it is none.
        """
        page, begins_at = Page(), self.begins_at
        for line in lines.splitlines():
            at = _read(line).taken_at
            if begins_at is not None and at >= begins_at:
                break
            page.add(at, line)
        page.close()
        if not page.times or (self._pages and not self._may_keep(page.times[-1], self._pages[-1].times[-1])):
            return False
        self._pages.appendleft(page)
        return True

    def _may_keep(self, at: float, now: float) -> bool:
        return now - at <= SPAN_S and self.size <= self._max_bytes

    def _state(self, at: float) -> Snapshot:
        page = next(page for page in self._pages if page.times[-1] >= at)
        if self._opened is None or self._opened[0] is not page:
            self._opened = page, page.lines()
        lines = self._opened[1][: page.times.index(at) + 1]
        told = [_read(line) for line in lines]
        recent = tuple(chain.from_iterable(each.recent for each in told))[-MAX_RECENT:]
        log = tuple(chain.from_iterable(each.log for each in told))[-MAX_LOG:]
        return replace(decode(lines[-1]), recent=recent, log=log)


def _since(before: Snapshot, state: Snapshot) -> Snapshot:
    """Return a state with what it tells beyond the one before."""
    ended, said = {request.id for request in before.recent}, set(before.log)
    recent = tuple(request for request in state.recent if request.id not in ended)
    return replace(state, recent=recent, log=tuple(line for line in state.log if line not in said))


def _read(line: bytes) -> _Told:
    try:
        return _told(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordingError(f"not a state: {error}") from error
