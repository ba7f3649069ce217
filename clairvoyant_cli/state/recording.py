"""Snapshots in a file, one JSON object a line: to look at yesterday's trouble with today's eyes.

Prompt text is never written.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from clairvoyant_cli.state.redaction import without_prompts
from clairvoyant_cli.state.selection import Order
from clairvoyant_cli.state.snapshot import SCHEMA_VERSION, PolicyOutlook, QueuedRequest, Snapshot
from clairvoyant_cli.state.source import Action, ActionResult, Disconnected, Source, Wish

_LONGEST_GAP_S = 5.0
_LONGEST_LINE = 16 << 20
_decoder = msgspec.json.Decoder(Snapshot)
_encoder = msgspec.json.Encoder()


class RecordingError(Exception):
    """A file that cannot be played; the message says why."""


def encode(snapshot: Snapshot) -> bytes:
    """Return a snapshot as one line of JSON, without prompts."""
    return _encoder.encode(without_prompts(snapshot))


def decode(line: bytes | str) -> Snapshot:
    """Read a snapshot; RecordingError if it is none, or comes from a later version than we can read."""
    try:
        snapshot = _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordingError(f"not a snapshot: {error}") from error
    if snapshot.schema > SCHEMA_VERSION:
        raise RecordingError(
            f"this state has schema {snapshot.schema}, this `top` reads {SCHEMA_VERSION}: upgrade clairvoyant"
        )
    return snapshot


class Recorder:
    """A source that also writes what it yields."""

    def __init__(self, source: Source, path: Path) -> None:
        """Open the file, for appending; OSError where that fails."""
        self.where = source.where
        self.local = source.local
        self._source = source
        self._file: IO[bytes] = path.open("ab")

    async def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        """Yield what the source yields; write the snapshots, until that fails, which is said once."""
        recording = True
        try:
            async for news in self._source.stream():
                if recording and isinstance(news, Snapshot):
                    try:
                        self._file.write(encode(news) + b"\n")
                        self._file.flush()
                    except OSError as error:
                        recording = False
                        yield Disconnected(f"cannot write {self._file.name}: {error.strerror}")
                yield news
        finally:
            with suppress(OSError):
                self._file.close()

    def look(self, wish: Wish) -> None:
        """Pass the wish on."""
        self._source.look(wish)

    async def outlook(self) -> tuple[PolicyOutlook, ...]:
        """Pass the question on."""
        return await self._source.outlook()

    async def waiting(self, order: Order) -> tuple[QueuedRequest, ...]:
        """Pass the question on."""
        return await self._source.waiting(order)

    async def past(self, before: float) -> bytes:
        """Pass the question on."""
        return await self._source.past(before)

    async def act(self, action: Action) -> ActionResult:
        """Pass the action on."""
        return await self._source.act(action)


class Replay:
    """A source that plays a recording at the pace it was made, with long gaps cut short."""

    local = False

    def __init__(self, path: Path) -> None:
        """Check that the file can be played; RecordingError if not."""
        self.where = path.name
        self._path = path
        next(self._snapshots(), None)

    async def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        """Yield the snapshots, then say that the recording is over."""
        before: float | None = None
        for snapshot in self._snapshots():
            if before is not None:
                await asyncio.sleep(min(_LONGEST_GAP_S, max(0.0, snapshot.taken_at - before)))
            before = snapshot.taken_at
            yield snapshot
        yield Disconnected("end of the recording")

    def look(self, wish: Wish) -> None:
        """Show what was recorded, which is all there is."""

    async def outlook(self) -> tuple[PolicyOutlook, ...]:
        """Say nothing of what might have been."""
        return ()

    async def waiting(self, order: Order) -> tuple[QueuedRequest, ...]:
        """Say nothing beyond what was recorded."""
        return ()

    async def past(self, before: float) -> bytes:
        """Say nothing of what was before the recording."""
        return b""

    async def act(self, action: Action) -> ActionResult:
        """Refuse: what is past is past."""
        return ActionResult(False, "a recording cannot be changed")

    def _snapshots(self) -> Iterator[Snapshot]:
        try:
            with self._path.open("rb") as file:
                empty = True
                for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), start=1):
                    if line.strip():
                        empty = False
                        yield self._read(number, line)
        except OSError as error:
            raise RecordingError(f"cannot read {self._path}: {error.strerror}") from error
        if empty:
            raise RecordingError(f"{self._path} holds no snapshots: record one with --record")

    def _read(self, number: int, line: bytes) -> Snapshot:
        try:
            return decode(line)
        except RecordingError as error:
            raise RecordingError(f"{self._path}, line {number}: {error}") from error
