"""Connections to servers with several addresses, that refuse early, or that notice a leaver late."""

import asyncio
import socket
import sys
from contextlib import suppress
from typing import Any

import pytest

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead, read_request_head
from clairvoyant_cli.http.upstream import ResponseSink, Upstream, UpstreamConnection, UpstreamError
from tests.fakes.raw_http import read_head
from tests.fakes.scripted_upstream import Conversation, answer, scripted

REQUEST = read_request_head(b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 90000000\r\n")


class Sink(ResponseSink):
    """Notes the status of an answer, its first piece and how it ended."""

    def __init__(self) -> None:
        self.status = 0
        self.began = asyncio.Event()
        self.outcome = ""

    def head(self, head: ResponseHead) -> None:
        self.status = head.status

    def data(self, data: bytes) -> None:
        self.began.set()

    def end(self, trailers: list[Header]) -> None:
        self.outcome = "whole"

    def failed(self, error: UpstreamError) -> None:
        self.outcome = str(error)


def asked(connection: UpstreamConnection) -> Sink:
    sink = Sink()
    connection.begin(REQUEST, REQUEST.encode(b"t"), sink)
    return sink


async def test_an_early_refusal_is_read_although_writing_fails_first() -> None:
    async def script(it: Conversation) -> None:
        await read_head(it.reader)
        it.send(answer(b"too large", status="413 Content Too Large"))
        await it.writer.drain()
        it.reset()

    async with scripted(script, raw=True) as server:
        connection = await Upstream(f"http://127.0.0.1:{server.port}").connect()
        connection.pause()  # so that the answer is still in the socket when a write fails
        sink = asked(connection)
        while not connection.closed.done():
            connection.body(bytes(1 << 20))
            await asyncio.sleep(0)
        assert (sink.status, sink.outcome) == (413, "whole")


async def test_a_server_that_writes_on_after_a_half_close_is_reset() -> None:
    ended: list[asyncio.Event] = []
    went_on = asyncio.Event()

    async def script(it: Conversation) -> None:
        ended.append(gone := asyncio.Event())
        await read_head(it.reader)
        if len(ended) == 3:  # an unstreamed answer: its client's end is not looked for before it is written
            assert await it.reader.read() == b""
            went_on.set()
            return
        it.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            while not it.writer.transport.is_closing():
                it.send(b"1\r\n.\r\n")
                await it.writer.drain()
                await asyncio.sleep(0.01)  # the pace of its tokens
        gone.set()

    async with scripted(script, raw=True) as server:
        upstream = Upstream(f"http://127.0.0.1:{server.port}")
        for _ in range(2):
            connection = await upstream.connect()
            await asked(connection).began.wait()
            await connection.hang_up(patience_s=600.0)
            await ended[-1].wait()
        connection = await upstream.connect()
        asked(connection)
        assert await connection.hang_up(patience_s=600.0)
        assert went_on.is_set()


@pytest.mark.skipif(sys.platform != "linux", reason="needs addresses of 127.0.0.0/8 and Linux' backlog")
async def test_a_dead_address_does_not_hide_a_live_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as live, socket.socket() as dead:
        port = live.getsockname()[1]
        dead.bind(("127.0.0.2", port))
        dead.listen(0)
        queued = [socket.socket() for _ in range(3)]  # a full backlog answers nobody else
        for each in queued:
            each.setblocking(False)
            each.connect_ex(("127.0.0.2", port))

        def addresses(*args: Any, **kwargs: Any) -> list[Any]:
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", addresses)
        connection = await Upstream(f"http://server.test:{port}", connect_timeout_s=60.0).connect()
        assert connection.open
        connection.abort()
        await connection.closed
        for each in queued:
            each.close()
