"""A small ASGI server on the proxy's own connections, for the control API's Starlette app."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from clairvoyant_cli.http.heads import ResponseHead, reason_of
from clairvoyant_cli.http.request import Request

Message = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

CONTROL_BODY_BYTES = 64 * 1024


async def serve_asgi(app: App, request: Request) -> None:
    """Answer one request with an ASGI application."""
    pieces = await request.read(CONTROL_BODY_BYTES)
    connection = request.connection
    if pieces is None:
        connection.respond(ResponseHead(413, reason_of(413)), b"")
        return
    given: asyncio.Queue[Message] = asyncio.Queue()
    given.put_nowait({"type": "http.request", "body": b"".join(pieces), "more_body": False})
    room = _Room()
    connection.fed_by(room)

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = list(message["headers"])
            length = next((int(value) for name, value in headers if name == b"content-length"), None)
            connection.send_head(ResponseHead(status, reason_of(status), headers, length=length))
        elif message["type"] == "http.response.body":
            await room.free.wait()
            data = message.get("body", b"")
            connection.send_body(data)
            if not message.get("more_body", False):
                connection.send_end([])

    path, _, query = request.head.origin_form.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.head.method.decode(),
        "scheme": "http",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value.strip()) for name, value in request.head.headers],
        "client": (connection.peer, 0),
        "server": None,
    }
    await app(scope, given.get, send)


class _Room:
    """Lets a sender wait while the client reads slowly."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()

    def pause(self) -> None:
        self.free.clear()

    def resume(self) -> None:
        self.free.set()
