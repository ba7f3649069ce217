"""`clairvoyant top` as a command: what it prints once, what it refuses, and how it attaches."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from click.testing import CliRunner, Result

from clairvoyant_cli.commands.top import command
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.encoding import encode
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.state.source import DaemonSource, Disconnected
from tests.tui.board import busy


def top(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def complaint(*arguments: str) -> ClairvoyantError:
    error = top(*arguments).exception
    assert isinstance(error, ClairvoyantError)
    assert "\n" not in str(error)
    return error


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--demo",), "top needs a terminal", ExitCode.USAGE),
        (("--url", "ftp://somewhere"), "give one like", ExitCode.USAGE),
        (("--token-file", "/nowhere/token"), "cannot read the admin token", ExitCode.USAGE),
    ],
)
def test_what_cannot_be_says_why(arguments: tuple[str, ...], words: str, code: ExitCode) -> None:
    error = complaint(*arguments)
    assert words in str(error)
    assert error.exit_code == code


# -- attaching --------------------------------------------------------------------------------------------

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(answer: Answer, port: int = 0) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        await answer(head, writer)
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", port)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def event(snapshot: Snapshot) -> bytes:
    return b"event: snapshot\ndata: " + encode(snapshot) + b"\n\n"


def says(*events: bytes) -> Answer:
    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for each in events:
            writer.write(each)
        await writer.drain()

    return answer


def refuses(status: str, body: bytes = b"") -> Answer:
    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return answer


async def first(source: DaemonSource) -> Snapshot | Disconnected:
    return await anext(source.stream())


@pytest.mark.parametrize("start", [b"event: snapshot\ndata: ", b""])
async def test_a_state_without_end_is_told_in_a_line(start: bytes) -> None:
    def endless(head: str) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + start

    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(endless(head))
        with suppress(ConnectionError):
            while not writer.transport.is_closing():
                writer.write(b"A" * (1 << 20))
                await writer.drain()

    async with server(answer) as port:
        news = await first(DaemonSource(f"http://127.0.0.1:{port}"))
        with pytest.raises(ClairvoyantError, match="more than 16 MiB"):
            async with ControlClient(f"http://127.0.0.1:{port}") as client:
                await client.snapshot()
    assert isinstance(news, Disconnected)
    assert "more than 16 MiB" in news.reason


async def test_it_attaches_and_says_when_the_daemon_goes() -> None:
    async with server(says(event(busy()))) as port:
        stream = DaemonSource(f"http://127.0.0.1:{port}").stream()
        snapshot = await anext(stream)
        assert isinstance(snapshot, Snapshot)
        assert snapshot.queue[0].id == busy().queue[0].id
        gone = await anext(stream)
        assert isinstance(gone, Disconnected)
        assert isinstance(await anext(stream), Snapshot)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            refuses("401 Unauthorized", b'{"error": "the admin token is missing"}'),
            "the admin token is missing",
        ),
        (refuses("404 Not Found", b"nothing here"), "not a clairvoyant daemon"),
        (says(b"data: {}\n\n"), "cannot be read"),
        (says(event(busy()).replace(b'"schema":1', b'"schema":99')), "upgrade clairvoyant"),
        (says(), "closed the connection"),
    ],
)
async def test_a_server_that_will_not_do_is_told_apart(answer: Answer, words: str) -> None:
    async with server(answer) as port:
        news = await first(DaemonSource(f"http://127.0.0.1:{port}"))
        assert isinstance(news, Disconnected)
        assert words in news.reason


async def test_the_newest_state_wins() -> None:
    states = [event(busy())] * 60
    all_sent = asyncio.Event()

    async def answer(head: str, writer: asyncio.StreamWriter) -> None:
        await says(*states)(head, writer)
        all_sent.set()

    seen = 0
    async with server(answer) as port:
        async for news in DaemonSource(f"http://127.0.0.1:{port}").stream():
            if isinstance(news, Disconnected):
                break
            seen += 1
            # A dashboard that draws for so long that all others have come meanwhile.
            await all_sent.wait()
            for _ in range(100):
                await asyncio.sleep(0)
    assert 0 < seen < len(states)


def test_credentials_in_the_address_are_not_shown() -> None:
    assert DaemonSource("http://me:secret@127.0.0.1:1").where == "http://127.0.0.1:1"
