"""One part of an answer that may be cut and continued, on its way from the backend to the client."""

from dataclasses import dataclass

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.upstream import UpstreamError
from clairvoyant_cli.protocols.splice import PartError, Splice
from clairvoyant_cli.proxy.requests.relay import CutError, Relay

OF_THE_STREAM = frozenset(
    b"content-type content-length transfer-encoding connection keep-alive cache-control "
    b"x-accel-buffering".split()
)
"""Headers of a stream that an answer in one piece has otherwise, or not at all."""


class UnfitError(UpstreamError):
    """What the server sent is no part of the answer, and none of it was passed on."""


@dataclass(eq=False, kw_only=True)
class SplicedRelay(Relay):
    """Feeds a client from one upstream connection after another; `resumes` for all but the first.

    The answer to a client's own request passes unchanged if it is not an event stream. A later part, or the
    stream behind an unstreamed answer, must be one, or `finished` fails with `UnfitError`; it fails with
    `CutError` at a cut. A client that does not stream gets its answer at the end, as `content_type`.
    """

    splice: Splice
    resumes: bool
    content_type: bytes
    _answer_head: ResponseHead | None = None
    _spliced: bool = False

    def data(self, data: bytes) -> None:
        """Pass on what the client gets of a piece of the body, up to a cut."""
        if not self._spliced:
            super().data(data)
            return
        if self._usage is not None:
            self._usage.feed(data)
        try:
            out = self.splice.feed(data)
        except PartError as error:
            if error.before:
                self._send(error.before)
            self._unfit(str(error))
            return
        if out:
            self._send(out)
        self._note_first_byte(data)
        if self.splice.is_cut and not self.finished.done():
            self.upstream.let_go()
            self._client.fed_by(None)
            self.finished.set_exception(CutError())

    def end(self, trailers: list[Header]) -> None:
        if not self._spliced:
            super().end(trailers)
            return
        try:
            last = self.splice.end()
        except PartError as error:
            self._unfit(str(error))
            return
        if self._answer_head is not None:
            stream = self._answer_head
            kept = [header for header in stream.headers if header[0].lower() not in OF_THE_STREAM]
            head = ResponseHead(200, stream.reason, [(b"Content-Type", self.content_type), *kept])
            if self.request.opened:
                self._unsent_head = head
                self._send(last)
                self._client.send_end([])
            else:
                self._client.respond(head, last, *self.extra)
            self._ended()
            return
        if last:
            self._send(last)
        super().end(trailers)

    def _begin(self, head: ResponseHead) -> None:
        usage = self._read_head(head)
        self._spliced = head.status == 200 and usage is not None and usage.streaming and usage.readable
        if not self._spliced and (self.resumes or not self.splice.asked.streamed):
            self._unfit(f"HTTP {head.status} instead of a stream")
        elif not self._spliced:
            self.splice.why_not = "the answer is not a stream"
            self._pass_on(head)
        elif not self.splice.asked.streamed:
            self._answer_head = head
        elif self.resumes:
            self._client.fed_by(self.upstream)
        else:
            self._pass_on(head)

    def _unfit(self, why: str) -> None:
        self._spliced = False
        self.upstream.abort()
        self.failed(UnfitError(why))
