"""The proxy's own error answers, and the prompts that a server would truncate."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from clairvoyant_cli.backends.ollama import full_name, larger_context
from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.errors import MAX_RETRY_AFTER_S, Refusal
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.proxy.access.page_fields import PageFields, is_preflight, preflight_answer
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
from clairvoyant_cli.proxy.servers.pool import ServerPool, ServiceTimes
from clairvoyant_cli.proxy.servers.server import Server, asked_context
from clairvoyant_cli.scheduler.start_forecast import start_of

# Tells when a server answers a prompt without its beginning, because the prompt exceeds the context.
#
# Ollama does this without an error. It drops the oldest messages, except system messages and the last. If the
# rest is still too long, it keeps the first few tokens and the end, half of the context together
# (server/prompt.go; llm/llama_server.go, completionPromptForRequest). Other servers refuse such prompts.
#
# Rule: only what is certain is reported or refused, as characters say little about tokens.

CHARACTERS_A_TOKEN = 8.0
"""Upper bound for text: English has four to five, code and other scripts fewer. Only blanks and repeated
characters have more."""

BYTES_A_TOKEN = 4.0
KEPT = (4, 5)  # tokens of the beginning that Ollama keeps (`num_keep`), with one that begins every text
PLAUSIBLE = 0.9  # of the context: a shorter estimate is no sign that a prompt exceeds it
MAX_PROMPTS = 5000


@dataclass(frozen=True, slots=True)
class Length:
    """What is known of a prompt's tokens: the number at `least`, `about`, and at `most` plausible."""

    least: float
    about: float
    most: float


@dataclass(slots=True)
class Truncations:
    """Foresees and reports truncated prompts."""

    times: ServiceTimes
    say: Callable[[int, str], None]
    _read: OrderedDict[int, tuple[float, int, int]] = field(default_factory=OrderedDict)
    """End of a prompt that was read whole -> its characters, the length of its chain, and its tokens."""

    def length(self, parsed: ParsedRequest) -> Length:
        """Return what is known of a prompt's length. The tokens of a beginning that was read before count,
        unless the chat template may leave some of it out now.
        """
        if parsed.view is None:  # its size is known, not how much of it is text
            return Length(0.0, 0.0, 0.0)
        characters, chain = 4.0 * parsed.prompt_tokens, parsed.conversation.chain
        least = characters / CHARACTERS_A_TOKEN
        about = max(self.times.prompt_tokens(parsed), least)
        for piece in () if parsed.conversation.thinks else chain.hashes:
            if piece in self._read:
                of_characters, length, tokens = self._read[piece]
                more = max(characters - of_characters, 0.0)
                least = max(least, tokens + more / CHARACTERS_A_TOKEN)
                about = tokens * max(chain.length / length, 1.0)
        return Length(least, about, max(about, chain.length / BYTES_A_TOKEN))

    def refusal(self, parsed: ParsedRequest, able: Sequence[Server]) -> Refusal | None:
        """Return a refusal if every server that can serve a request would truncate its prompt."""
        contexts = [None if each.loaded is None else each.loaded.context_of(parsed) for each in able]
        most = max((each or 0 for each in contexts), default=0)
        least = self.length(parsed).least
        if None in contexts or least <= most:
            return None
        # Agents compact their conversation when they read this beginning.
        return Refusal(
            400,
            f"prompt is too long: {least:.0f} tokens > {most} maximum. Ollama would answer without its "
            f"beginning: set {larger_context(least)} (clairvoyant --refuse-truncated)",
            kind="truncated",
        )

    def header(self, exchange: Exchange) -> tuple[Header, ...]:
        """Return the header of an answer to a prompt that its server surely truncates."""
        loaded = None if exchange.attempt is None else self.times.pool.server_of(exchange).loaded
        context = None if loaded is None else loaded.context_of(exchange.asked.parsed)
        least = 0.0 if context is None else self.length(exchange.asked.parsed).least
        if context is None or least <= context:
            return ()
        return ((b"X-Clairvoyant-Truncated", b"tokens=%d, context=%d" % (least, context)),)

    def judge(self, exchange: Exchange, end: RequestEnd) -> None:
        """Mark and report a prompt that was truncated, by the tokens that its server says to have read."""
        totals, parsed = exchange.totals, exchange.asked.parsed
        if exchange.attempt is None or not totals.complete or not totals.prompt_tokens or exchange.parts:
            return
        server = self.times.pool.server_of(exchange)
        if server.loaded is None:
            return
        read, length = totals.prompt_tokens, self.length(parsed)
        model = full_name(parsed.model)
        listed = (each.context for each in server.status.models if full_name(each.name) == model)
        context = asked_context(parsed) or next(listed, None)
        if context and is_truncated(length, read, context, counts_cached=totals.cached_tokens is not None):
            exchange.is_truncated = True
            server.traits.truncated += 1
            server.traits.cut_to = round(length.about), context
            exchange.remark = f"prompt of about {length.about:,.0f} tokens cut to the context of {context:,}"
            news = f"{server.name} read {read:,} tokens of {exchange.id}: {exchange.remark}"
            self.say(logging.WARNING, f"{news}; set {larger_context(length.about)}")
        elif parsed.conversation.chain and read >= 4.0 * parsed.prompt_tokens / CHARACTERS_A_TOKEN:
            chain = parsed.conversation.chain
            self._read[chain.hashes[-1]] = 4.0 * parsed.prompt_tokens, chain.length, read
            if len(self._read) > MAX_PROMPTS:
                self._read.popitem(last=False)


