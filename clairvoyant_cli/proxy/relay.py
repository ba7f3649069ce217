"""One answer on its way from the backend to the client, byte for byte."""

import asyncio
from collections.abc import Callable

from clairvoyant_cli.proxy.http1 import Header, ResponseHead
from clairvoyant_cli.proxy.listener import Request
from clairvoyant_cli.proxy.protocols.answer import AnswerWatch
from clairvoyant_cli.proxy.upstream import UpstreamConnection, UpstreamError


class Relay:
    """Feeds a client from an upstream connection; `finished` resolves, or fails, when the answer ends.

    `whole` and `broken` say how it ended even where `finished` was cancelled first, by a client that left in
    the same moment. In both the upstream connection is this answer's no more.
    """

    def __init__(
        self,
        request: Request,
        upstream: UpstreamConnection,
        *extra: Header,
        on_head: Callable[[ResponseHead], AnswerWatch | None] | None = None,
        on_first_byte: Callable[[], None] | None = None,
    ) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.whole = False
        self.broken = False
        self._request = request
        self._client = request.connection
        self._upstream = upstream
        self._extra = extra
        self._on_head = on_head
        self._on_first_byte = on_first_byte
        self._watch: AnswerWatch | None = None

    def informational(self, head: ResponseHead) -> None:
        """Pass on a 1xx answer."""
        self._client.send_informational(head)

    def head(self, head: ResponseHead) -> None:
        """Pass on the head, with our own headers behind the backend's."""
        self.status = head.status
        if self._on_head is not None:
            self._watch = self._on_head(head)
        self._client.fed_by(self._upstream)
        if head.status == 101:
            upgrade = self._request.head.upgrade
            self._client.send_head(head, b"GET", (b"Connection", b"Upgrade"), (b"Upgrade", upgrade))
            self._client.tunnel(self._upstream.write)
        else:
            self._client.send_head(head, self._request.head.method, *self._extra)

    def data(self, data: bytes) -> None:
        """Pass on a piece of the body."""
        self._client.send_body(data)
        if self._on_first_byte is not None:
            self._on_first_byte()
            self._on_first_byte = None
        if self._watch is not None:
            self._watch.feed(data)

    def end(self, trailers: list[Header]) -> None:
        """Pass on the end."""
        self._client.send_end(trailers)
        self.whole = True
        if not self.finished.done():
            self.finished.set_result(None)

    def failed(self, error: UpstreamError) -> None:
        """Take note that the answer broke off."""
        self.broken = True
        if not self.finished.done():
            self.finished.set_exception(error)
