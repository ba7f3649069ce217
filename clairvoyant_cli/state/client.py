"""Finds running daemons, reads their state, and asks them to act."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from clairvoyant_cli.addresses import DEFAULT_PORT, check_url
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import read_file, text_of
from clairvoyant_cli.http.own_requests import arriving, collect
from clairvoyant_cli.http.upstream import Upstream, UpstreamError
from clairvoyant_cli.state.encoding import decode, encode
from clairvoyant_cli.state.last_day import LastDay
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import process_start

PREFIX = "/_clairvoyant"
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
TOKEN_VARIABLE = "CLAIRVOYANT_ADMIN_TOKEN"  # noqa: S105 - the variable's name

READ_TIMEOUT_S, ACTION_TIMEOUT_S = 5.0, 30.0
QUIET_S = 2.0
"""After this long without an answer, commands say what they wait for."""

MAX_ANSWER_BYTES = 16 << 20
"""A state has at most 1,024 rows of the queue: a few megabytes."""

Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """What a daemon writes for other commands, into a file that only its account can read. `token` is the
    admin token made for this run; None if the operator gave one. `started` is its `process_start`.
    """

    url: str
    pid: int
    token: str | None = None
    started: float = 0.0  # 0 in the file of an earlier version


class _Health(msgspec.Struct):
    """What a daemon tells everybody of itself: its mode, and the state of each server."""

    status: str
    backends: dict[str, str] = {}


class ControlClient:
    """Reads a daemon's state and asks it to act. Use as an async context manager."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """`token` is the admin token; without one, that of a daemon of this account is looked up."""
        self.url = url.rstrip("/")
        self.token = token or None
        if not token:
            self.url, self.token = as_its_owner(self.url)
        self._upstream = Upstream(self.url)
        self._prefix = urlsplit(self.url).path + PREFIX
        self._headers = [(b"Accept-Encoding", b"identity")]
        if self.token is not None:
            if not self.token.isprintable():
                raise ClairvoyantError("the admin token must be one line of text", ExitCode.USAGE)
            self._headers.append((b"Authorization", b"Bearer " + self.token.encode()))

    async def __aenter__(self) -> "ControlClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._upstream.close()

    async def snapshot(self) -> Snapshot:
        return decode(await self._ask("/state"))

    async def mode(self) -> str:
        """Return "serving", "paused" or "draining"; any client may ask."""
        return (await self._health()).status

    async def is_up(self) -> bool:
        """Return whether requests are accepted and a server is up; any client may ask."""
        health = await self._health()
        return health.status != "draining" and not {"down", "loading"}.issuperset(health.backends.values())

    async def _health(self) -> "_Health":
        return self._read(await self._ask("/health"), _Health)

    async def stream(self) -> AsyncIterator[Snapshot]:
        """Yield the state now and whenever it changes, until the daemon goes."""
        async for event in self.events():
            yield decode(event)

    def events(self, every_s: float = 0.0) -> AsyncGenerator[bytes, None]:
        """Yield the states of `stream`, encoded, at least `every_s` seconds apart."""
        return self._events(f"/events?every_ms={every_s * 1e3:.0f}")

    def replace(self, wanted: bytes) -> AsyncGenerator[bytes, None]:
        """Have the daemon hand over its place, and yield what it tells of that (`proxy.handover`)."""
        return self._events("/replace", wanted)

    async def _events(self, path: str, body: bytes | None = None) -> AsyncGenerator[bytes, None]:
        try:
            async with arriving(self._upstream, self._prefix + path, self._headers, body) as (head, pieces):
                rest = bytearray()
                async for piece in pieces:
                    if len(rest) > MAX_ANSWER_BYTES:
                        raise self._too_long()
                    begin = max(0, len(rest) - 1)  # where an event's end may have begun
                    rest += piece
                    if head.status != 200:
                        continue
                    while (end := rest.find(b"\n\n", begin)) >= 0:
                        _, found, data = rest[:end].partition(b"data: ")
                        del rest[: end + 2]
                        begin = 0
                        if found:
                            yield bytes(data)
                if head.status != 200:
                    raise self._refused(head.status, bytes(rest))
        except UpstreamError as error:
            raise self._unreachable(str(error)) from None

    async def last_day(self) -> LastDay:
        """Return what happened in the last 24 hours; ClairvoyantError if the daemon records nothing."""
        return self._read(await self._ask("/last-day"), LastDay)

    async def past(self, before: float) -> bytes:
        """Return the newest page of the daemon's `StateHistory` before an epoch time; empty if none."""
        return await self._ask(f"/past?before={before!r}")

    async def act(self, action: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask for an action; ClairvoyantError with the daemon's reason if it is refused."""
        answer = await self._ask(f"/actions/{action}", dict(arguments or {}))
        return self._read(answer, dict[str, Any])

    async def _ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        timeout_s = READ_TIMEOUT_S if body is None else ACTION_TIMEOUT_S
        sent = None if body is None else encode(body)
        try:
            async with asyncio.timeout(timeout_s):
                target = self._prefix + path
                head, text = await collect(self._upstream, target, self._headers, sent, MAX_ANSWER_BYTES)
        except TimeoutError:
            raise ClairvoyantError(
                f"the daemon at {self.url} has not answered for {timeout_s:.0f} s; it may be stopped or "
                "overloaded",
                ExitCode.UNREACHABLE,
            ) from None
        except UpstreamError as error:
            raise self._unreachable(str(error)) from None
        text = text or b""
        if len(text) > MAX_ANSWER_BYTES:
            raise self._too_long()
        if head.status >= 400:
            raise self._refused(head.status, text)
        return text

    def _read(self, answer: bytes, kind: type[Read]) -> Read:
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.DecodeError, ValueError, RecursionError):
            raise ClairvoyantError(f"{self.url} does not answer as a clairvoyant daemon does") from None

    def _too_long(self) -> ClairvoyantError:
        most = f"{MAX_ANSWER_BYTES >> 20} MiB"
        return ClairvoyantError(
            f"{self.url} answers with more than {most}; name a clairvoyant daemon with --url"
        )

    def _unreachable(self, why: str) -> ClairvoyantError:
        return ClairvoyantError(
            f"no daemon answers at {self.url} ({why}); start one with: clairvoyant serve",
            ExitCode.UNREACHABLE,
        )

    def _refused(self, status: int, answer: bytes) -> ClairvoyantError:
        try:
            why = msgspec.json.decode(answer, type=dict[str, Any])["error"]
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            why = (
                "this is not a clairvoyant daemon; name one with --url" if status == 404 else f"HTTP {status}"
            )
            return ClairvoyantError(f"{self.url}: {why}")
        code = ExitCode.USAGE if status in (400, 404, 422) else ExitCode.FAILURE
        return ClairvoyantError(f"the daemon refused it: {why}", code)


