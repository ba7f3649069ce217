"""Sends the proxy's own requests: the answer is collected whole, or read in pieces."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote

from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.framing import request_head
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.upstream import ResponseSink, Upstream, UpstreamConnection, UpstreamError

MAX_AHEAD_BYTES = 1 << 20  # so much of an answer is taken before its reader has read it


class Collected(ResponseSink):
    """Takes an answer whole, up to `limit` bytes and one more, so that a longer one is seen to be longer."""

    def __init__(self, connection: UpstreamConnection, limit: int) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun: ResponseHead | None = None
        self._pieces: list[bytes] = []
        self._connection = connection
        self._left = limit + 1

    @property
    def begun(self) -> ResponseHead:
        assert self._begun is not None  # noqa: S101 - what has finished has begun
        return self._begun

    @property
    def text(self) -> bytes | None:
        """The body of what has finished; None where it is compressed."""
        plain = self.begun.get(b"content-encoding") in (None, b"identity")
        return b"".join(self._pieces) if plain else None

    def head(self, head: ResponseHead) -> None:
        self._begun = head

    def data(self, data: bytes) -> None:
        self._pieces.append(data[: self._left])
        self._left -= len(data)
        if self._left < 0:
            self._connection.abort()
            self.end([])

    def end(self, trailers: list[Header]) -> None:
        if not self.finished.done():
            self.finished.set_result(None)

    def failed(self, error: UpstreamError) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)


class Arriving(ResponseSink):
    """Reads an answer in pieces, with bounded read-ahead. `begun` or `pieces` raise what went wrong."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self.begun: asyncio.Future[ResponseHead] = asyncio.get_running_loop().create_future()
        self._news: asyncio.Queue[bytes | UpstreamError | None] = asyncio.Queue()
        self._connection = connection
        self._ahead = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body as they come."""
        while (news := await self._news.get()) is not None:
            if isinstance(news, UpstreamError):
                raise news
            self._ahead -= len(news)
            if self._ahead <= MAX_AHEAD_BYTES:
                self._connection.resume()
            yield news

    def head(self, head: ResponseHead) -> None:
        self.begun.set_result(head)

    def data(self, data: bytes) -> None:
        self._news.put_nowait(data)
        self._ahead += len(data)
        if self._ahead > MAX_AHEAD_BYTES:
            self._connection.pause()

    def end(self, trailers: list[Header]) -> None:
        self._news.put_nowait(None)

    def failed(self, error: UpstreamError) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)
        self._news.put_nowait(error)


async def collect(
    upstream: Upstream, target: str, headers: Sequence[Header], body: bytes | None, limit: int
) -> Collected:
    """GET, or POST a JSON body; return the answer, up to `limit` bytes. UpstreamError if there is none."""
    connection = await upstream.connect()
    answer = Collected(connection, limit)
    try:
        _send(connection, upstream, target, headers, body, answer)
        await answer.finished
    except asyncio.CancelledError:
        connection.abort()
        raise
    return answer


@asynccontextmanager
async def arriving(
    upstream: Upstream, target: str, headers: Sequence[Header]
) -> AsyncIterator[tuple[ResponseHead, AsyncIterator[bytes]]]:
    """GET; yield the answer's head and the pieces of its body. UpstreamError if it fails."""
    connection = await upstream.connect(fresh=True)
    answer = Arriving(connection)
    try:
        _send(connection, upstream, target, headers, None, answer)
        yield await answer.begun, answer.pieces()
    finally:
        connection.abort()


def _send(
    connection: UpstreamConnection,
    upstream: Upstream,
    target: str,
    headers: Sequence[Header],
    body: bytes | None,
    answer: ResponseSink,
) -> None:
    fields: list[Header] = [(b"Host", upstream.host_header), *headers]
    if body is not None:
        fields += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    quoted = quote(target, safe="/%:@!$&'()*+,;=~?").encode()
    head = request_head(b"GET" if body is None else b"POST", quoted, Fields(fields))
    connection.begin(head, head.encode(upstream.host_header), answer)
    if body:
        connection.body(body)
        connection.body_end([])
    connection.uncork()
