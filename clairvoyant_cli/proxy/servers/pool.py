"""The servers behind the proxy, the queue that feeds them, and which of them can take a request, and
how long it takes there.

Rule 1: a server that is away is waited for; a request is refused only when every server that could serve it
has been away for longer than the outage grace.
Rule 2: an answer that has begun goes on at the server that began it, and elsewhere only while that is away
and another is proven to continue it exactly.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf

from clairvoyant_cli.backends.adapters import OTHER
from clairvoyant_cli.backends.ollama import full_name
from clairvoyant_cli.protocols.media import Medium
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Family, is_known
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.exchange import AttemptEnd, Exchange, Outcome, RequestEnd
from clairvoyant_cli.proxy.queue.operation import Coverage
from clairvoyant_cli.proxy.servers.client_means import ClientMeans
from clairvoyant_cli.proxy.servers.server import Server, asked_context, is_under
from clairvoyant_cli.scheduler.chain import MEDIUM_CHARACTERS
from clairvoyant_cli.scheduler.job import Estimates
from clairvoyant_cli.scheduler.queue import Scheduler
from predictor.record import Prediction

MOST_STORED = 10_000  # responses whose server is remembered, also over a restart
NEARLY_FULL = 0.9


class ServerPool:
    """One or more servers. `queue` holds the requests that wait for them."""

    def __init__(self, queue: Scheduler) -> None:
        self.queue = queue
        self.servers: dict[str, Server] = {}  # by id; `ServerLifecycle` adds and removes them
        # Hash of a response's id -> the address of the server that stores it, the newest last.
        self.stored: dict[str, str] = {}

    def __getitem__(self, server_id: str) -> Server:
        return self.servers[server_id]

    def __iter__(self) -> Iterator[Server]:
        return iter(self.servers.values())

    def __len__(self) -> int:
        return len(self.servers)

    def get(self, server_id: str) -> Server | None:
        return self.servers.get(server_id)

    def named(self, name: str) -> Server:
        """Return the server with this label; KeyError if there is none."""
        return {server.name: server for server in self}[name]

    def name_of(self, server_id: str) -> str:
        """Return the label of a server; any other text, such as the id of one that has left, as it is."""
        server = self.get(server_id)
        return server_id if server is None else server.name

    def without_prefix(self, target: bytes) -> bytes:
        """Return the target of a request, which may begin with the path in a server's URL, without it."""
        under = [prefix for each in self if (prefix := each.prefix.encode()) and is_under(prefix, target)]
        if not under or is_known(target.partition(b"?")[0].decode()):
            return target
        rest = target[len(max(under, key=len)) :]
        return rest if rest.startswith(b"/") else b"/" + rest

    @property
    def first(self) -> Server:
        """The server that gets requests that bypass the queue."""
        return next(iter(self.servers.values()))

    def holds(self, response: str, server: Server) -> None:
        """Remember which server has answered with a response: only that one may have it stored."""
        self.stored[_hashed(response)] = server.id
        if len(self.stored) > MOST_STORED:
            del self.stored[next(iter(self.stored))]

    def holder_of(self, response: str) -> Server | None:
        return self.servers.get(self.stored.get(_hashed(response), ""))

    # -- one request -----------------------------------------------------------------------------------

    def server_of(self, exchange: Exchange) -> Server:
        """Return the server that serves an exchange; the first if it waits, or its server has left."""
        attempt = exchange.attempt
        return (None if attempt is None else self.servers.get(attempt.server_id)) or self.first

    def model_of(self, exchange: Exchange) -> str:
        """Return the model a request names, or else its server's only model."""
        return exchange.asked.parsed.model or self.server_of(exchange).only_model

    def affinity_of(self, parsed: ParsedRequest) -> str:
        """Return what a request needs loaded, in one spelling: that of a server that lists it if one does."""
        swap = [server for server in self if server.loaded is not None]
        server = next((each for each in swap if each.lists(parsed.model)), swap[0] if swap else None)
        loaded = None if server is None else server.loaded
        return parsed.affinity if loaded is None else loaded.affinity_of(parsed)

    def speaker(self, family: Family) -> Server:
        """Return a server that speaks a dialect; the first if none does."""
        return next((server for server in self if family in server.adapter.SPEAKS), self.first)

    def able(
        self, speakers: frozenset[Family], parsed: ParsedRequest, refused_by: Collection[str] = ()
    ) -> list[Server]:
        """Return the servers that can serve a request on a route of these families; only the one that stores
        the response which it follows. Those it was `refused_by` only if there are no others.

        Of those that have the model, those that take its media and have room for its prompt, as far as is
        known; if none has, all: then the server's own refusal is the answer.
        """
        holder = self.holder_of(parsed.follows)
        if len(self) == 1 or holder is not None:
            return [holder or self.first]
        found = self._having(speakers, parsed.model)
        found = [server for server in found if server.id not in refused_by] or found
        found = [server for server in found if server.takes_media(parsed)] or found
        return [server for server in found if server.has_room(parsed)] or found

    def _having(self, speakers: frozenset[Family], model: str) -> list[Server]:
        """Return the servers that list a model, of an unknown kind only if no other does; if none does, those
        that may have it without listing it; else all that speak the dialect, or all.
        """
        speak = [server for server in self if speakers & server.adapter.SPEAKS] or list(self)
        if not model:
            return speak
        listing = [server for server in self if server.lists(model)]
        having = [each for each in listing if each in speak] or [s for s in listing if s.adapter is OTHER]
        return having or [server for server in speak if server.may_have(model)] or speak

    def others_than(self, server: Server, exchange: Exchange) -> list[Server]:
        """Return the servers that may answer what one refuses: they are up, and have not refused it."""
        asked, refused_by = exchange.asked, exchange.refused_by | {server.id}
        found = self.able(asked.route.speakers, asked.parsed, refused_by)
        return [each for each in found if each.id not in refused_by and not each.away]

    def able_for(self, exchange: Exchange) -> list[Server]:
        """Return the servers that can serve an exchange: those on which its answer has not broken off, while
        one of them is up. If its answer has begun: the server that began it or, while that is away, those
        that are proven to continue it.
        """
        parsed = exchange.asked.parsed
        found = self.able(exchange.asked.route.speakers, parsed, exchange.refused_by)
        if not exchange.has_begun:
            return (self.untried(exchange, found) if exchange.repeats else []) or found
        origin = self.get((exchange.attempt or exchange.parts[-1]).server_id)
        if origin is None:
            return []
        if not origin.away:
            return [origin]
        there = [server for server in found if not server.away]
        return [each for each in there if each.continues_as(origin, exchange.job.model)] or [origin]

    def untried(self, exchange: Exchange, among: Iterable[Server]) -> list[Server]:
        """Return the servers that are up and not silent, and on which an exchange has not broken off."""
        tried = {each.server_id for each in exchange.attempts if each.end is AttemptEnd.BROKEN}
        fit = [
            each for each in among if each.status.state not in ("down", "loading") and not each.health.hung
        ]
        return [each for each in fit if each.id not in tried]

    def elsewhere(self, exchange: Exchange) -> list[Server]:
        """Return the servers that can serve an exchange in place of the one that it is on; none that it was
        on before.
        """
        here = self.server_of(exchange)
        others = [] if exchange.has_begun else self.untried(exchange, self.able_for(exchange))
        return [each for each in others if each is not here]

    def ids(self, servers: list[Server]) -> frozenset[str]:
        """Return the ids of servers as the scheduler takes them: empty if they are all."""
        return frozenset() if len(servers) == len(self) else frozenset(server.id for server in servers)

    def has_given_up(self, exchange: Exchange) -> bool:
        return given_up(self.able_for(exchange))

    def refused_in_s(self, exchange: Exchange, patience_s: float | None = None) -> float | None:
        """Return the seconds until a waiting exchange is refused unless a server returns; None if a server
        that can serve it is there, or none ever was. `patience_s` is the time it may wait at most.
        """
        left_s = [server.health.given_up_in_s for server in self.able_for(exchange) if server.status.seen]
        known_s = [each for each in left_s if each is not None]
        if not known_s or len(known_s) < len(left_s):
            return None
        return max(known_s) if patience_s is None else max(0.0, min(max(known_s), patience_s))

    def waits_for(self, exchange: Exchange) -> bool:
        """Whether an exchange is kept until a server that can serve it is back."""
        return any(server.waited_for for server in self.able_for(exchange))

    # -- all servers -----------------------------------------------------------------------------------

    @property
    def stamped(self) -> list[str]:
        """Names of the servers that order their own queues by a priority sent with each request."""
        return [server.name for server in self if server.stamps is not None]

    @property
    def at_once(self) -> int:
        """Requests that the servers which take requests now are known to answer at once."""
        room = self.queue.slots
        return sum(min(room.get(server.id, 0), server.at_once) for server in self)

    @property
    def slots(self) -> int:
        return sum(server.room for server in self)

    @property
    def loading(self) -> bool:
        return any(server.status.state == "loading" for server in self)


