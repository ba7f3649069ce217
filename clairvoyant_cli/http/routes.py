"""Routes that are answered here, not by a server behind us: the control API, the page of `top --web`."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead, ResponseHead, reason_of
from clairvoyant_cli.http.request import Piece, Request

BODY_BYTES = 64 * 1024  # the largest body taken, unless a path has another limit
JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
TEXT = b"text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a whole body, or with one that is sent piece by piece."""

    body: bytes | AsyncIterator[bytes] = b""
    status: int = 200
    content_type: bytes = JSON
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and its body. `name` is what its path has behind that of a route that ends in a slash."""

    head: RequestHead
    body: bytes
    name: str = ""

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the query string; of several, the last."""
        return dict(parse_qsl(self.head.query.decode("latin-1"), keep_blank_values=True)).get(name, default)

    def cookies(self, prefix: str) -> list[str]:
        """Return the cookies whose names begin so. Other programs on this host have set theirs in any form,
        of which `http.cookies` would read none at all.
        """
        given = (self.head.get(b"cookie") or b"").decode("latin-1").split(";")
        named = (cookie.partition("=") for cookie in given)
        return [value.strip() for name, _, value in named if name.strip().startswith(prefix)]


Handler = Callable[[Asked], Awaitable[Answer]]
Guard = Callable[[RequestHead], Answer | None]
"""Returns the refusal of a request that may not be answered, before its body is read."""


def as_json(held: Any, status: int = 200, headers: tuple[Header, ...] = ()) -> Answer:
    return Answer(json.dumps(held).encode(), status, JSON, headers)


def _bare(status: int, *headers: Header) -> Answer:
    return Answer(reason_of(status), status, TEXT, headers)


class Routes:
    """Handlers by method and path, behind a guard. A path that ends in a slash takes a name behind it. HEAD
    is a GET.
    """

    def __init__(
        self,
        guard: Guard,
        gets: Mapping[str, Handler],
        posts: Mapping[str, Handler],
        body_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """`body_bytes` has the paths whose largest body is another than `BODY_BYTES`."""
        self._guard = guard
        self._body_bytes = body_bytes or {}
        self._handlers = {b"GET": gets, b"HEAD": gets, b"POST": posts}

    async def __call__(self, request: Request) -> None:
        """Answer one request."""
        if (refused := self._guard(request.head)) is not None:
            await send(request, refused)
            return
        pieces = await request.read(self._body_bytes.get(request.head.path, BODY_BYTES))
        await send(request, _bare(413) if pieces is None else await self._ask(request.head, pieces))

    async def _ask(self, head: RequestHead, pieces: Sequence[Piece]) -> Answer:
        folder, _, name = head.path.rpartition("/")
        for path, rest in ((head.path, ""), (f"{folder}/", name)):
            found = {method: paths[path] for method, paths in self._handlers.items() if path in paths}
            if head.method in found:
                return await found[head.method](Asked(head, b"".join(pieces), rest))
            if found:
                return _bare(405, (b"Allow", b", ".join(found)))
        return _bare(404)


async def send(request: Request, answer: Answer) -> None:
    """Send an answer; one that comes piece by piece waits while the client reads slowly."""
    connection, fields = request.connection, [(b"Content-Type", answer.content_type), *answer.headers]
    head = ResponseHead(answer.status, reason_of(answer.status), fields)
    if isinstance(answer.body, bytes):
        connection.respond(head, answer.body)
        return
    room = _Room()
    connection.fed_by(room)
    connection.send_head(head)
    async for piece in answer.body:
        await room.free.wait()
        connection.send_body(piece)
    connection.send_end([])


class _Room:
    """Lets a sender wait while the client reads slowly."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()

    def pause(self) -> None:
        self.free.clear()

    def resume(self) -> None:
        self.free.set()
