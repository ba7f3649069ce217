"""A request on its way to a server, from the queue or past it, and its answer on the way back: byte for byte,
or as one part of several.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from clairvoyant_cli.backends.adapter import LOADING
from clairvoyant_cli.backends.priority import OUTDATED, Barred, BarredError, Filtering, Stamp, Stamping
from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.http.request import BodySink, Request
from clairvoyant_cli.http.upstream import (
    NotReadyError,
    RefusedError,
    ResponseSink,
    UpstreamConnection,
    UpstreamError,
)
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.heartbeat import Joint, blank_after
from clairvoyant_cli.protocols.outer_members import OuterMembers
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.splice import PartError, Splice
from clairvoyant_cli.protocols.usage import UsageReader
from clairvoyant_cli.proxy.access.page_fields import PageFields, is_preflight
from clairvoyant_cli.proxy.requests.heartbeat import Heartbeat
from clairvoyant_cli.proxy.requests.preemption import UnfitError
from clairvoyant_cli.proxy.servers.server import Server

REPLACED = (b"host", b"content-length", b"accept-encoding", b"expect")
"""Headers of a client's request that are replaced in a request made in its name."""

_CODING = re.compile(
    rb"(?:^|,)[ \t]*(?:x-)?(?:gzip|deflate|compress|br|zstd|\*)[ \t]*(?:$|[,;])", re.IGNORECASE
)
NOT_READY_BYTES = 4096  # the longest answer that may only mean "not ready": llama.cpp's has 80 bytes
NOT_READY = {b"Loading model": LOADING, b"text_generation_busy": "still at an earlier request"}
"""What llama.cpp says while it loads a model, and vllm-mlx while an abandoned answer goes on."""
STREAM_ERROR = b'"error"'  # in an event of vllm-mlx's stream, which has status 200
REFUSALS = (400, 404, 413, 415, 422, 500, 501)
REFUSAL_BYTES = 16 * 1024  # the longest that is looked at
_MEDIA = rb"image|vision|audio|video|multimodal|mmproj|modalit"
_NO_MEDIA = re.compile(_MEDIA, re.IGNORECASE)  # llama.cpp's error has status 500
_OF_THIS_SERVER = re.compile(
    _MEDIA + rb"|context|too long|too large|maximum.{0,20}tokens|does not (?:support|exist)|not supported|"
    rb"not found|previous_response",
    re.IGNORECASE,
)
"""What servers say of what another may have: a longer context, media, another model or function."""
RESPONSE_ID = re.compile(rb'"(?:response_)?id"\s*:\s*"(resp[A-Za-z0-9_-]{1,200})"')
LONGEST_ID = 256  # bytes of a field with one
LOCATIONS = frozenset((b"location", b"content-location"))

OF_THE_STREAM = frozenset(
    b"content-type content-length transfer-encoding connection keep-alive cache-control "
    b"x-accel-buffering".split()
)
"""Headers of a stream that an answer in one piece has otherwise, or not at all."""


class PreemptedError(Exception):
    """The answer was preempted; its request waits again."""


def is_of_this_server(status: int, body: bytearray) -> bool:
    """Whether a refusal is one that another server might not give: this one lacks the model, the route or
    the stored response, its context is too short, or it does not take images, say.
    """
    said = _NO_MEDIA if status == 500 else _OF_THIS_SERVER
    return status in (404, 415, 501) or said.search(body) is not None


