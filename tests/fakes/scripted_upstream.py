"""An upstream that follows a script: what it reads and writes on each connection, byte for byte.

The questions a proxy asks of its own accord (who are you, are you well) are answered beside the script, so
that a script sees the tests' requests alone.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tests.fakes.raw_http import PATIENCE_S, Message, read_message

OWN = b"clairvoyant/"  # begins the User-Agent of the proxy's own questions


@dataclass(slots=True, eq=False)
class Conversation:
    """One connection as the script sees it. `first` is the request that opened it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    first: Message | None = None

    async def request(self) -> Message:
        if self.first is not None:
            first, self.first = self.first, None
            return first
        async with asyncio.timeout(PATIENCE_S):
            return await read_message(self.reader)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)

    async def left(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Conversation], Awaitable[None]]


@dataclass(slots=True, eq=False)
class ScriptedUpstream:
    """A server that plays `script` on every connection; `faults` is what went wrong in one."""

    script: Script
    raw: bool = False
    port: int = 0
    connections: int = 0
    faults: list[BaseException] = field(default_factory=list)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        conversation = Conversation(reader, writer)
        try:
            await self._answer_probes(conversation)
            self.connections += 1
            await self.script(conversation)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # the other side left between two requests, or the test is over
        except Exception as error:
            self.faults.append(error)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer_probes(self, conversation: Conversation) -> None:
        if self.raw and not await self._looks_like_probe(conversation):
            return
        request = await read_message(conversation.reader)
        while self._is_own(request):
            conversation.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            request = await read_message(conversation.reader)
        conversation.first = request

    def _is_own(self, request: Message) -> bool:
        """Whether it is a question that the script does not answer; that for metrics it does."""
        asks = request.line.startswith(b"GET ") and not request.target.endswith(b"/metrics")
        return asks and (request.value("user-agent") or b"").startswith(OWN)

    async def _looks_like_probe(self, conversation: Conversation) -> bool:
        # A script that wants the request's own bytes must find them unread.
        reader = conversation.reader
        while b"\r\n\r\n" not in reader._buffer:  # type: ignore[attr-defined]
            if reader.at_eof():
                return False
            await reader._wait_for_data("peek")  # type: ignore[attr-defined]
        return b"User-Agent: " + OWN in reader._buffer  # type: ignore[attr-defined]


@asynccontextmanager
async def scripted(
    script: Script, *, raw: bool = False, read_ahead_bytes: int = 2**24, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedUpstream]:
    """Run the script's server until the block ends; a fault in the script fails the test.

    `raw` leaves the opening request unread, for scripts that answer before it is complete.
    """
    upstream = ScriptedUpstream(script, raw)
    server = await asyncio.start_server(upstream.play, "127.0.0.1", 0, limit=read_ahead_bytes, ssl=tls)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        await upstream.stop()
    if upstream.faults:
        raise AssertionError(
            f"the script of the upstream failed: {upstream.faults[0]!r}"
        ) from upstream.faults[0]


def answer(body: bytes = b"{}", *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


DONE = answer()


@asynccontextmanager
async def answering(answers: Callable[[str], list[bytes]]) -> AsyncIterator[str]:
    """Run a server that answers each path with these pieces; 404 where there are none."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await read_message(reader)
                assert request.value("accept-encoding") == b"identity"
                for piece in answers(request.target.decode()) or [answer(status="404 Not Found")]:
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


def always(reply: bytes | Callable[[Message], bytes] = DONE, seen: list[Message] | None = None) -> Script:
    """Return a script that answers each request with `reply`, or by what it asks; `seen` takes them."""

    async def script(it: Conversation) -> None:
        while True:
            request = await it.request()
            if seen is not None:
                seen.append(request)
            it.send(reply(request) if callable(reply) else reply)

    return script


async def silent(it: Conversation) -> None:
    """Answer nothing until the other side leaves."""
    await it.request()
    await it.left()
