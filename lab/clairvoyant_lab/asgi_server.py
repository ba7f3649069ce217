"""Serves an ASGI application on its own socket, inside the running event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp


class EmbeddedServer(uvicorn.Server):
    """A uvicorn server that installs no signal handlers and signals when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.stopping = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait for `stopping`; uvicorn would poll ten times a second, each a step in virtual time."""
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
        log_level="critical",  # answers raise in tests
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=0,  # running answers are cut at once, as by a killed server
    )
    server = EmbeddedServer(config)
    listener = socket.create_server((host, port), backlog=2048)
    # Connections inherit this. asyncio sets it only for sockets with a protocol, which this one lacks: the
    # end of an answer would wait for the acknowledgement of the previous packet.
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