def forward(
    request: Request,
    upstream: UpstreamConnection,
    relay: ResponseSink,
    server: Server,
    *,
    barred: Barred,
    members: OuterMembers | None = None,
    keep: bool = False,
    stamp: Stamp | None = None,
    uncompressed: bool = False,
) -> None:
    """Begin to send a request, without what is `barred`: its body is looked through by `members`, None if
    that is not needed. `keep` a complete body for a repeat. Ask for an `uncompressed` answer where a head
    without a coding may be sent before it.
    """
    head = request.head
    drop, extra = barred.in_head(head), list[Header]()
    if uncompressed and _CODING.search(head.get(b"accept-encoding") or b""):
        drop = (*drop, b"accept-encoding")
        extra.append((b"Accept-Encoding", b"identity"))
    if stamp is not None:
        extra += stamp.headers
    if stamp is not None and stamp.text:
        drop = (*drop, *OUTDATED)
        if head.length is not None:
            extra.append((b"Content-Length", b"%d" % (head.length + len(stamp.text))))
    if request.expects_continue:
        extra.append((b"Expect", b"100-continue"))
        request.welcome_body_soon()
    if server.key is not None and not is_preflight(head):  # which may come from anybody
        drop = (*drop, b"authorization")
        if head.method.upper() != b"TRACE":  # whose answer is the request itself
            extra.append((b"Authorization", b"Bearer " + server.key))
    upstream.throttle = request
    target = server.target_of(head.origin_form)
    wire = head.encode(server.upstream.host_header, *extra, drop=drop, target=target)
    upstream.begin(head, wire, relay)
    if head.has_body:
        sink: BodySink = upstream if stamp is None else Stamping(upstream, stamp)
        if barred.field:

            def refuse(refusal: Refusal) -> None:
                upstream.abort()
                relay.failed(BarredError(refusal))

            sink = Filtering(sink, barred, members, refuse)
        request.flow_to(sink, keep=keep)


def forward_continuation(
    request: Request,
    upstream: UpstreamConnection,
    relay: ResponseSink,
    server: Server,
    body: bytes,
    path: str | None = None,
    *,
    barred: Barred,
) -> None:
    """Send a server another request in the name of one: another body, to another path maybe."""
    asked, host_header = request.head, server.upstream.host_header
    target = server.target_of(asked.origin_form if path is None else path.encode())
    passing = asked.fields.passing(*REPLACED, *barred.in_head(asked))
    extra = [(b"Accept-Encoding", b"identity"), (b"Content-Length", b"%d" % len(body))]
    if server.key is not None:
        passing = [header for header in passing if header[0].lower() != b"authorization"]
        extra.append((b"Authorization", b"Bearer " + server.key))
    fields = Fields([(b"Host", host_header), *passing, *extra])
    head = RequestHead(asked.method, target, fields)
    upstream.throttle = request
    upstream.begin(head, head.encode(host_header), relay)
    upstream.body(body)
    upstream.body_end([])


class Watcher(Protocol):
    """Hears what a server answers: its head, and each piece of its body that brings anything."""

    def head(self, head: ResponseHead) -> tuple[UsageReader, tuple[Header, ...]]:
        """Return what counts the answer's tokens, and headers to be added to it."""

    def piece(self) -> None: ...


