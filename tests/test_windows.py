"""Behaviour specific to Windows (Proactor, sockets, console), simulated on any platform."""

import asyncio
import logging
import socket
import sys
import time
from collections.abc import Awaitable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from clairvoyant_cli import system
from clairvoyant_cli.http.framing import RequestReader
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.http.limits import ConnectionTable
from clairvoyant_cli.http.listener import ClientConnection
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import ResponseSink, Upstream, UpstreamConnection, UpstreamError
from clairvoyant_cli.main import main
from clairvoyant_cli.system import (
    CLOSING_S,
    CTRL_CLOSE,
    CTRL_LOGOFF,
    CTRL_SHUTDOWN,
    OTHER_SIDE_GONE,
    accept_always,
    heed_console,
    remove,
    report_fault,
)

POST = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
CTRL_C, CTRL_BREAK = 0, 1


class Wire(asyncio.Transport):
    """A transport that ends as one whose other side has reset it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: object) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def write_eof(self) -> None:
        raise OSError(22, "a socket that is not connected", None, 10057)

    def close(self) -> None: ...
    def abort(self) -> None:
        self.aborted = True


class Answer(ResponseSink):
    def __init__(self) -> None:
        self.body = b""
        self.ended = False

    def informational(self, head: ResponseHead) -> None: ...
    def head(self, head: ResponseHead) -> None: ...

    def data(self, data: bytes) -> None:
        self.body += data

    def end(self, trailers: list[Any]) -> None:
        self.ended = True

    def failed(self, error: UpstreamError) -> None:
        raise error


def connected(handler: Any) -> tuple[ClientConnection, Wire]:
    def spawn(work: Awaitable[None]) -> "asyncio.Task[None]":
        return asyncio.ensure_future(work)

    connection, wire = ClientConnection(handler, spawn, ConnectionTable()), Wire()
    connection.connection_made(wire)
    return connection, wire


async def test_request_body_may_be_a_bytearray() -> None:
    """So the Proactor hands over what came while reading was paused."""
    read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handler(request: Request) -> None:
        read.set_result(b"".join(await request.read(100) or ()))

    connection, _ = connected(handler)
    connection.data_received(POST)
    connection.data_received(bytearray(b"rive"))
    assert await read == b"rive"


async def test_response_may_be_a_bytearray() -> None:
    [head] = [each for each in RequestReader().receive(POST) if isinstance(each, RequestHead)]
    upstream, answer = UpstreamConnection(Upstream("http://127.0.0.1:1")), Answer()
    upstream.connection_made(Wire())
    upstream.begin(head, POST + b"rive", answer)
    upstream.data_received(bytearray(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"))
    upstream.data_received(bytearray(b"brook"))
    assert (answer.body, answer.ended) == (b"brook", True)


async def test_reset_connection_is_dropped() -> None:
    async def handler(request: Request) -> None: ...

    connection, wire = connected(handler)
    connection.close()
    assert wire.aborted


async def test_accepting_continues_after_an_early_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(22, "the network name is no longer available", None, 64)]

    async def sock_accept(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", sock_accept)
    there = asyncio.Event()

    class Noting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()
            there.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        accepting = asyncio.ensure_future(accept_always(Noting, listener))
        _, writer = await asyncio.open_connection(*listener.getsockname())
        await there.wait()
        writer.close()
        accepting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await accepting
    assert not failures


class WindowsError(OSError):
    """An OSError with the number that Windows gave it."""

    def __init__(self, number: int) -> None:
        super().__init__(22, "as Windows words it")
        self.winerror = number


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        *((WindowsError(number), False) for number in OTHER_SIDE_GONE),
        (WindowsError(5), True),
        (ValueError(), True),
    ],
)
async def test_uncaught_errors_except_resets_are_logged(
    error: Exception, reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "asyncio"):
        report_fault(asyncio.get_running_loop(), {"message": "Exception in callback", "exception": error})
    assert bool(caplog.records) is reported


@pytest.mark.parametrize(
    ("event", "within_s"),
    [
        (CTRL_C, inf),
        (CTRL_BREAK, inf),
        (CTRL_CLOSE, CLOSING_S),
        (CTRL_LOGOFF, CLOSING_S),
        (CTRL_SHUTDOWN, CLOSING_S),
    ],
)
def test_console_events_stop_within_the_time_left(event: int, within_s: float) -> None:
    asked: list[float] = []
    assert heed_console(event, asked.append, last_s=0.0)
    assert asked == [within_s]


def test_console_events_after_the_loop_are_ignored() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert not heed_console(CTRL_C, lambda _: loop.call_soon_threadsafe(print))


@pytest.mark.parametrize(("tries", "removed"), [(3, True), (2, False)])
def test_removal_retries_while_a_file_is_open(
    tries: int, removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "word"
    path.touch()
    unlink, refusals = Path.unlink, [PermissionError(13, "it is in use"), PermissionError(13, "it is in use")]

    def busy(self: Path, missing_ok: bool = False) -> None:
        if refusals:
            raise refusals.pop()
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", busy)
    monkeypatch.setattr(system, "REMOVALS", tries)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    if removed:
        remove(path)
    else:
        with pytest.raises(PermissionError):
            remove(path)
    assert path.exists() is not removed


def test_service_starts_without_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, None)
    monkeypatch.setattr(sys, "argv", ["clairvoyant", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
