"""The daemon's state over the wire: how it is written, and the client that reads it and acts."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints
from urllib.parse import urlencode, urlsplit

import msgspec

from clairvoyant_cli.addresses import DEFAULT_PORT, check_url
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import read_file, text_of
from clairvoyant_cli.http.own_requests import arriving, collect
from clairvoyant_cli.http.upstream import Upstream, UpstreamError
from clairvoyant_cli.state.snapshot import FinishedRequest, PolicyOutlook, Snapshot
from clairvoyant_cli.state.source import Verb, Wish
from clairvoyant_cli.system import is_alive

PREFIX = "/_clairvoyant"
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
TOKEN_VARIABLE = "CLAIRVOYANT_ADMIN_TOKEN"  # noqa: S105 - the variable's name

PATIENCE_S = 30.0
"""A daemon answers at once; one that has not by then hangs, or is none."""

MAX_ANSWER_BYTES = 16 << 20
"""Of a state, of which a daemon sends a thousand rows of its queue at most, a few megabytes."""

ACTIONS = tuple(verb.value for verb in Verb)

BODIES = {
    Verb.CANCEL: ('{"id": REQUEST}', "End a request that waits or runs."),
    Verb.PROMOTE: ('{"id": REQUEST}', "Send a waiting request next."),
    Verb.HOLD: ('{"id": REQUEST}', "Let a waiting request wait on."),
    Verb.RELEASE: ('{"id": REQUEST}', "Let a held request go by its place again."),
    Verb.PRIORITY: ('{"id": REQUEST, "priority": -100 to 100}', "Change its priority; lower is sooner."),
    Verb.URGENCY: ('{"id": REQUEST, "level": 0 to 4}', "Change its level of urgency, also while it runs."),
    Verb.PAUSE: ("{}", "Start nothing; what comes waits."),
    Verb.RESUME: ("{}", "Start again, after a pause or a drain."),
    Verb.DRAIN: ("{}", "Take nothing new; what waits and runs is finished."),
    Verb.POLICY: ('{"policy": NAME}', "Order what waits by another policy."),
    Verb.TAU: (
        '{"tau_s": 0 to 86400, or "auto"}',
        "Set the starvation timeout, 0 for none; `auto`: a flag's, or what was measured and learned.",
    ),
    Verb.RELOAD: ("{}", "Read the clients' file again."),
    Verb.BACKEND: (
        '{"do": "drain", "up" or "remove", "name": SERVER}, or {"do": "add", "url": URL, ...}',
        "Change the servers; one to add has the keys of `[[backends]]`, but `key` in place of `key_file`.",
    ),
}
"""What each action takes as its JSON body, and does."""

AUTO = "auto"
"""In place of tau's seconds: what a flag said, or what was measured and learned, holds again."""

Read = TypeVar("Read")

encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Snapshot)


def decode(data: bytes) -> Snapshot:
    """Read a snapshot; ClairvoyantError if the daemon speaks another version of it."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ClairvoyantError(f"the daemon's state cannot be read ({error}); use the same version") from None


class StateReader:
    """Reads states that follow each other. Of one, what stands there as it stood in the one before is the
    same object again, and is not read: an ended request is sent a hundred times, and read once.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[bytes, Any]] = {}
        self._ended: dict[bytes, FinishedRequest] = {}

    def read(self, data: bytes) -> Snapshot:
        """Read a state; ClairvoyantError as in `decode`."""
        try:
            parts = {name: self._part(name, raw) for name, raw in _cut(data).items() if name in _READERS}
            return Snapshot(**parts)
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
            return decode(data)  # which says what is wrong

    def _part(self, name: str, raw: msgspec.Raw) -> Any:
        known, data = self._parts.get(name), bytes(raw)
        if known is None or known[0] != data:
            read = self._recent if name == "recent" else _READERS[name]
            known = self._parts[name] = data, read(data)
        return known[1]

    def _recent(self, data: bytes) -> tuple[FinishedRequest, ...]:
        known = self._ended
        rows = [bytes(raw) for raw in _cut_rows(data)]
        self._ended = {row: known.get(row) or _ended(row) for row in rows}
        return tuple(self._ended[row] for row in rows)


_cut = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_cut_rows = msgspec.json.Decoder(list[msgspec.Raw]).decode
_ended = msgspec.json.Decoder(FinishedRequest).decode
_READERS = {name: msgspec.json.Decoder(kind).decode for name, kind in get_type_hints(Snapshot).items()}


@dataclass(frozen=True, slots=True)
class Word:
    """What a running daemon leaves for the commands of its own account, in a file that nobody else can read.

    `token` is the admin token that it made for this run; None if it was given one, which stays where it is.
    """

    url: str
    pid: int
    token: str | None = None


ALL_STATES = Wish(every_s=0.0)


def _window(wish: Wish) -> dict[str, str | int]:
    order = wish.order
    kind, name = order.group
    asked = {"by": order.by, "filter": order.filter, "kind": kind, "name": name}
    given = {key: value for key, value in asked.items() if value} | (
        {"reverse": "1"} if order.reverse else {}
    )
    return {"from": wish.first, "every_ms": round(wish.every_s * 1e3)} | given


