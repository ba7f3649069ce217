"""A request's way to a worker and its answer's way back, byte for byte, in the queue or past it."""

import asyncio

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import StaleError, UnreachableError, UpstreamConnection, UpstreamError
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access import Access
from clairvoyant_cli.proxy.pool import Worker
from clairvoyant_cli.proxy.refusals import Refusals
from clairvoyant_cli.proxy.relay import Relay


def forward(
    request: Request, upstream: UpstreamConnection, relay: Relay, worker: Worker, *, drop: tuple[bytes, ...]
) -> None:
    """Begin to send a request to a worker, without the headers named in `drop`."""
    head = request.head
    extra: list[Header] = []
    if request.expects_continue:
        extra.append((b"Expect", b"100-continue"))
        request.welcome_body_soon()
    if worker.key is not None:
        drop = (*drop, b"authorization")
        if head.method.upper() != b"TRACE":  # whose answer is the request itself
            extra.append((b"Authorization", b"Bearer " + worker.key))
    upstream.throttle = request.connection
    upstream.begin(head, head.encode(worker.backend.upstream.host_header, *extra, drop=drop), relay)
    if head.has_body:
        request.flow_to(upstream, keep=relay.may_wait)
    upstream.uncork()


async def pass_on(request: Request, route: Route, worker: Worker, access: Access, refusals: Refusals) -> None:
    """Send a request that needs no slot straight to a worker, and its answer back."""
    try:
        try:
            await _relayed(request, worker, access)
        except StaleError:
            if not _repeatable(request.head):
                raise
            await _relayed(request, worker, access, fresh=True)
    except UpstreamError as error:
        worker.watch.look_now()
        say = refusals.unreachable if isinstance(error, UnreachableError) else refusals.broken_off
        refusals.send(request, route, say(worker, str(error)))


async def _relayed(request: Request, worker: Worker, access: Access, *, fresh: bool = False) -> None:
    """Have a request answered; `fresh` on a new connection."""
    upstream: UpstreamConnection | None = None
    relay: Relay | None = None
    try:
        upstream = await worker.backend.upstream.connect(fresh=fresh)
        relay = Relay(request, upstream)
        forward(request, upstream, relay, worker, drop=access.consumed_headers)
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
