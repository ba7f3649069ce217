"""Connects the screen to a daemon: its event stream in, the operator's actions out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.state.actions import Action
from clairvoyant_cli.state.client import DEFAULT_URL, ControlClient
from clairvoyant_cli.state.encoding import StateReader
from clairvoyant_cli.state.snapshot import PolicyOutlook, Snapshot

EVERY_S = 0.25
"""Default interval between two states on the screen."""

_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 5.0

_SILENCE_S = 15.0
"""A daemon sends at least one state a second; after this long without any it is lost."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The daemon cannot be reached; the source keeps retrying."""

    reason: str
    retry_in_s: float | None = None


class _Newest:
    """Holds the newest event. Events that nobody takes are never decoded."""

    def __init__(self) -> None:
        self._event: bytes | None = None
        self._reason = ""
        self._news = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Replace the event."""
        self._event = event
        self._news.set()

    def end(self, reason: str) -> None:
        """Say why no more events will come."""
        self._reason = reason
        self._news.set()

    async def take(self) -> bytes | str:
        """Return the newest event, or the reason why there will be none."""
        try:
            async with asyncio.timeout(_SILENCE_S):
                await self._news.wait()
        except TimeoutError:
            return f"the daemon has sent nothing for {_SILENCE_S:.0f} s"
        if self._event is None:
            return self._reason
        event, self._event = self._event, None
        if not self._reason:
            self._news.clear()
        return event


class DaemonSource:
    """Attaches to a running daemon, and reconnects with growing pauses when it is lost. `where` is its
    address for the header, `local` tells whether it runs on this machine.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        """`url` is the daemon's address; ClairvoyantError if it is no http address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClairvoyantError(f"--url {url}: give an address like {DEFAULT_URL}", ExitCode.USAGE)
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.local = is_loopback(parts.hostname)
        self._token = token
        self._every_s = EVERY_S
        self._states = StateReader()
        self._newest = _Newest()
        self._reader: asyncio.Task[None] | None = None

    async def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        """Yield the newest state each time one is asked for, or that the daemon is lost."""
        retry_s = _FIRST_RETRY_S
        while True:
            newest = self._newest = _Newest()
            self._reader = asyncio.create_task(self._read(newest))
            try:
                while isinstance(event := await newest.take(), bytes):
                    yield self._states.read(event)
                    retry_s = _FIRST_RETRY_S
                reason = event
            except ClairvoyantError as error:
                reason = str(error)
            finally:
                self._reader.cancel()
                self._reader = None
            yield Disconnected(reason, retry_s)
            await asyncio.sleep(retry_s)
            retry_s = min(_LAST_RETRY_S, retry_s * 2)

    def pace(self, every_s: float) -> None:
        """Set the least interval between two states, in seconds."""
        self._every_s = every_s
        if self._reader is not None:
            self._reader.cancel()
            self._reader = asyncio.create_task(self._read(self._newest))

    async def act(self, action: Action) -> str:
        """Send an action; return why it was refused, "" if it was not. Never raises."""
        try:
            async with self._client() as client:
                await client.act(action.verb, action.body())
        except ClairvoyantError as error:
            return str(error)
        return ""

    async def outlook(self) -> tuple[PolicyOutlook, ...]:
        """Return when the queue would start under each policy; empty if the daemon does not answer."""
        with suppress(ClairvoyantError):
            async with self._client() as client:
                return await client.outlook()
        return ()

    async def past(self, before: float) -> bytes:
        """Return the newest page of the daemon's `StateHistory` that begins before a time, in epoch seconds;
        empty if there is none, or the daemon does not answer.
        """
        with suppress(ClairvoyantError):
            async with self._client() as client:
                return await client.past(before)
        return b""

    def _client(self) -> ControlClient:
        return ControlClient(self.where, self._token)

    async def _read(self, newest: _Newest) -> None:
        try:
            async with self._client() as client:
                async for event in client.events(self._every_s):
                    newest.put(event)
            newest.end("the daemon has closed the connection")
        except ClairvoyantError as error:
            newest.end(str(error))
