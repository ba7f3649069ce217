"""A request's way to a server and its answer's way back, byte for byte, in the queue or past it."""

import asyncio
from collections.abc import Sequence

from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.framing import request_head
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import (
    ResponseSink,
    StaleError,
    UnreachableError,
    UpstreamConnection,
    UpstreamError,
)
from clairvoyant_cli.protocols.inject_field import OUTDATED, Stamp, Stamping
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.proxy.requests.refusals import Refusals
from clairvoyant_cli.proxy.requests.relay import Relay
from clairvoyant_cli.proxy.servers.server import Server

REPLACED = (b"host", b"content-length", b"accept-encoding", b"expect")
"""Headers of a client's request that are replaced in a request made in its name."""


def forward(
    request: Request,
    upstream: UpstreamConnection,
    relay: ResponseSink,
    server: Server,
    *,
    drop: tuple[bytes, ...],
    keep: bool = False,
    stamp: Stamp | None = None,
) -> None:
    """Begin to send a request, without the headers in `drop`, with a stamp; `keep` a complete body for a
    repeat.
    """
    head = request.head
    extra: list[Header] = []
    if stamp is not None:
        drop = (*drop, *OUTDATED)
        if head.length is not None:
            extra.append((b"Content-Length", b"%d" % (head.length + len(stamp.text))))
    if request.expects_continue:
        extra.append((b"Expect", b"100-continue"))
        request.welcome_body_soon()
    if server.key is not None:
        drop = (*drop, b"authorization")
        if head.method.upper() != b"TRACE":  # whose answer is the request itself
            extra.append((b"Authorization", b"Bearer " + server.key))
    upstream.throttle = request.connection
    upstream.begin(head, head.encode(server.upstream.host_header, *extra, drop=drop), relay)
    if head.has_body:
        request.flow_to(upstream if stamp is None else Stamping(upstream, stamp), keep=keep)
    upstream.uncork()


def forward_anew(
    request: Request,
    upstream: UpstreamConnection,
    relay: Relay,
    server: Server,
    body: bytes,
    path: str | None = None,
    *,
    drop: tuple[bytes, ...],
) -> None:
    """Send a server another request in the name of one: another body, to another path maybe."""
    asked, host_header = request.head, server.upstream.host_header
    target = asked.origin_form if path is None else (server.prefix + path).encode()
    passing = asked.fields.passing(*REPLACED, *drop)
    extra = [(b"Accept-Encoding", b"identity"), (b"Content-Length", b"%d" % len(body))]
    if server.key is not None:
        passing = [header for header in passing if header[0].lower() != b"authorization"]
        extra.append((b"Authorization", b"Bearer " + server.key))
    host = (b"Host", host_header)
    head = request_head(asked.method, target, Fields([host, *passing, *extra]))
    upstream.throttle = request.connection
    upstream.begin(head, head.encode(host_header), relay)
    upstream.body(body)
    upstream.body_end([])


async def pass_on(
    request: Request, route: Route, server: Server, access: Access, refusals: Refusals, *extra: Header
) -> None:
    """Forward a request that needs no slot, and its answer with `extra` headers."""
    try:
        try:
            await _relayed(request, server, access, extra)
        except StaleError:
            if not _repeatable(request.head):
                raise
            await _relayed(request, server, access, extra, fresh=True)
    except UpstreamError as error:
        server.watch.look_now()
        say = refusals.unreachable if isinstance(error, UnreachableError) else refusals.broken_off
        refusals.send(request, route, say(server, str(error)))


async def _relayed(
    request: Request, server: Server, access: Access, extra: Sequence[Header], *, fresh: bool = False
) -> None:
    """Have a request answered; `fresh` on a new connection."""
    upstream: UpstreamConnection | None = None
    relay: Relay | None = None
    try:
        upstream = await server.upstream.connect(fresh=fresh)
        relay = Relay(request, upstream, *extra)
        forward(request, upstream, relay, server, drop=access.consumed_headers)
        await relay.finished
    except asyncio.CancelledError:
        if relay is not None and relay.whole:
            return  # the connection may serve another request by now
        if upstream is not None:
            upstream.abort()
        raise


def _repeatable(head: RequestHead) -> bool:
    """Whether a request may be sent again that the backend may have seen (RFC 9110, 9.2.2)."""
    return head.method in (b"GET", b"HEAD", b"OPTIONS") and not head.has_body
