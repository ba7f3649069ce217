"""An ASGI application on a socket of its own, inside the event loop that is already running."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

STOP_GRACE_S = 0
"""Answers still running when the server stops are cut off at once, as a killed server cuts them."""


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that leaves the process's signals alone and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.stopping = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Serve until told to stop; uvicorn looks ten times a second, each time a step in virtual time."""
        await self.on_tick(0)
        await self.stopping.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: the program around this server owns the signals."""
        yield


@asynccontextmanager
async def serve_app(app: ASGIApp, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve the application until the block ends and yield its base URL; port 0 takes a free one."""
    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        log_level="critical",  # an answer told to die raises: that is no news to anyone
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=STOP_GRACE_S,
    )
    server = EmbeddedServer(config)
    listener = socket.create_server((host, port), backlog=2048)
    # Its connections inherit this. asyncio sets it only where a socket names its protocol, and this one
    # does not: the end of an answer would wait for the acknowledgement of what came before.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        address: tuple[str, int] = listener.getsockname()[:2]
        serving = asyncio.create_task(server.serve([listener]))
        await server.listening.wait()
        try:
            yield f"http://{address[0]}:{address[1]}"
        finally:
            server.stopping.set()
            await serving
    finally:
        listener.close()