class ControlClient:
    """Reads a daemon's state and asks it to act. Use as an async context manager."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """`token` is the admin token; without one, that of a daemon that this account runs is found."""
        self.url = url.rstrip("/")
        self.token = token or None
        if not token:
            self.url, self.token = as_its_owner(self.url)
        self._upstream = Upstream(self.url)
        self._prefix = urlsplit(self.url).path + PREFIX
        self._headers = [(b"Accept-Encoding", b"identity")]
        if self.token is not None:
            if not self.token.isprintable():
                raise ClairvoyantError("the admin token is no text of one line", ExitCode.USAGE)
            self._headers.append((b"Authorization", b"Bearer " + self.token.encode()))

    async def __aenter__(self) -> "ControlClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._upstream.close()

    async def snapshot(self, wish: Wish = ALL_STATES) -> Snapshot:
        """Return the state as it is now, with the queue's rows that are wished for."""
        return decode(
            await self._ask("/state" if wish == ALL_STATES else f"/state?{urlencode(_window(wish))}")
        )

    async def stream(self) -> AsyncIterator[Snapshot]:
        """Yield the state now and whenever it changes, until the daemon goes."""
        async for event in self.events():
            yield decode(event)

    async def events(self, wish: Wish = ALL_STATES, rows: int | None = None) -> AsyncIterator[bytes]:
        """Yield what `stream` yields, not decoded: for a reader that skips states it has no time for. Of the
        queue, up to `rows` rows are sent, if it is said how many.
        """
        window = urlencode(_window(wish) | ({} if rows is None else {"rows": rows}))
        try:
            asked = arriving(self._upstream, f"{self._prefix}/events?{window}", self._headers)
            async with asked as (head, pieces):
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

    async def outlook(self) -> tuple[PolicyOutlook, ...]:
        """Return when what waits now would start under each policy."""
        return self._read(await self._ask("/outlook"), tuple[PolicyOutlook, ...])

    async def past(self, before: float) -> bytes:
        """Return the newest page of the daemon's past that begins before a time, in epoch seconds; none where
        there is none. See `clairvoyant_cli.state.state_history`.
        """
        return await self._ask(f"/past?before={before!r}")

    async def act(self, action: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask for an action; ClairvoyantError with the daemon's reason if it is refused."""
        answer = await self._ask(f"/actions/{action}", dict(arguments or {}))
        return self._read(answer, dict[str, Any])

    async def _ask(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        sent = None if body is None else encode(body)
        try:
            async with asyncio.timeout(PATIENCE_S):
                target = self._prefix + path
                answer = await collect(self._upstream, target, self._headers, sent, MAX_ANSWER_BYTES)
        except TimeoutError:
            raise self._unreachable(f"nothing within {PATIENCE_S:.0f} s") from None
        except UpstreamError as error:
            raise self._unreachable(str(error)) from None
        text = answer.text or b""
        if len(text) > MAX_ANSWER_BYTES:
            raise self._too_long()
        if answer.begun.status >= 400:
            raise self._refused(answer.begun.status, text)
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
            message = msgspec.json.decode(answer, type=dict[str, Any])["error"]
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            if status == 404:
                message = "this is not a clairvoyant daemon; name one with --url"
            else:
                message = f"HTTP {status}"
        return ClairvoyantError(f"{self.url}: {message}")


def local_url(named: str | None) -> str:
    """Return the URL of the daemon to talk to: the one named, the one last started here, or the default."""
    if named is not None:
        check_url(named, DEFAULT_URL)
        return named if "://" in named else f"http://{named}"
    return next((word.url for word in _words()), DEFAULT_URL)


def own_daemons() -> list[str]:
    """Return where the daemons listen that this account runs, the newest first."""
    return [word.url for word in _words()]


def _words() -> list[Word]:
    """Return the words of the daemons that this account runs, the newest first."""
    found: list[Word] = []
    with suppress(OSError):
        paths = sorted(state_dir().glob("daemon-*.json"), key=lambda path: path.stat().st_mtime)
        for path in reversed(paths):
            # A daemon that was killed leaves its word behind; one whose process is gone does not count.
            with suppress(OSError, ValueError, OverflowError, RecursionError):
                word = msgspec.json.decode(path.read_bytes(), type=Word)
                if is_alive(word.pid):
                    found.append(word)
    return found


def as_its_owner(url: str) -> tuple[str, str | None]:
    """Return where to ask a daemon and its token for this run, if it is one that this account runs."""
    place = _place(url)
    for word in _words():
        if word.token is not None and place is not None and place == _place(word.url):
            # Asked at the address that it has: under another name of it somebody else might get the token.
            return word.url, word.token
    return url, None


def _place(url: str) -> tuple[str, int] | None:
    """Return the host and port of a daemon's own URL, None if it is none; `localhost` is where we listen."""
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
    """Where running daemons leave word of themselves, and where what is to last is kept."""
    from platformdirs import user_state_path

    return user_state_path("clairvoyant", appauthor=False)
