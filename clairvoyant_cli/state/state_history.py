"""Keeps the last hour of states, compressed, for `top` to look back on.

The daemon keeps one; `top` keeps another of what it has seen, and puts the pages that it fetches before that.
A page is a minute of states. Its first state is complete; in the others `recent` and `log` hold only what is
new since the one before. Prompts are not kept.
"""

import zlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from clairvoyant_cli.state.encoding import decode, encode, without_prompts
from clairvoyant_cli.state.snapshot import MAX_LOG, MAX_RECENT, Snapshot

EVERY_S = 5.0
SPAN_S = 3600.0
PAGE = 12
"""States of a page."""

MAX_BYTES = 8 << 20
"""Limit on the compressed states; with long queues and many clients they span less than an hour."""

_LEVEL = 1


class _Entry(NamedTuple):
    at: float
    packed: bytes


class StateHistory:
    """States by time, the oldest page dropped first."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._pages: list[list[_Entry]] = []
        self._last: Snapshot | None = None
        self._max_bytes = max_bytes

    @property
    def begins_at(self) -> float | None:
        """When the oldest state was taken; None if there is none."""
        return self._pages[0][0].at if self._pages else None

    @property
    def size(self) -> int:
        """Bytes of all compressed states."""
        return sum(len(each.packed) for each in chain.from_iterable(self._pages))

    def record(self, state: Snapshot) -> None:
        """Keep a state if the last one is old enough. A clock that goes back starts a new history."""
        at, last = state.taken_at, self._last
        if last is not None and 0.0 <= at - last.taken_at < EVERY_S:
            return
        if last is not None and at < last.taken_at:
            self._pages.clear()
            last = None
        if last is None or last.pid != state.pid or len(self._pages[-1]) >= PAGE:
            self._pages.append([_entry(state)])
        else:
            self._pages[-1].append(_entry(_new_since(last, state)))
        self._last = state
        while len(self._pages) > 1 and (self._pages[0][-1].at < at - SPAN_S or self.size > self._max_bytes):
            del self._pages[0]

    def before(self, at: float) -> Snapshot | None:
        """Return the newest state from before a time, else the oldest; None if there is none."""
        for page in reversed(self._pages):
            earlier = [each for each in page if each.at < at]
            if earlier:
                return _state(earlier)
        return _state(self._pages[0][:1]) if self._pages else None

    def after(self, at: float) -> Snapshot | None:
        """Return the oldest state from after a time; None if there is none."""
        for page in self._pages:
            if page[-1].at > at:
                until = sum(each.at <= at for each in page)
                return _state(page[: until + 1])
        return None

    def page_before(self, at: float) -> bytes:
        """Return the newest page that begins before a time, a state a line; empty if there is none."""
        page = next((page for page in reversed(self._pages) if page[0].at < at), [])
        return b"\n".join(zlib.decompress(each.packed) for each in page)

    def put_before(self, page: bytes) -> list[Snapshot]:
        """Put a fetched page before all others; return what is new of it. ClairvoyantError if it is none."""
        states = (decode(line) for line in page.splitlines())
        begins_at = self.begins_at
        older = [state for state in states if begins_at is None or state.taken_at < begins_at]
        now = self._pages[-1][-1].at if self._pages else 0.0
        if not older or now - older[-1].taken_at > SPAN_S or self.size > self._max_bytes:
            return []
        self._pages.insert(0, [_entry(state) for state in older])
        return older


def _entry(state: Snapshot) -> _Entry:
    return _Entry(state.taken_at, zlib.compress(encode(without_prompts(state)), _LEVEL))


def _state(page: Iterable[_Entry]) -> Snapshot:
    """Return the last state of the beginning of a page, with what ended and was logged in all of them."""
    states = [decode(zlib.decompress(each.packed)) for each in page]
    recent = tuple(chain.from_iterable(each.recent for each in states))[-MAX_RECENT:]
    log = tuple(chain.from_iterable(each.log for each in states))[-MAX_LOG:]
    return replace(states[-1], recent=recent, log=log)


def _new_since(before: Snapshot, state: Snapshot) -> Snapshot:
    """Return a state with only the ended requests and log lines that the one before lacks."""
    ended, lines = {request.id for request in before.recent}, set(before.log)
    recent = tuple(request for request in state.recent if request.id not in ended)
    return replace(state, recent=recent, log=tuple(line for line in state.log if line not in lines))
