"""HTTP/1.1 with nothing hidden: read by hand, so that the tests share no parser with the proxy."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

Header = tuple[bytes, bytes]

PATIENCE_S = 30.0
"""A message that has not come by then never will; generous, for machines that are busy."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request or a response as it stood on the wire; `body` without its framing.

    `framing` is chunked, length, close or none. `whole` is False where the connection ended before the
    message did.
    """

    line: bytes
    headers: list[Header]
    body: bytes = b""
    trailers: list[Header] = field(default_factory=list)
    framing: str = "none"
    whole: bool = True

    @property
    def status(self) -> int:
        return int(self.line.split(b" ", 2)[1])

    @property
    def target(self) -> bytes:
        return self.line.split(b" ")[1]

    def values(self, name: str) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.encode()]

    def value(self, name: str) -> bytes | None:
        return next(iter(self.values(name)), None)


async def read_head(reader: asyncio.StreamReader) -> tuple[bytes, list[Header]]:
    """Read a first line and headers; IncompleteReadError if the connection ends before."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head[:-4].split(b"\r\n")
    return line, [_header(each) for each in rest]


async def read_message(reader: asyncio.StreamReader, *, method: bytes | None = None) -> Message:
    """Read one message; `method` names the request that a response answers, None reads a request."""
    line, headers = await read_head(reader)
    message = Message(line, headers)
    if method is not None and (method == b"HEAD" or message.status in (204, 304) or message.status < 200):
        return message
    if b"chunked" in (message.value("transfer-encoding") or b""):
        return await _chunked(reader, message)
    length = message.value("content-length")
    if length is not None:
        body, whole = await _exactly(reader, int(length))
        return Message(line, headers, body, framing="length", whole=whole)
    if method is None:
        return message
    try:
        return Message(line, headers, await reader.read(), framing="close")
    except ConnectionError:
        return Message(line, headers, framing="close", whole=False)


async def _exactly(reader: asyncio.StreamReader, count: int) -> tuple[bytes, bool]:
    try:
        return await reader.readexactly(count), True
    except asyncio.IncompleteReadError as error:
        return error.partial, False
    except ConnectionError:
        return b"", False


async def _chunked(reader: asyncio.StreamReader, message: Message) -> Message:
    body, trailers, whole = bytearray(), list[Header](), False
    try:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await reader.readexactly(size)
            assert await reader.readexactly(2) == b"\r\n"
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            trailers.append(_header(line[:-2]))
        whole = True
    except asyncio.IncompleteReadError as error:
        body += error.partial
    except ConnectionError:
        pass
    return Message(message.line, message.headers, bytes(body), trailers, "chunked", whole)


def _header(line: bytes) -> Header:
    name, _, value = line.partition(b":")
    return name, value.strip()


@dataclass(slots=True, eq=False)
class RawClient:
    """One connection to a server, bytes in and bytes out."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)

    async def response(self, method: bytes = b"GET") -> Message:
        async with asyncio.timeout(PATIENCE_S):
            return await read_message(self.reader, method=method)

    async def ask(self, raw: bytes) -> Message:
        self.send(raw)
        return await self.response(raw.split(b" ", 1)[0])

    async def receive(self, until: bytes) -> bytes:
        """Return what comes up to and with `until`."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(until)

    async def rest(self) -> bytes:
        """Return what comes until the connection ends."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def leave(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def raw_client(base_url: str) -> AsyncIterator[RawClient]:
    parts = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()


def post(path: str, body: bytes, *headers: str, host: str = "tests") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chat(
    content: str,
    *headers: str,
    path: str = "/v1/chat/completions",
    model: str = "replay",
    host: str = "tests",
    **fields: Any,
) -> bytes:
    """Return a request with one message of a user."""
    body = {"model": model, "messages": [{"role": "user", "content": content}]} | fields
    return post(path, json.dumps(body).encode(), *headers, host=host)


def get(path: str, *headers: str, method: str = "GET", host: str = "tests") -> bytes:
    """Return a request without a body as bytes."""
    return (
        "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]).encode("latin-1") + b"\r\n\r\n"
    )