@dataclass(eq=False)
class Relay(ResponseSink):
    """Feeds a client from an upstream connection; `finished` resolves, or fails, when the answer ends.

    `whole` and `broken` say how it ended even if `finished` was canceled by a client that left at that
    moment. With `may_wait`, a "loading" answer is kept from the client and `finished` fails with
    `NotReadyError`. With `holds_head` the head is sent with the first of the body: until then the request can
    be repeated. `heartbeat` keeps the client waiting until then. `extra` are headers of the proxy's own.
    If `elsewhere` says that another server can be asked, a refusal that this one alone may give is kept from
    the client, and `finished` fails with `RefusedError`.
    """

    request: Request
    upstream: UpstreamConnection
    server: Server
    pages: PageFields
    extra: tuple[Header, ...]
    watcher: Watcher | None = None
    shape: Shape = Shape.OPAQUE
    may_wait: bool = False
    elsewhere: Callable[[], object] | None = None
    holds_head: bool = False
    heartbeat: Heartbeat | None = None
    on_id: Callable[[str], None] | None = None
    status: int = 0
    whole: bool = False
    broken: bool = False
    _usage: UsageReader | None = None
    _held: tuple[ResponseHead, bytearray] | None = None
    _unsent_head: ResponseHead | None = None
    _joint: Joint | None = None
    _tail: bytes = b""
    _silent: bool = False

    def __post_init__(self) -> None:
        self._client = self.request.connection
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def informational(self, head: ResponseHead) -> None:
        self._client.send_informational(head)

    def head(self, head: ResponseHead) -> None:
        """Pass on the head, with the proxy's headers after the backend's."""
        self.pages.learn(self.request.head, head)
        if not LOCATIONS.isdisjoint(head.fields.keys):  # which must not lead past the proxy
            moved = self.server.kept_here
            fields = [
                (name, moved(value) if name.lower() in LOCATIONS else value) for name, value in head.headers
            ]
            head.replace(fields)
        refused = head.status in REFUSALS and self.elsewhere is not None and self.elsewhere()
        is_stream = b"event-stream" in (head.get(b"content-type") or b"")
        may_be_error = head.status == 503 or (head.status == 200 and is_stream)
        if refused or (self.may_wait and may_be_error and (head.length or 0) <= NOT_READY_BYTES):
            self._held = (head, bytearray())
        else:
            self._begin(head)

    def data(self, data: bytes) -> None:
        if self._held is not None:
            head, held = self._held
            held.extend(data)
            is_refusal = head.status in REFUSALS
            is_busy = head.status == 503 or (STREAM_ERROR in held and any(map(held.__contains__, NOT_READY)))
            if len(held) > (REFUSAL_BYTES if is_refusal else NOT_READY_BYTES) or not (is_refusal or is_busy):
                self._pass_on_held()  # it is not all that the server says
        elif not self.broken:
            if self.on_id is not None:
                self._find_id(data)
            self._send(data)
            self._goes_on(brings_anything=self._usage is None or self._usage.feed(data))

    def _find_id(self, data: bytes) -> None:
        """Report the id of the response, which may arrive in pieces."""
        self._tail += data
        found = RESPONSE_ID.search(self._tail)
        if found is not None and self.on_id is not None:
            self.on_id(found[1].decode())
            self.on_id = None
        self._tail = b"" if found is not None else self._tail[-LONGEST_ID:]

    def _goes_on(self, *, brings_anything: bool) -> None:
        """Report that the answer begins or goes on, unless a piece of it brings nothing."""
        self._silent = False
        if self.watcher is not None and brings_anything:
            self.watcher.piece()

    def end(self, trailers: list[Header]) -> None:
        if self._held is not None:
            head, held = self._held
            not_ready = next((why for words, why in NOT_READY.items() if words in held), "")
            if head.status in REFUSALS and is_of_this_server(head.status, held):
                self.failed(RefusedError(f"HTTP {head.status}"))
            elif not_ready:
                self.failed(NotReadyError(not_ready))
            else:
                self._pass_on_held()
                self.end(trailers)  # now that it is known what is joined
            return
        if self.broken:
            return
        if self._unsent_head is not None or self.heartbeat is not None:
            self._send_head()
        if self._joint is not None:
            self._client.send_body(self._joint.end())
        if self._joint is not None and self._joint.breaks_off:
            self._client.cut()
        else:
            self._client.send_end(trailers)
        self.whole = True
        if not self.finished.done():
            self.finished.set_result(None)

    def preempt(self) -> bool:
        """Drop the answer: `finished` fails with `PreemptedError`. False if its head was passed on."""
        if self.request.answered or self.finished.done():
            return False
        self._stop()
        return True

    def _stop(self) -> None:
        self.upstream.let_go()
        self._client.fed_by(None)
        self.finished.set_exception(PreemptedError())

    def give_up(self, error: UpstreamError) -> None:
        """Have `finished` fail as if the server had broken off, unless its head was passed on."""
        if not (self.request.answered or self.finished.done()):
            self.upstream.abort()
            self._client.fed_by(None)
            self.failed(error)

    def failed(self, error: UpstreamError) -> None:
        self.broken = True
        if not self.finished.done():
            self.finished.set_exception(error)

    def _begin(self, head: ResponseHead) -> None:
        self.status = head.status
        if self.watcher is not None:
            self._usage, more = self.watcher.head(head)
            self.extra += more
        self._pass_on(head)

    def _pass_on(self, head: ResponseHead) -> None:
        self._client.fed_by(self.upstream)
        self._unsent_head = head
        if not self.holds_head:
            self._send_head()

    def _pass_on_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._begin(held[0])
            self.data(bytes(held[1]))

    def _send(self, data: bytes) -> None:
        if self._unsent_head is not None or self.heartbeat is not None:
            self._send_head()
        self._client.send_body(data if self._joint is None else self._joint.feed(data))

    def _send_head(self) -> None:
        """Send the head, unless that has been done, and stop the heartbeat."""
        head, self._unsent_head = self._unsent_head, None
        if self.heartbeat is not None:
            self._joint = self.heartbeat.answered(head, self._blank)
            self.heartbeat = None
        if head is None:
            return
        self.request.sent()
        if self.request.opened:
            self.request.opened = False
            return
        self._client.send_head(head, *self.extra)
        if head.status == 101:
            self._client.tunnel(self.upstream.write)

    def _blank(self) -> bytes:
        """Return an empty event if nothing has come since the last call; b"" within an event."""
        usage, silent, self._silent = self._usage, self._silent, True
        if not silent or self.finished.done() or usage is None or self.upstream.paused:
            return b""
        return blank_after(self.shape, usage.passed) if usage.streaming and usage.readable else b""


