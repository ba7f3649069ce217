"""Carries httpx's requests on our own connections: what a server answers to our questions has limits, too.

httpx reads heads with a parser that takes a tenth of a second for 64 KiB of tiny fields, and knows no setting
that would forbid it. Ours refuses them.
"""

import asyncio

import httpx

from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.framing import request_head
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.upstream import Upstream, UpstreamConnection, UpstreamError


class OwnTransport(httpx.AsyncBaseTransport):
    """Sends requests without a body and reads answers of at most `limit_bytes`; a longer one is cut there."""

    def __init__(self, limit_bytes: int, connect_timeout_s: float) -> None:
        self._limit_bytes = limit_bytes
        self._connect_timeout_s = connect_timeout_s
        self._upstreams: dict[str, Upstream] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Ask; httpx.ConnectError or httpx.RemoteProtocolError if no answer comes."""
        url = request.url
        origin = f"{url.scheme}://{url.netloc.decode('ascii')}"
        if origin not in self._upstreams:
            self._upstreams[origin] = Upstream(origin, connect_timeout_s=self._connect_timeout_s)
        upstream = self._upstreams[origin]
        try:
            connection = await upstream.connect()
        except UpstreamError as error:
            raise httpx.ConnectError(str(error), request=request) from None
        head = request_head(request.method.encode("ascii"), url.raw_path, Fields(request.headers.raw))
        answer = _Collected(connection, self._limit_bytes)
        try:
            connection.begin(head, head.encode(upstream.host_header), answer)
            connection.uncork()
            await answer.finished
        except UpstreamError as error:
            raise httpx.RemoteProtocolError(str(error), request=request) from None
        except asyncio.CancelledError:
            connection.abort()
            raise
        assert answer.begun is not None  # noqa: S101 - what has finished has begun
        body = httpx.ByteStream(b"".join(answer.pieces))
        return httpx.Response(answer.begun.status, headers=answer.begun.headers, stream=body)

    async def aclose(self) -> None:
        """Close the connections."""
        for upstream in self._upstreams.values():
            await upstream.close()


class _Collected:
    """Takes an answer whole, up to a limit."""

    def __init__(self, connection: UpstreamConnection, limit_bytes: int) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.begun: ResponseHead | None = None
        self.pieces: list[bytes] = []
        self._connection = connection
        self._left = limit_bytes

    def hold(self) -> None:
        """It is taken piece by piece."""

    def flush(self) -> None:
        """It is taken piece by piece."""

    def informational(self, head: ResponseHead) -> None:
        """Nothing to be learnt from it."""

    def head(self, head: ResponseHead) -> None:
        """Take the head."""
        self.begun = head

    def data(self, data: bytes) -> None:
        """Take a piece of the body."""
        self.pieces.append(data[: self._left])
        self._left -= len(data)
        if self._left < 0:
            self._connection.abort()
            self.end([])

    def end(self, trailers: list[Header]) -> None:
        """It is whole."""
        if not self.finished.done():
            self.finished.set_result(None)

    def failed(self, error: UpstreamError) -> None:
        """It never will be."""
        if not self.finished.done():
            self.finished.set_exception(error)
