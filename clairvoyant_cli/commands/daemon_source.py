"""A running daemon as the dashboard's source: its event stream in, its actions out."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.state.client import DEFAULT_URL, ControlClient, StateReader
from clairvoyant_cli.state.selection import Order
from clairvoyant_cli.state.snapshot import SCHEMA_VERSION, PolicyOutlook, QueuedRequest, Snapshot
from clairvoyant_cli.state.source import Action, ActionResult, Disconnected, Wish

ROWS = 300
"""Rows of the queue that are sent at a time: some screens of them. Of a long queue all would be megabytes."""

_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 5.0
MAX_ROWS = 200_000
"""Limit on the rows of the queue that are read, whatever a daemon sends."""

_SILENCE_S = 15.0
"""A daemon sends at least a state a second; one that is silent for this long is gone or hangs."""


class _Newest:
    """Holds the last event that has come in. Who takes it gets the newest and never the ones between, so
    an event that nobody looks at is never decoded.
    """

    def __init__(self) -> None:
        self._event: bytes | None = None
        self._reason = ""
        self._news = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Replace what nobody has taken."""
        self._event = event
        self._news.set()

    def end(self, reason: str) -> None:
        """Say that no more will come."""
        self._reason = reason
        self._news.set()

    async def take(self) -> bytes | str:
        """Return the newest event, or the reason why there will be none."""
        try:
            async with asyncio.timeout(_SILENCE_S):
                await self._news.wait()
        except TimeoutError:
            return f"no word from the daemon for {_SILENCE_S:.0f} s"
        if self._event is None:
            return self._reason
        event, self._event = self._event, None
        if not self._reason:
            self._news.clear()
        return event


class DaemonSource:
    """Attaches to a daemon, and attaches again when it comes back."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """`url` is where the daemon listens; ClairvoyantError if it is no http address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClairvoyantError(f"--url {url}: give an address like {DEFAULT_URL}", ExitCode.USAGE)
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.local = is_loopback(parts.hostname)
        self._token = token
        self._wish = Wish()
        self._states = StateReader()
        self._newest = _Newest()
        self._reader: asyncio.Task[None] | None = None

    async def stream(self) -> AsyncIterator[Snapshot | Disconnected]:
        """Yield the newest state; say so when the daemon is lost, and try again with growing pauses."""
        retry_s = _FIRST_RETRY_S
        while True:
            newest = self._newest = _Newest()
            self._reader = asyncio.create_task(self._read(newest))
            try:
                while isinstance(event := await newest.take(), bytes):
                    yield self._decoded(event)
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

    def look(self, wish: Wish) -> None:
        """Have sent what is wished from now on."""
        if wish != self._wish:
            self._wish = wish
            if self._reader is not None:
                self._reader.cancel()
                self._reader = asyncio.create_task(self._read(self._newest))

    async def act(self, action: Action) -> ActionResult:
        """Send an action; a refusal comes back as the daemon words it."""
        try:
            async with ControlClient(self.where, self._token) as client:
                await client.act(action.verb, action.body())
        except ClairvoyantError as error:
            return ActionResult(False, str(error))
        return ActionResult(True)

    async def outlook(self) -> tuple[PolicyOutlook, ...]:
        """Ask; a daemon that does not answer, or is too old to know, has none."""
        try:
            async with ControlClient(self.where, self._token) as client:
                return await client.outlook()
        except ClairvoyantError:
            return ()

    async def waiting(self, order: Order) -> tuple[QueuedRequest, ...]:
        """Ask for page after page; what moves meanwhile from one to another may be in none."""
        rows: dict[str, QueuedRequest] = {}
        try:
            async with ControlClient(self.where, self._token) as client:
                first, before = 1, -1
                while before < len(rows) <= MAX_ROWS:
                    before = len(rows)
                    page = (await client.snapshot(Wish(first, order=order))).queue
                    rows |= {row.id: row for row in page}
                    first += len(page)
        except ClairvoyantError:
            return ()
        return tuple(rows.values())

    async def past(self, before: float) -> bytes:
        """Ask; a daemon that does not answer, or is too old to keep any, has none."""
        try:
            async with ControlClient(self.where, self._token) as client:
                return await client.past(before)
        except ClairvoyantError:
            return b""

    async def _read(self, newest: _Newest) -> None:
        try:
            async with ControlClient(self.where, self._token) as client:
                async for event in client.events(self._wish, ROWS):
                    newest.put(event)
            newest.end("the daemon has closed the connection")
        except ClairvoyantError as error:
            newest.end(str(error))

    def _decoded(self, event: bytes) -> Snapshot:
        snapshot = self._states.read(event)
        if snapshot.schema > SCHEMA_VERSION:
            raise ClairvoyantError(
                f"the daemon speaks schema {snapshot.schema}, top reads {SCHEMA_VERSION}: upgrade clairvoyant"
            )
        return snapshot