@dataclass(eq=False, kw_only=True)
class SplicedRelay(Relay):
    """Feeds a client from one upstream connection after another; `resumes` for all but the first.

    The answer to a client's own request passes unchanged if it is not an event stream. A later part, or the
    stream behind an unstreamed answer, must be one, or `finished` fails with `UnfitError`; it fails with
    `PreemptedError` where it is preempted. A client that does not stream gets its answer at the end, as
    `content_type`.
    """

    splice: Splice
    resumes: bool
    content_type: bytes
    _answer_head: ResponseHead | None = None
    _spliced: bool = False

    def data(self, data: bytes) -> None:
        """Pass on what the client gets of a piece of the body, up to where it is preempted."""
        if not self._spliced:
            super().data(data)
            return
        brings_anything = self._usage is None or self._usage.feed(data)
        try:
            out = self.splice.feed(data)
        except PartError as error:
            if error.before:
                self._send(error.before)
            self._unfit(str(error))
            return
        if out:
            self._send(out)
        self._goes_on(brings_anything=brings_anything)
        if self.splice.is_cut and not self.finished.done():
            self._stop()

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
            length = (b"Content-Length", b"%d" % len(last))
            headers = [(b"Content-Type", self.content_type), *kept, length]
            self._unsent_head = ResponseHead(200, stream.reason, headers, len(last))
        if last:
            self._send(last)
        super().end(trailers)

    def _pass_on(self, head: ResponseHead) -> None:
        usage = self._usage
        self._spliced = head.status == 200 and usage is not None and usage.streaming and usage.readable
        if not self._spliced and (self.resumes or not self.splice.asked.streamed):
            self._unfit(f"HTTP {head.status} instead of a stream")
        elif not self._spliced:
            self.splice.why_not = "the answer is not a stream"
            super()._pass_on(head)
        elif not self.splice.asked.streamed:
            self._answer_head = head
        elif self.resumes:
            self._client.fed_by(self.upstream)
        else:
            super()._pass_on(head)

    def _blank(self) -> bytes:
        return super()._blank() if not self._spliced or self.splice.passes_untouched else b""

    def _unfit(self, why: str) -> None:
        self._spliced = False
        self.upstream.abort()
        self.failed(UnfitError(why))