def _hashed(response: str) -> str:
    return sha256(response.encode(errors="replace")).hexdigest()[:16]


def given_up(servers: Iterable[Server]) -> bool:
    """Whether all of these servers that were ever up have been away for longer than the outage grace."""
    seen = [server for server in servers if server.status.seen]
    return bool(seen) and all(server.health.given_up for server in seen)


# Estimates service times from predicted lengths, and learns the servers' speeds from their answers.

MEDIUM_TOKENS = MEDIUM_CHARACTERS / 4.0  # of a picture or another medium, before anything is learned
# A shorter prompt tells more of the chat template than of how many tokens a character makes.
TELLING_CHARACTERS = 400
READ_SHARE = 0.25  # of the time that a whole prompt takes, in which it was certainly not read
TELLING_S = 0.5  # where a prompt is read sooner, the time of an answer does not tell what was cached


@dataclass(slots=True)
class ServiceTimes:
    """Service times on the servers of a pool. `coverage` corrects the upper quantiles."""

    pool: ServerPool
    say: Callable[[int, str], None]
    coverage: Coverage = field(default_factory=Coverage)
    tokens_per_character: ClientMeans = field(default_factory=ClientMeans)  # of text, by model
    tokens_per_medium: ClientMeans = field(default_factory=ClientMeans)  # by model, kind, and size
    # Of requests for sound and images, by what is counted (`ParsedRequest.amount_kind`), and model.
    seconds_per_amount: ClientMeans = field(default_factory=ClientMeans)

    def prompt_tokens(self, parsed: ParsedRequest) -> float:
        """Return the expected number of tokens of a prompt, of its text and its media."""
        tokens = self._text_tokens(parsed)
        for medium, count in parsed.conversation.media.items():
            tokens += count * self._medium_tokens(parsed, medium)
        return tokens

    def _text_tokens(self, parsed: ParsedRequest) -> float:
        ratio = self.tokens_per_character.get(parsed.model, parsed.client)
        chain = parsed.conversation.chain
        return parsed.prompt_tokens if ratio is None or not chain else ratio * chain.text_length

    def _medium_tokens(self, parsed: ParsedRequest, medium: Medium) -> float:
        keys = ((parsed.model, medium), (parsed.model, medium.kind))  # of its size, or of any
        known = (self.tokens_per_medium.get(key, parsed.client) for key in keys)
        return next((tokens for tokens in known if tokens is not None), MEDIUM_TOKENS)

    def has_room(self, parsed: ParsedRequest) -> bool:
        """Whether a prompt may grow by some tokens, as its model's context is not nearly full."""
        name = full_name(parsed.model)
        contexts = [
            model.context
            for server in self.pool
            for model in server.status.models
            if model.context and (server.loaded is None or full_name(model.name) == name)
        ]
        context = asked_context(parsed) or min(contexts, default=inf)
        return self.prompt_tokens(parsed) <= NEARLY_FULL * context

    def fastest_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return the service time on the fastest server that is up, in seconds."""
        there = [server for server in self.pool if not server.away] or list(self.pool)
        return min(server.service_s(prompt_tokens, tokens) for server in there)

    def estimates(self, parsed: ParsedRequest, prediction: Prediction) -> Estimates:
        """Return what the scheduler orders a request by, given the prediction of its length."""
        tokens = prediction.expected_tokens * parsed.choices
        tokens_q90 = prediction.q90_tokens * parsed.choices
        prompt_tokens = self.prompt_tokens(parsed)
        seconds = self.seconds_per_amount.get((parsed.amount_kind, parsed.model), parsed.client)
        if seconds is not None:
            tokens = tokens_q90 = seconds * parsed.amount / self.fastest_s(0.0, 1.0)
        high_s = self.fastest_s(prompt_tokens, tokens_q90)
        return Estimates(
            p_long=prediction.p_long,
            cost_s=self.fastest_s(prompt_tokens, tokens),
            cost_high_s=self.coverage.corrected(prediction.length_class.value, high_s),
            tokens=tokens,
            tokens_q90=tokens_q90,
        )

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Learn from an answer that ended; incomplete ones tell nothing about speed."""
        parsed = exchange.asked.parsed
        if parsed.amount and end.outcome is Outcome.COMPLETED and exchange.attempt is not None:
            key, seconds = (parsed.amount_kind, parsed.model), exchange.service_s(end.at_s) / parsed.amount
            self.seconds_per_amount.learn(key, parsed.client, seconds)
        if not exchange.totals.complete:
            return
        server, job = self.pool.server_of(exchange), exchange.job
        totals, cached = _believed(exchange, server), job.expected.tokens
        server.traits.silences.answered()
        has_media = bool(parsed.conversation.media)  # which tell nothing about text
        if exchange.attempt is not None and job.cost_s and end.outcome is Outcome.COMPLETED and not has_media:
            here = server.service_s(max(job.prompt_tokens - cached, 0.0), job.tokens) / job.cost_s
            regime = exchange.asked.prediction.length_class.value
            self.coverage.learn(regime, job.cost_high_s * here, exchange.service_s(end.at_s))
        attempt = exchange.attempt
        decode_s, began_s = totals.decode_s, None if attempt is None else attempt.first_byte_s
        if not decode_s and began_s is not None and parsed.stream and not exchange.parts:
            decode_s = end.at_s - began_s  # of an answer that came in one part
        # Without a number of cached tokens, Ollama counts all as read.
        counts = totals.cached_tokens is not None or not cached
        prefilled = totals.prefilled_tokens if counts and not has_media else None
        server.traits.speeds.learn(totals.tokens, decode_s, prefilled, totals.prefill_s)
        usage = None if attempt is None else attempt.usage
        # A tool's call may come in one event, however long it is.
        if usage is not None and totals.tokens and not (totals.calls_tool or exchange.parts):
            server.traits.speeds.learn_events(totals.tokens, usage.events)

    def settle(self, exchange: Exchange, end: RequestEnd) -> None:
        """Have the scheduler's account of the KV cache follow what the server reports of an answer."""
        chain = exchange.job.prefix
        if not chain or exchange.attempt is None or not exchange.totals.complete:
            return
        server = self.pool.server_of(exchange)
        totals = _believed(exchange, server)
        prompt_tokens = totals.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = round(exchange.job.prompt_tokens)
        elif not exchange.is_truncated:
            self._learn_prompt(exchange.asked.parsed, prompt_tokens)
        news = self.pool.queue.answered(
            exchange.id,
            prompt_tokens,
            totals.tokens or 0,
            _cached_tokens(exchange, totals, end, server, prompt_tokens),
            calls_tool=totals.calls_tool,
            now=end.at_s,
        )
        if news:
            self.say(logging.WARNING, news)

    def _learn_prompt(self, parsed: ParsedRequest, prompt_tokens: int) -> None:
        """Learn how many tokens a character takes or, of a prompt with media, how many these take: all that
        its text does not, in proportion to what was expected of each.
        """
        client, model, media = parsed.client, parsed.model, parsed.conversation.media
        length = parsed.conversation.chain.text_length
        if media:
            expected = {medium: max(self._medium_tokens(parsed, medium), 1.0) for medium in media}
            of_media = max(prompt_tokens - self._text_tokens(parsed), 0.0)
            times = of_media / sum(count * expected[medium] for medium, count in media.items())
            for medium, tokens in expected.items():
                for key in ((model, medium), (model, medium.kind)):
                    self.tokens_per_medium.learn(key, client, times * tokens)
        elif length >= TELLING_CHARACTERS:
            self.tokens_per_character.learn(model, client, prompt_tokens / length)


