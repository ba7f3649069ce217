"""One part of an answer that may be cut and continued, on its way from the backend to the client."""

from collections.abc import Callable

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import UpstreamConnection, UpstreamError
from clairvoyant_cli.protocols.splice import MidAnswerError, Splice
from clairvoyant_cli.protocols.usage import UsageReader
from clairvoyant_cli.proxy.relay import Relay

OF_THE_STREAM = (b"content-type", b"content-length", b"transfer-encoding", b"connection", b"keep-alive")
"""Headers of a stream that an answer in one piece has otherwise, or not at all."""


class CutError(Exception):
    """The answer was cut, as was wanted; its request waits again."""


class SplicedRelay(Relay):
    """Feeds a client from one upstream connection after another; `resumes` says that this is not the first.

    What is no stream of events, an error above all, passes as it is if it comes first; later it is a failure.
    A client that does not stream gets its answer at the end. `finished` fails with `CutError` at a cut.
    """

    def __init__(
        self,
        request: Request,
        upstream: UpstreamConnection,
        *extra: Header,
        splice: Splice,
        resumes: bool,
        on_head: Callable[[ResponseHead], UsageReader],
        on_first_byte: Callable[[], None],
        may_wait: bool,
    ) -> None:
        super().__init__(request, upstream, *extra, on_first_byte=on_first_byte, may_wait=may_wait)
        self._read_head = on_head
        self._splice = splice
        self._resumes = resumes
        self._answer_head: ResponseHead | None = None
        self._spliced = False

    def data(self, data: bytes) -> None:
        """Pass on what the client gets of a piece of the body, up to a cut."""
        if not self._spliced:
            super().data(data)
            return
        if self._usage is not None:
            self._usage.feed(data)
        try:
            out = self._splice.feed(data)
        except MidAnswerError as error:
            self._give_up(str(error))
            return
        if out:
            self._client.send_body(out)
        if self._on_first_byte is not None:
            self._on_first_byte()
            self._on_first_byte = None
        if self._splice.is_cut and not self.finished.done():
            self._upstream.let_go()
            self._client.fed_by(None)
            self.finished.set_exception(CutError())

    def end(self, trailers: list[Header]) -> None:
        """Pass on the end; to a client that does not stream, the answer."""
        if self._answer_head is None:
            super().end(trailers)
            return
        try:
            body = self._splice.whole()
        except MidAnswerError as error:
            self.failed(UpstreamError(str(error)))
            return
        self._client.respond(_in_one_piece(self._answer_head), body, *self._extra)
        self.whole = True
        if not self.finished.done():
            self.finished.set_result(None)

    def _begin(self, head: ResponseHead) -> None:
        usage = self._read_head(head)
        self._usage, self.status = usage, head.status
        self._spliced = usage.is_answer and usage.streaming and usage.readable
        if not self._spliced and self._resumes:
            self._give_up(f"it did not go on with its answer (HTTP {head.status})")
        elif not self._spliced:
            self._splice.why_not = "its answer is no stream"
            super()._begin(head)
        elif not self._splice.asked.streamed:
            self._answer_head = head
        elif self._resumes:
            self._client.fed_by(self._upstream)
        else:
            super()._begin(head)

    def _give_up(self, why: str) -> None:
        self._upstream.abort()
        self.failed(UpstreamError(why))


def _in_one_piece(stream: ResponseHead) -> ResponseHead:
    """Return the head of an answer in one piece, made of that of its stream."""
    kept = [header for header in stream.headers if header[0].lower() not in OF_THE_STREAM]
    return ResponseHead(200, stream.reason, [(b"Content-Type", b"application/json; charset=utf-8"), *kept])
