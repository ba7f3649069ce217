"""Sends the proxy's own requests: the answer is collected whole, or read in pieces."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote

from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.http.upstream import ResponseSink, Upstream, UpstreamConnection, UpstreamError

MAX_AHEAD_BYTES = 1 << 20  # so much of an answer is taken before its reader has read it


class OwnAnswer(ResponseSink):
    """Reads an answer in pieces, with bounded read-ahead. `begun` or `pieces` raise what went wrong."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self.begun: asyncio.Future[ResponseHead] = asyncio.get_running_loop().create_future()
        self._news: asyncio.Queue[bytes | UpstreamError | None] = asyncio.Queue()
        self._connection = connection
        self._ahead = 0
        self._over = False

    async def pieces(self) -> AsyncIterator[bytes]:
        while (news := await self._news.get()) is not None:
            if isinstance(news, UpstreamError):
                raise news
            self._ahead -= len(news)
            if self._ahead <= MAX_AHEAD_BYTES and not self._over:
                self._connection.resume()
            yield news

    async def whole(self, limit: int) -> tuple[ResponseHead, bytes | None]:
        """Return the head and the body; None for a compressed body, and more than `limit` bytes of one that
        is longer.
        """
        try:
            head, body = await self.begun, bytearray()
            async for piece in self.pieces():
                body += piece
                if len(body) > limit:
                    break
        finally:
            self.abandon()
        return head, bytes(body) if head.get(b"content-encoding") in (None, b"identity") else None

    def abandon(self) -> None:
        """Close the connection, unless the answer is over: another request may use it by now."""
        if not self._over:
            self._connection.abort()

    def head(self, head: ResponseHead) -> None:
        if not self.begun.done():
            self.begun.set_result(head)

    def data(self, data: bytes) -> None:
        self._news.put_nowait(data)
        self._ahead += len(data)
        if self._ahead > MAX_AHEAD_BYTES:
            self._connection.pause()

    def end(self, trailers: list[Header]) -> None:
        self._over = True
        self._news.put_nowait(None)

    def failed(self, error: UpstreamError) -> None:
        self._over = True
        if not self.begun.done():
            self.begun.set_exception(error)
        self._news.put_nowait(error)


async def collect(
    upstream: Upstream, target: str, headers: Sequence[Header], body: bytes | None, limit: int
) -> tuple[ResponseHead, bytes | None]:
    """GET, or POST a JSON body; return what `OwnAnswer.whole` does. UpstreamError if there is no answer."""
    answer = _send(await upstream.connect(), upstream, target, headers, body)
    return await answer.whole(limit)


@asynccontextmanager
async def arriving(
    upstream: Upstream, target: str, headers: Sequence[Header], body: bytes | None = None
) -> AsyncIterator[tuple[ResponseHead, AsyncIterator[bytes]]]:
    """GET, or POST a JSON body; yield the answer's head and the pieces of its body. UpstreamError if that
    fails.
    """
    answer = _send(await upstream.connect(fresh=True), upstream, target, headers, body)
    try:
        yield await answer.begun, answer.pieces()
    finally:
        answer.abandon()


def _send(
    connection: UpstreamConnection,
    upstream: Upstream,
    target: str,
    headers: Sequence[Header],
    body: bytes | None,
) -> OwnAnswer:
    answer = OwnAnswer(connection)
    fields: list[Header] = [(b"Host", upstream.host_header), *headers]
    if body is not None:
        fields += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    quoted = quote(target, safe="/%:@!$&'()*+,;=~?").encode()
    head = RequestHead(b"GET" if body is None else b"POST", quoted, Fields(fields))
    connection.begin(head, head.encode(upstream.host_header), answer)
    if body:
        connection.body(body)
        connection.body_end([])
    return answer
