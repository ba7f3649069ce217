"""The spare: one connection opened ahead of time, for the request that comes while the last one rests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from clairvoyant_cli.http import upstream as upstream_module
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead, read_request_head
from clairvoyant_cli.http.upstream import ResponseSink, Upstream, UpstreamConnection, UpstreamError
from tests.fakes.raw_http import PATIENCE_S, read_message
from tests.fakes.scripted_upstream import answer


class Server:
    """Answers every request with `reply`; `accepted` and `ended` count connections, asked or not."""

    def __init__(self, reply: bytes = answer(b"{}")) -> None:
        self.reply = reply
        self.accepted = 0
        self.ended = 0
        self.asked: list[int] = []
        self.changed = asyncio.Condition()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.accepted
        self.writers.append(writer)
        await self._note(accepted=1)
        try:
            while True:
                await read_message(reader)
                self.asked.append(number)
                writer.write(self.reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._note(ended=1)
        finally:
            writer.close()

    async def until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(met)

    async def _note(self, *, accepted: int = 0, ended: int = 0) -> None:
        async with self.changed:
            self.accepted += accepted
            self.ended += ended
            self.changed.notify_all()


class Sink(ResponseSink):
    """Waits for the end of an answer."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def informational(self, head: ResponseHead) -> None:
        raise AssertionError("nobody sent one")

    def head(self, head: ResponseHead) -> None:
        assert head.status == 200

    def data(self, data: bytes) -> None:
        assert data

    def end(self, trailers: list[Header]) -> None:
        self.done.set_result(None)

    def failed(self, error: UpstreamError) -> None:
        self.done.set_exception(error)


class Opened:
    """Starts the tasks that open spares; `settled` returns when none is at work."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self._group = group

    def __call__(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        async def run() -> None:
            await work

        self.tasks.append(self._group.create_task(run()))
        return self.tasks[-1]

    async def settled(self) -> None:
        await asyncio.gather(*self.tasks)


@asynccontextmanager
async def upstream_of(server: Server) -> AsyncIterator[tuple[Upstream, Opened]]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    upstream = Upstream(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    async with asyncio.TaskGroup() as group:
        opened = Opened(group)
        upstream.open_spares = opened
        yield upstream, opened
        await upstream.close()
        listener.close()


def send(connection: UpstreamConnection) -> Sink:
    sink = Sink()
    head = read_request_head(b"GET / HTTP/1.1\r\nHost: t\r\n")
    connection.begin(head, head.encode(b"t"), sink)
    connection.uncork()
    return sink


async def ask(upstream: Upstream) -> None:
    await send(await upstream.connect()).done


@pytest.fixture(autouse=True)
def rest_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine is so slow that a connection has rested enough: the spare alone may be used."""
    monkeypatch.setattr(upstream_module, "MIN_IDLE_S", 3600.0)


async def test_the_next_request_goes_out_on_the_connection_opened_ahead() -> None:
    server = Server()
    async with upstream_of(server) as (upstream, opened):
        await ask(upstream)
        await opened.settled()
        await server.until(lambda: server.accepted == 2)
        ready = await upstream.connect()
        assert server.accepted == 2  # no handshake was waited for
        await send(ready).done
        assert server.asked == [0, 1]


async def test_a_spare_that_the_server_closed_is_not_used() -> None:
    server = Server()
    async with upstream_of(server) as (upstream, opened):
        await ask(upstream)
        await opened.settled()
        await server.until(lambda: server.accepted == 2)
        server.writers[1].close()
        async with asyncio.timeout(PATIENCE_S):
            while "spare" in repr(upstream):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0)
        await ask(upstream)
        assert server.asked == [0, 2]


async def test_a_server_that_ends_its_connections_gets_no_spare() -> None:
    """It may serve one connection at a time, and would wait on the spare for ever."""
    server = Server(answer(b"{}", "Connection: close"))
    async with upstream_of(server) as (upstream, opened):
        for _ in range(3):
            await ask(upstream)
        assert (server.accepted, opened.tasks) == (3, [])


async def test_a_server_that_is_gone_costs_no_more_than_the_spare() -> None:
    server = Server()
    async with upstream_of(server) as (upstream, opened):
        first = await upstream.connect()
        upstream.port = 1  # nobody listens there
        await send(first).done
        await opened.settled()  # and nothing was raised
        assert "spare" not in repr(upstream)
