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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections and cut running answers at once; uvicorn would sleep for 0.1 s first."""
        for server in self.servers:
            server.close()
        for _ in range(4):
            await asyncio.sleep(0)  # asyncio takes some steps to make a protocol for an accepted connection
        connections, running = list(self.server_state.connections), list(self.server_state.tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for connection in connections:
            connection.transport.close()  # also where the task was cancelled before its first step

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