def _believed(exchange: Exchange, server: Server) -> Totals:
    """Return an answer's totals, without those of its prompt if that cannot have been read in the time: some
    servers report 0 cached tokens of a prompt that they kept.
    """
    totals, attempt = exchange.totals, exchange.attempt
    if totals.cached_tokens != 0 or attempt is None or server.traits.speeds.prefill_tokens_per_s is None:
        return totals
    whole_s, read_s = server.read_s(totals.prompt_tokens or 0), totals.prefill_s
    if read_s is None and attempt.first_byte_s is not None:
        read_s = attempt.first_byte_s - attempt.granted_s
    if read_s is None or whole_s < TELLING_S or read_s > READ_SHARE * whole_s:
        return totals
    return replace(totals, cached_tokens=None, prefilled_tokens=None)


def _cached_tokens(
    exchange: Exchange, totals: Totals, end: RequestEnd, server: Server, prompt_tokens: int
) -> float | None:
    """Return the tokens of a prompt that came from the cache, None if unknown: as reported, or else by how
    long the rest took to read, at the server's measured speed.
    """
    if totals.cached_tokens is not None:
        return totals.cached_tokens
    attempt, whole_s, read_s = exchange.attempt, server.read_s(prompt_tokens), totals.prefill_s
    if attempt is None or server.traits.speeds.prefill_tokens_per_s is None or whole_s < TELLING_S:
        return None
    if read_s is None:
        read_s = end.at_s - attempt.granted_s - server.service_s(0.0, totals.tokens or 0)
    return prompt_tokens * (1.0 - min(max(read_s / whole_s, 0.0), 1.0))
