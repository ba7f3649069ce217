"""Keeps clients from giving up while they wait: in the queue, while a prompt is read, once preempted.

Clients close the connection after 60 s (gemini-cli) to 600 s (SDKs in Python) in which nothing comes, and
sooner after a head without a body. So a client gets nothing at first, while a refusal can still have a
status. After that it gets the head of its answer and an empty event of its protocol every few seconds, and
an error is sent as an event. An answer that is not streamed breaks off behind its error: the SDKs of OpenAI,
Anthropic and Ollama raise an exception then, and those in Python that repeat failed requests do so. Where the
error is final, they get it with its status then, and the server is not asked again.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace

from clairvoyant_cli.http.heads import ResponseHead, reason_of
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.heartbeat import Joint, error_event, filler_of, joint_of
from clairvoyant_cli.protocols.request_parsing import has_no_side_effects
from clairvoyant_cli.protocols.routes import Shape, Work
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.refusals import Refusals, key_of
from clairvoyant_cli.proxy.servers.silence import HEARTBEATS_END_S

EVERY_S = 10.0  # a silence in the middle of an answer is filled after one to two of these
SUSPENDED_EVERY_S = 4.0
"""Interval of the events; after a preemption it is shorter, as some clients allow 5 s between two pieces."""

SHARE = 0.5  # share of a client's announced time-out that passes at most without anything
TIMEOUT_HEADERS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""Headers in which OpenAI's and Anthropic's SDKs announce their time-outs, in seconds."""

SHORTEST_S = 1.0
BINARY = re.compile(rb'"encoding_format"\s*:\s*"(?!float"|base64")')  # an answer that is no JSON


class Heartbeat:
    """Keeps the client of one request, which starts now.

    `silent_s` is how long the client gets nothing; None: no events before its answer. `request.opened` means
    that it has got a head and nothing of its answer.
    """

    __slots__ = ("_every_s", "_exchange", "_fills", "_joint", "_key", "_refusals", "_request", "_timer")

    def __init__(
        self, exchange: Exchange, request: Request, refusals: Refusals, silent_s: float | None
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._refusals = refusals
        self._every_s = EVERY_S
        self._key = 0  # of a request that its client may repeat without having got a status
        self._joint: Joint | None = None
        self._timer: asyncio.TimerHandle | None = None
        asked = exchange.asked
        readable = request.complete and asked.parsed.view is not None and asked.route.work is not Work.OPAQUE
        self._fills = silent_s is not None and readable and asked.parsed.stream
        if silent_s is not None and readable and not asked.parsed.stream_unclear:
            timeout_s = _announced_s(request)
            self._every_s = min(EVERY_S, SHARE * timeout_s)
            self._timer = asyncio.get_running_loop().call_later(min(silent_s, SHARE * timeout_s), self._begin)

    def _begin(self) -> None:
        asked = self._exchange.asked
        if self._request.connection.head_sent:
            return  # the answer came in the same turn of the event loop
        may_store = asked.route.shape in (Shape.RESPONSES, Shape.CHAT)
        if may_store and not has_no_side_effects(self._request, asked.parsed):
            return  # a server that stores the answer does so under its own id
        if asked.route.work is Work.EMBED and BINARY.search(b"".join(self._request.arrived)) is not None:
            return
        filler = filler_of(
            asked.route.shape, asked.parsed.model, self._exchange.id, streamed=asked.parsed.stream
        )
        if filler is None:
            return
        self._request.opened = True
        if not asked.parsed.stream:
            self._key = key_of(self._request, self._exchange.job.client)
        lent = self._refusals.pages.of_early_head(self._request.head)
        head = ResponseHead(200, reason_of(200), [(b"Content-Type", filler.content_type), *lent])
        self._request.connection.send_head(head, *self._refusals.about(self._exchange))
        self._request.connection.send_body(filler.first)
        self._repeat(lambda: filler.again, self._every_s)

    @property
    def may_open(self) -> bool:
        """Whether its client may get, or has got, a head before the server's."""
        return self._timer is not None or self._request.opened

    def suspend(self, event: bytes) -> None:
        """Send an event again and again to the client of a streamed answer that was preempted."""
        self.stop()  # it may have been preempted again before any more of its answer came
        self._every_s = min(self._every_s, SUSPENDED_EVERY_S)
        self._repeat(lambda: event, self._every_s)

    def _repeat(self, event: Callable[[], bytes], every_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(every_s, self._send, event, every_s)

    def _send(self, event: Callable[[], bytes], every_s: float) -> None:
        attempt = self._exchange.attempt
        overdue_s = None if attempt is None else attempt.overdue_s
        now = self._refusals.journal.clock()
        if overdue_s is None or now - overdue_s < HEARTBEATS_END_S:
            self._request.connection.send_body(event() if self._joint is None else self._joint.feed(event()))
        self._repeat(event, every_s)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answered(self, head: ResponseHead | None, blank: Callable[[], bytes]) -> Joint | None:
        """Stop, as the answer begins with a `head`, or goes on. Return what joins it to what its client has
        got, None if that is nothing. From then on `blank` makes the events that fill a silence in a stream.
        """
        self.stop()
        if head is None:
            return self._joint
        if self._fills and (head.length is None or self._request.opened):
            self._repeat(blank, EVERY_S)
        if not self._request.opened:
            return None
        asked = self._exchange.asked
        shape, streamed = asked.route.shape, asked.parsed.stream
        self._joint = joint_of(shape, head, self._exchange.id, self._error, streamed=streamed)
        return self._joint

    def _error(self, body: bytes, refusal: Refusal) -> bytes:
        asked = self._exchange.asked
        body = body or self._refusals.rendered(refusal, asked.route)[1]
        if self._key:
            self._refusals.remember(self._key, replace(refusal, body=body) if refusal.is_final else None)
        return error_event(body, asked.route.shape, refusal, self._exchange.id, streamed=asked.parsed.stream)

    def fail(self, refusal: Refusal) -> None:
        """End the answer of a client that has got a head with an error, visibly if it is no stream."""
        self.stop()
        self._request.opened = False
        self._request.connection.send_body(self._error(b"", refusal))
        if self._exchange.asked.parsed.stream:
            self._request.connection.send_end([])
        else:
            self._request.connection.cut()


def _announced_s(request: Request) -> float:
    """Return the shortest time-out that a client announces, infinite if none."""
    shortest_s = float("inf")
    for name in TIMEOUT_HEADERS:
        try:
            announced_s = float(request.head.get(name) or b"inf")
        except ValueError:
            continue
        if announced_s > 0:
            shortest_s = min(shortest_s, max(announced_s, SHORTEST_S))
    return shortest_s