def ask_daemon(
    url: str | None, token_file: Path | None, ask: Callable[[ControlClient], Awaitable[Read]]
) -> Read:
    """Ask the daemon that a command's options name; say on stderr that it does not answer yet."""

    async def run() -> Read:
        async with ControlClient(daemon_url(url), admin_token(token_file)) as client:
            told = f"waiting for the daemon at {client.url} to answer\n"
            late = asyncio.get_running_loop().call_later(QUIET_S, sys.stderr.write, told)
            try:
                return await ask(client)
            finally:
                late.cancel()

    return asyncio.run(run())


def daemon_url(named: str | None) -> str:
    """Return the daemon's URL: the one named, that of the one last started here, or the default."""
    if named is not None:
        check_url(named, DEFAULT_URL)
        return named if "://" in named else f"http://{named}"
    return next((daemon.url for daemon in running_daemons()), DEFAULT_URL)


def running_daemons() -> list[RunningDaemon]:
    """Return the daemons that this account runs, the newest first."""
    found: list[RunningDaemon] = []
    with suppress(OSError):
        paths = sorted(state_dir().glob("daemon-*.json"), key=lambda path: path.stat().st_mtime)
        for path in reversed(paths):
            # A killed daemon leaves its file behind, and another program may get its number.
            with suppress(OSError, ValueError, OverflowError, RecursionError):
                daemon = msgspec.json.decode(path.read_bytes(), type=RunningDaemon)
                started = process_start(daemon.pid)
                if started and daemon.started in (0.0, started):
                    found.append(daemon)
    return found


def as_its_owner(url: str) -> tuple[str, str | None]:
    """Return a daemon's URL and its token for this run, if this account runs it."""
    place = _place(url)
    for daemon in running_daemons():
        if daemon.token is not None and place is not None and place == _place(daemon.url):
            # Under another name of the address somebody else might get the token.
            return daemon.url, daemon.token
    return url, None


def _place(url: str) -> tuple[str, int] | None:
    """Return the host and port of a daemon's URL; None if it has a path or is not http."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        return None
    if parts.scheme != "http" or host is None or parts.path not in ("", "/"):
        return None
    return ("127.0.0.1" if host == "localhost" else host), port


def admin_token(file: Path | None) -> str | None:
    """Return the admin token from a file or the environment."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE)
    return text_of(read_file(file, "the admin token"), file, "the admin token").strip()


def state_dir() -> Path:
    """The folder of running daemons' files and of everything that is kept."""
    from platformdirs import user_state_path

    return user_state_path("clairvoyant", appauthor=False)
