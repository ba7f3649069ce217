"""The proxy's own error answers, and the prompts that a server would truncate."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.errors import MAX_RETRY_AFTER_S, Refusal
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.page_fields import PageFields, is_preflight, preflight_answer
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.truncations import Truncations
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.start_forecast import start_of

NO_CONNECT = Refusal(405, "clairvoyant: CONNECT is not supported", kind="connect")
IN_A_LOOP = Refusal(
    508,
    "clairvoyant: the backend's address leads back to this proxy; give --backend the LLM server itself",
    kind="loop",
)
DRAINING = Refusal(503, "clairvoyant is draining; try again in a moment", 5, kind="draining")
SHUTTING_DOWN = Refusal(503, "clairvoyant is shutting down; try again in a moment", 5, kind="shutting_down")
OVERRAN = Refusal(
    504, "clairvoyant: the answer took longer than max_answer_s allows", final=True, kind="max_answer_s"
)
STOPPED = Refusal(499, "request canceled by the operator", kind="canceled")
AWAY_RETRY_S = 5.0
UNREACHABLE_RETRY_S = 2.0
RETRY_COUNT = b"x-stainless-retry-count"  # of OpenAI's and Anthropic's SDKs
FINAL_S = 30.0  # how long a final refusal is remembered: SDKs send again after 0.5 to 8 s
MOST_FINAL = 64
LONGEST_REPEATED = 8 << 20  # a body is compared by a hash, at about 1 GB/s


@dataclass(frozen=True, slots=True)
class Refusals:
    """Makes refusals."""

    pool: ServerPool
    journal: Journal
    truncations: Truncations | None = None
    pages: PageFields = field(default_factory=PageFields)
    final: dict[int, tuple[float, Refusal]] = field(default_factory=dict)  # told behind early heads

    def full(self) -> Refusal:
        return self._overload("queue_full", "clairvoyant: the queue is full")

    def client_full(self, client: str) -> Refusal:
        message = f"clairvoyant: {client} has reached its queue limit; try again when a request is answered"
        return self._overload("client_limit", message, busy=False)

    def waited_too_long(self, max_wait_s: float, exchange: Exchange) -> Refusal:
        """No slot became free in the time that a request may wait: it may be tried when it would start."""
        starts_s, _ = start_of(self.pool.queue, exchange.job, self.journal.clock())
        return self._overload(
            "max_wait",
            f"clairvoyant: no slot became free within {max_wait_s:g} s",
            0.0 if starts_s == inf else starts_s,
        )

    def too_late(self, objective: str, retry_after_s: float) -> Refusal:
        message = f"clairvoyant: rejected: predicted TTFT exceeds the target ({objective}); try again later"
        return Refusal(503, message, retry_after_s, busy=True, kind="slo")

    def _overload(
        self, kind: str, message: str, least_s: float | None = None, *, busy: bool = True
    ) -> Refusal:
        """Return a refusal; by default it may be tried again when a slot falls free. Clients count tries."""
        queue, now = self.pool.queue, self.journal.clock()
        if least_s is None:
            least_s = min((each.next_free_s(now) for each in queue.fleet.servers.values()), default=0.0)
        # There will be room after the time that a tenth of the queue takes.
        served_s = queue.tail.served_s
        room_s = max(1.0, (fmean(served_s) if served_s else 2.0) * max(1, len(queue) // 10))
        wait_s = min(max(least_s, room_s), MAX_RETRY_AFTER_S)
        return Refusal(503, message, wait_s, busy=busy, kind=kind)

    def away(self, server: Server | None = None) -> Refusal:
        server = server or self.pool.first
        why = server.status.detail or "no connection"
        return Refusal(503, f"{_place(server)} is not reachable ({why})", AWAY_RETRY_S, kind="server_away")

    def draining_alone(self, servers: Sequence[Server]) -> Refusal:
        """All servers that could serve it are being drained."""
        if len(servers) == len(self.pool):
            return DRAINING
        names = " and ".join(server.name for server in servers)
        message = f"clairvoyant: only {names} can serve this, and is draining; try again later"
        return Refusal(503, message, AWAY_RETRY_S, kind="draining")

    def unreachable(self, server: Server, why: str) -> Refusal:
        message = f"{_place(server)} is not reachable ({why})"
        return Refusal(503, message, UNREACHABLE_RETRY_S, kind="server_away")

    def broken_off(self, server: Server, why: str) -> Refusal:
        """The connection ended before an answer began."""
        return Refusal(502, f"{_place(server)} failed: {why}", kind="server_failed")

    def send(
        self, request: Request, route: Route, refusal: Refusal, exchange: Exchange | None = None
    ) -> None:
        """Answer a request with a refusal in its dialect; `exchange` is its record, if any. An answer that
        has begun is cut short instead, visibly to its client.
        """
        self.journal.refused[refusal.kind] += 1
        if request.connection.head_sent:
            request.connection.cut()
            return
        if is_preflight(request.head):
            request.connection.respond(preflight_answer(request.head), b"")
            return
        head, body = self.rendered(refusal, route)
        about = () if exchange is None else self.about(exchange)
        if exchange is not None and exchange.attempt is not None:
            about += self.by(self.pool.server_of(exchange))
        request.connection.respond(head, body, *about, *self.pages.of_refusal(request.head))

    def rendered(self, refusal: Refusal, route: Route) -> tuple[ResponseHead, bytes]:
        head, body = self.pool.speaker(route.family).adapter.render(refusal, route)
        return head, refusal.body or body

    def remember(self, key: int, refusal: Refusal | None) -> None:
        """Keep a refusal for a client that repeats its request, as it could not read the status; with None,
        forget that of an earlier request.
        """
        self.final.pop(key, None)
        if refusal is not None:
            self.final[key] = self.journal.clock(), refusal
        if len(self.final) > MOST_FINAL:
            del self.final[next(iter(self.final))]

    def of_repeated(self, request: Request, client: str) -> Refusal | None:
        """Return the refusal of a request that an SDK repeats, once. A request that is not marked as a repeat
        discards it.
        """
        now = self.journal.clock()
        for key in [key for key, (at_s, _) in self.final.items() if now - at_s >= FINAL_S]:
            del self.final[key]
        if not self.final:
            return None
        _, refusal = self.final.pop(key_of(request, client), (now, None))
        return None if request.head.get(RETRY_COUNT) in (None, b"0") else refusal

    def about(self, exchange: Exchange) -> tuple[Header, ...]:
        """Return the headers that report a request's prediction and its wait."""
        prediction, parsed = exchange.asked.prediction, exchange.asked.parsed
        waited_ms = exchange.waited_s(self.journal.clock()) * 1000
        server = self.pool.server_of(exchange)
        # Only a server that swaps models shortens prompts without saying so.
        cut = () if self.truncations is None or server.loaded is None else self.truncations.header(exchange)
        return (
            (b"X-Clairvoyant-Request-Id", exchange.id.encode()),
            (b"X-Clairvoyant-Class", prediction.length_class.encode()),
            (b"X-Clairvoyant-Tokens", b"%d" % round(prediction.expected_tokens)),
            (b"X-Clairvoyant-Queue-Ms", b"%.1f" % waited_ms),
            *(((b"X-Clairvoyant-Stable-Prefix", done.encode()),) if (done := parsed.stabilised) else ()),
            *cut,
        )

    def by(self, server: Server) -> tuple[Header, ...]:
        """Return the header that names the server of an answer, where there are several. It is not in a head
        that comes before the server's: another server may answer.
        """
        return ((b"X-Clairvoyant-Backend", server.name.encode()),) if len(self.pool) > 1 else ()


def key_of(request: Request, client: str) -> int:
    """Identify a request of a client by all that it sends but the count of its tries; 0 if its body is too
    long, or not there any more.
    """
    pieces, head = request.arrived if request.is_kept else [], request.head
    if not 0 < sum(map(len, pieces)) <= LONGEST_REPEATED:
        return 0
    fields = [field for field in head.headers if field[0].lower() != RETRY_COUNT]
    return hash((client, head.target, *fields, b"".join(pieces)))


def _place(server: Server) -> str:
    return f"clairvoyant: {server.adapter.title} at {server.upstream.url}"
