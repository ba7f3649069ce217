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
from clairvoyant_cli.state.encoding import decode
from clairvoyant_cli.state.last_day import LastDay
from clairvoyant_cli.state.snapshot import Snapshot

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


class DaemonSource:
    """Attaches to a running daemon, and reconnects with growing pauses when it is lost. `where` is its
    address for the header, `local` tells whether it runs on this machine; `every_s` is the least interval
    between two states.
    """

    def __init__(self, url: str, token: str | None = None, every_s: float = EVERY_S) -> None:
        """`url` is the daemon's address; ClairvoyantError if it is no http address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClairvoyantError(f"--url {url}: give an address like {DEFAULT_URL}", ExitCode.USAGE)
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.local = is_loopback(parts.hostname)
        self._token, self._every_s = token, every_s

    async def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        """Yield the newest state each time one is asked for, or that the daemon is lost."""
        retry_s = _FIRST_RETRY_S
        while True:
            news: asyncio.Queue[bytes | str] = asyncio.Queue()
            reader = asyncio.create_task(self._read(news))
            try:
                while isinstance(event := await _next(news), bytes):
                    yield decode(event)
                    retry_s = _FIRST_RETRY_S
                reason = event
            except TimeoutError:
                reason = f"the daemon has sent nothing for {_SILENCE_S:.0f} s"
            except ClairvoyantError as error:
                reason = str(error)
            finally:
                reader.cancel()
            yield Disconnected(reason)
            await asyncio.sleep(retry_s)
            retry_s = min(_LAST_RETRY_S, retry_s * 2)

    async def snapshot(self) -> Snapshot:
        """Return the state now; ClairvoyantError if the daemon does not answer."""
        async with self._client() as client:
            return await client.snapshot()

    async def act(self, action: Action) -> str:
        """Send an action; return why it was refused, "" if it was not. Never raises."""
        try:
            async with self._client() as client:
                await client.act(action.verb, action.body())
        except ClairvoyantError as error:
            return str(error)
        return ""

    async def last_day(self) -> LastDay:
        """Return the last 24 hours; ClairvoyantError if the daemon does not answer, or records nothing."""
        async with self._client() as client:
            return await client.last_day()

    async def past(self, before: float) -> bytes:
        """Return the newest page of the daemon's history before an epoch time; empty if there is none."""
        with suppress(ClairvoyantError):
            async with self._client() as client:
                return await client.past(before)
        return b""

    def _client(self) -> ControlClient:
        return ControlClient(self.where, self._token)

    async def _read(self, news: asyncio.Queue[bytes | str]) -> None:
        """Put the newest event, at last the reason why no more will come."""
        reason = "the daemon has closed the connection"
        try:
            async with self._client() as client:
                async for event in client.events(self._every_s):
                    while not news.empty():  # nobody took it, and it is not decoded
                        news.get_nowait()
                    news.put_nowait(event)
        except ClairvoyantError as error:
            reason = str(error)
        news.put_nowait(reason)


async def _next(news: asyncio.Queue[bytes | str]) -> bytes | str:
    # Not `wait_for`: until Python 3.12 it loses a cancellation that comes with the news.
    async with asyncio.timeout(_SILENCE_S):
        return await news.get()
