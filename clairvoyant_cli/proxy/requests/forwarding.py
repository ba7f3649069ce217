"""Sends a request to a server, in the queue or past it; and says which requests may be sent again."""

from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import ResponseSink, UpstreamConnection
from clairvoyant_cli.protocols.inject_field import OUTDATED, Stamp, Stamping
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.access.page_fields import is_preflight
from clairvoyant_cli.proxy.servers.server import Server

REPLACED = (b"host", b"content-length", b"accept-encoding", b"expect")
"""Headers of a client's request that are replaced in a request made in its name."""

KEPT_RUNNING = b"x-conversation-id"
"""With it llama.cpp goes on with a stream whose client has left, and keeps it to be read again."""


def forward(
    request: Request,
    upstream: UpstreamConnection,
    relay: ResponseSink,
    server: Server,
    *,
    drop: tuple[bytes, ...],
    keep: bool = False,
    stamp: Stamp | None = None,
    uncompressed: bool = False,
) -> None:
    """Begin to send a request, without the headers in `drop`; `keep` a complete body for a repeat. Ask for
    an `uncompressed` answer where a head without a coding may be sent before it.
    """
    head = request.head
    extra: list[Header] = []
    if uncompressed and head.get(b"accept-encoding") not in (None, b"", b"identity"):
        drop = (*drop, b"accept-encoding")
        extra.append((b"Accept-Encoding", b"identity"))
    if stamp is not None:
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
        request.flow_to(upstream if stamp is None else Stamping(upstream, stamp), keep=keep)
    upstream.uncork()


def forward_continuation(
    request: Request,
    upstream: UpstreamConnection,
    relay: ResponseSink,
    server: Server,
    body: bytes,
    path: str | None = None,
    *,
    drop: tuple[bytes, ...],
) -> None:
    """Send a server another request in the name of one: another body, to another path maybe."""
    asked, host_header = request.head, server.upstream.host_header
    target = server.target_of(asked.origin_form if path is None else path.encode())
    passing = asked.fields.passing(*REPLACED, *drop)
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


def has_no_side_effects(request: Request, parsed: ParsedRequest) -> bool:
    """Whether a request may be repeated that a server has seen."""
    return parsed.only_answers and request.head.get(KEPT_RUNNING) is None