def is_truncated(length: Length, read: int, context: int, *, counts_cached: bool) -> bool:
    """Return whether a server that read so many tokens truncated the prompt: it is longer than the context in
    any case, or the server read half of its context to the token, or less than there is. Old versions count
    only what was not cached, unless `counts_cached`.
    """
    if read > context:
        return False  # the context is another by now
    halved = read in [context - max((context - kept) // 2, 1) for kept in KEPT]
    whole = counts_cached or 2 * read > context
    return (
        length.least > context
        or (halved and length.most >= PLAUSIBLE * context)
        or (whole and read < length.least and length.about > context)
    )


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


@dataclass(frozen=True, slots=True)
class Refusals:
    """Makes refusals. `overload_status` is 503 or 429, for a full queue."""

    pool: ServerPool
    stats: RequestStats
    overload_status: int = 503
    truncations: Truncations | None = None
    pages: PageFields = field(default_factory=PageFields)

    def full(self) -> Refusal:
        return self._overload("queue_full", "clairvoyant: the queue is full")

    def client_full(self, client: str) -> Refusal:
        message = f"clairvoyant: {client} has reached its queue limit; try again when a request is answered"
        return self._overload("client_limit", message, busy=False)

    def waited_too_long(self, max_wait_s: float, exchange: Exchange) -> Refusal:
        """No slot became free in the time that a request may wait: it may be tried when it would start."""
        starts_s, _ = start_of(self.pool.queue, exchange.job, self.stats.journal.clock())
        return self._overload(
            "max_wait",
            f"clairvoyant: no slot became free within {max_wait_s:g} s",
            0.0 if starts_s == inf else starts_s,
        )

    def too_late(self, objective: str, retry_after_s: float) -> Refusal:
        message = f"clairvoyant: rejected: predicted TTFT exceeds the target ({objective}); try again later"
        return Refusal(self.overload_status, message, retry_after_s, busy=True, kind="slo")

    def _overload(
        self, kind: str, message: str, least_s: float | None = None, *, busy: bool = True
    ) -> Refusal:
        """Return a refusal; by default it may be tried again when a slot falls free. Clients count tries."""
        queue, now = self.pool.queue, self.stats.journal.clock()
        if least_s is None:
            least_s = min((each.next_free_s(now) for each in queue.fleet.servers.values()), default=0.0)
        wait_s = min(max(least_s, self.stats.retry_after_s(len(queue))), MAX_RETRY_AFTER_S)
        return Refusal(self.overload_status, message, wait_s, busy=busy, kind=kind)

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
        self.stats.refused[refusal.kind] += 1
        if request.connection.head_sent:
            request.connection.cut()
            return
        if is_preflight(request.head):
            request.connection.respond(preflight_answer(request.head), b"")
            return
        head, body = self.rendered(refusal, route)
        about = () if exchange is None else self.about(exchange)
        request.connection.respond(head, body, *about, *self.pages.of_refusal(request.head))

    def rendered(self, refusal: Refusal, route: Route) -> tuple[ResponseHead, bytes]:
        return self.pool.speaker(route.family).adapter.render(refusal, route)

    def about(self, exchange: Exchange) -> tuple[Header, ...]:
        """Return the headers that report a request's prediction and its wait."""
        prediction = exchange.asked.prediction
        waited_ms = exchange.waited_s(self.stats.journal.clock()) * 1000
        return (
            (b"X-Clairvoyant-Request-Id", exchange.id.encode()),
            (b"X-Clairvoyant-Class", prediction.length_class.encode()),
            (b"X-Clairvoyant-Tokens", b"%d" % round(prediction.expected_tokens)),
            (b"X-Clairvoyant-Queue-Ms", b"%.1f" % waited_ms),
            *_stabilised(exchange.asked.parsed.stabilised),
            *(() if self.truncations is None else self.truncations.header(exchange)),
            *(() if exchange.attempt is None else self.by(self.pool.server_of(exchange))),
        )

    def by(self, server: Server) -> tuple[Header, ...]:
        """Return the header that names the server of an answer, where there are several."""
        return ((b"X-Clairvoyant-Backend", server.name.encode()),) if len(self.pool) > 1 else ()


def _stabilised(done: str) -> tuple[Header, ...]:
    return ((b"X-Clairvoyant-Stable-Prefix", done.encode()),) if done else ()


def _place(server: Server) -> str:
    return f"clairvoyant: {server.adapter.title} at {server.upstream.url}"
