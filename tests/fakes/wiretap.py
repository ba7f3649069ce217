"""A wiretap: a TCP forwarder that keeps what passed, so that both sides of the proxy can be compared."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass(slots=True, eq=False)
class Tapped:
    """One connection: what the client's side sent, and what the server's side sent."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)


@dataclass(slots=True, eq=False)
class Wiretap:
    """Everything that passed, one entry a connection."""

    base_url: str = ""
    connections: list[Tapped] = field(default_factory=list)

    def carrying(self, mark: bytes) -> Tapped:
        return next(each for each in self.connections if mark in each.sent)


@asynccontextmanager
async def wiretap(target: str) -> AsyncIterator[Wiretap]:
    """Forward connections to `target` until the block ends."""
    tap, parts = Wiretap(), urlsplit(target)
    tasks: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, tapped = asyncio.current_task(), Tapped()
        assert task is not None
        tasks.add(task)
        tap.connections.append(tapped)
        with suppress(ConnectionError, asyncio.CancelledError), closing(writer):
            there, out = await asyncio.open_connection(parts.hostname, parts.port)
            with closing(out):
                copies = _copy(reader, out, tapped.sent), _copy(there, writer, tapped.received)
                await asyncio.gather(*copies)
        tasks.discard(task)

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    tap.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        waiting = list(tasks)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: bytearray) -> None:
    while data := await source.read(65536):
        kept += data
        sink.write(data)
        await sink.drain()
    with suppress(OSError, RuntimeError):
        sink.write_eof()
