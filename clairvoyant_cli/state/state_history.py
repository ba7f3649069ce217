"""Keeps the last hour of states, compressed, for `top` to look back on.

The daemon keeps one; `top` keeps another of what it has seen, and puts the pages that it fetches before that.
A page is a minute of states. Its first state is complete; in the others `recent` and `log` hold only what is
new since the one before. Prompts are not kept.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from clairvoyant_cli.state.encoding import decode, encode, without_prompts
from clairvoyant_cli.state.snapshot import MAX_LOG, MAX_RECENT, Snapshot

EVERY_S = 5.0
SPAN_S = 3600.0
PAGE = 12
"""States of a page."""

MAX_BYTES = 8 << 20
"""Limit on the compressed states; with long queues and many clients they span less than an hour."""

_LEVEL = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    at: float
    opens_page: bool
    packed: bytes


class StateHistory:
    """States by time, the oldest page dropped first."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._entries: list[_Entry] = []
        self._last: Snapshot | None = None
        self._in_page = 0
        self._max_bytes = max_bytes

    @property
    def begins_at(self) -> float | None:
        """When the oldest state was taken; None if there is none."""
        return self._entries[0].at if self._entries else None

    @property
    def size(self) -> int:
        """Bytes of all compressed states."""
        return sum(len(each.packed) for each in self._entries)

    def record(self, state: Snapshot) -> None:
        """Keep a state if the last one is old enough. A clock that goes back starts a new history."""
        at, last = state.taken_at, self._last
        if last is not None and 0.0 <= at - last.taken_at < EVERY_S:
            return
        if last is not None and at < last.taken_at:
            self._entries.clear()
            last = None
        opens = last is None or last.pid != state.pid or self._in_page >= PAGE
        self._in_page = 1 if opens else self._in_page + 1
        self._entries.append(_entry(state if last is None or opens else _new_since(last, state), opens))
        self._last = state
        while (end := self._page_end(0)) < len(self._entries) and (
            self._entries[end - 1].at < at - SPAN_S or self.size > self._max_bytes
        ):
            del self._entries[:end]

    def before(self, at: float) -> Snapshot | None:
        """Return the newest state from before a time, else the oldest; None if there is none."""
        index = bisect_left(self._entries, at, key=lambda each: each.at) - 1
        return self._state(max(0, index)) if self._entries else None

    def after(self, at: float) -> Snapshot | None:
        """Return the oldest state from after a time; None if there is none."""
        index = bisect_right(self._entries, at, key=lambda each: each.at)
        return self._state(index) if index < len(self._entries) else None

    def page_before(self, at: float) -> bytes:
        """Return the newest page that begins before a time, a state a line; empty if there is none."""
        index = bisect_left(self._entries, at, key=lambda each: each.at) - 1
        if index < 0:
            return b""
        page = self._entries[self._page_start(index) : self._page_end(index)]
        return b"\n".join(zlib.decompress(each.packed) for each in page)

    def put_before(self, page: bytes) -> list[Snapshot]:
        """Put a fetched page before all others; return what is new of it. ClairvoyantError if it is none."""
        states = (decode(line) for line in page.splitlines())
        begins_at = self.begins_at
        older = [state for state in states if begins_at is None or state.taken_at < begins_at]
        now = self._entries[-1].at if self._entries else 0.0
        if not older or now - older[-1].taken_at > SPAN_S or self.size > self._max_bytes:
            return []
        self._entries[:0] = [_entry(state, opens_page=at == 0) for at, state in enumerate(older)]
        return older

    def _page_start(self, index: int) -> int:
        while not self._entries[index].opens_page:
            index -= 1
        return index

    def _page_end(self, index: int) -> int:
        following = range(index + 1, len(self._entries))
        return next((at for at in following if self._entries[at].opens_page), len(self._entries))

    def _state(self, index: int) -> Snapshot:
        states = [*self._decoded(self._page_start(index), index + 1)]
        recent = tuple(chain.from_iterable(each.recent for each in states))[-MAX_RECENT:]
        log = tuple(chain.from_iterable(each.log for each in states))[-MAX_LOG:]
        return replace(states[-1], recent=recent, log=log)

    def _decoded(self, start: int, end: int) -> Iterator[Snapshot]:
        return (decode(zlib.decompress(each.packed)) for each in self._entries[start:end])


def _entry(state: Snapshot, opens_page: bool) -> _Entry:
    return _Entry(state.taken_at, opens_page, zlib.compress(encode(without_prompts(state)), _LEVEL))


def _new_since(before: Snapshot, state: Snapshot) -> Snapshot:
    """Return a state with only the ended requests and log lines that the one before lacks."""
    ended, lines = {request.id for request in before.recent}, set(before.log)
    recent = tuple(request for request in state.recent if request.id not in ended)
    return replace(state, recent=recent, log=tuple(line for line in state.log if line not in lines))
