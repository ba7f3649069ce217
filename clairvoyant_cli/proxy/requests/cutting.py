"""Cuts running requests for shorter ones, and continues them later.

The scheduler decides which answer is cut and when; this decides whether one may be cut, from its request and
the server's proof of exact continuation; or, while its prompt is read, whether it can be sent again.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from clairvoyant_cli.backends.continuation import ContinuationRequest, streamed
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.can_continue import Continuable, continuable
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES
from clairvoyant_cli.protocols.routes import Work
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.protocols.summed_totals import Earlier
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher, Spawn
from clairvoyant_cli.proxy.queue.exchange import Attempt, AttemptEnd, Exchange, Phase, RequestEnd
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.requests.cut_prompts import learn_from, prefill_of, stop_reading
from clairvoyant_cli.proxy.requests.forwarding import KEPT_RUNNING
from clairvoyant_cli.proxy.requests.spliced_relay import UnfitError
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server, VerifiedContinuation
from clairvoyant_cli.scheduler.server_cache import CutPrice, ServerCache
from profiles.records import Continuation, verdict_of

LOOK_EVERY_S = 0.1  # interval of checks whether a running answer has outgrown a waiting one
ASIDE_S = 3.0  # limit on what is asked only to go on sooner or to count better: the slot is held meanwhile
MAX_PLAIN = 1000

TELLING_S = 0.1  # a context that is read in less leaves no trace in when the first of an answer comes
TEMPLATE_TOKENS = 48.0
SHARED_CHARS_A_TOKEN = 3.0
"""At most this many tokens come from a chat's template, and at least this many characters make a token."""


@dataclass(slots=True)
class Preemption:
    """Cuts and continues answers."""

    dispatcher: Dispatcher
    pool: ServerPool
    operation: Operation
    stats: RequestStats
    spawn: Spawn
    which: str = "proven"  # the setting `preempt`
    _undecided: asyncio.Event = field(default_factory=asyncio.Event)
    _plain: set[tuple[str, str]] = field(default_factory=set)

    @property
    def enabled(self) -> bool:
        return self.which != "off"

    def report(self) -> None:
        """Log which answers may be preempted."""
        if not self.enabled:
            return
        proofs = [(server, *each) for server in self.pool for each in server.known_proofs.items()]
        for server, model, proof in proofs:
            resume = f"{proof.resume_s * 1000:.0f} ms to resume"
            news = f"{server.name}: preemption enabled for {model}: {verdict_of(proof)}, {resume}"
            self.stats.journal.event(logging.INFO, news)
        if self.dispatcher.scheduler.policy.interrupts and not proofs:
            news = "answers are not preempted yet: no server is proven to continue them as if uncut"
            self.stats.journal.event(logging.INFO, news)

    def consider(self, exchange: Exchange, request: Request, server: Server) -> None:
        """Decide whether an answer that is about to begin may be cut."""
        if exchange.only_as_asked:
            exchange.uncut_because = "the request was repeated unchanged"
        elif not self.enabled or not self.dispatcher.scheduler.policy.interrupts:
            exchange.uncut_because = "the policy does not cut" if self.enabled else "--preempt off"
        elif server.stamps is not None:
            exchange.uncut_because = "the engine orders its own queue"
        elif (found := server.continuation_of(exchange.job.model)) is None:
            exchange.uncut_because = "no proof that the server continues it as if uncut"
        else:
            self._judge(exchange, request, server, found)

    def streams_more(self, server: Server, model: str) -> None:
        """Record that a model streams more than text: its unstreamed answers are left unstreamed."""
        if len(self._plain) < MAX_PLAIN:
            self._plain.add((server.name, model))

    def _judge(
        self, exchange: Exchange, request: Request, server: Server, found: VerifiedContinuation
    ) -> None:
        route = exchange.asked.route
        body = request.whole(SMALL_BYTES)
        if body is None:
            exchange.uncut_because = "the request body is too long"
            return
        adapter = server.adapter
        defaults = adapter.defaults(found.settings, route.shape)
        asked = continuable(body, route.shape, streams=route.streams, defaults=defaults, caps=adapter.CAPS)
        if not isinstance(asked, Continuable):
            exchange.uncut_because = asked
        elif not asked.streamed and adapter.json_type(route.shape) is None:
            exchange.uncut_because = "the answer is not streamed"
        elif not asked.streamed and (server.name, exchange.job.model) in self._plain:
            exchange.uncut_because = "the server streams more than the answer"
        elif request.head.get(KEPT_RUNNING) is not None:
            exchange.uncut_because = "the server goes on without its client"
        elif asked.is_greedy and (why := self._may_round(server, asked, found.proof)):
            exchange.uncut_because = why
        else:
            exchange.splice = Splice(asked)

    def _may_round(self, server: Server, asked: Continuable, proof: Continuation) -> str:
        """Return why the text of a greedy answer might change by rounding, "" if it will not or may."""
        again = server.is_asked_again(asked)
        if self.which == "all":
            return ""
        if not proof.is_exact:
            return "the server continues it only up to rounding, and its temperature is 0"
        return "the server has answered it before" if again and not proof.repeats_are_exact else ""

    async def run(self) -> None:
        while True:
            await self._undecided.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        """Cut what the scheduler decides to preempt, at the next place where the client does not notice."""
        scheduler = self.dispatcher.scheduler
        policy = scheduler.policy
        interrupts = self.enabled and policy.interrupts
        interrupts = interrupts and not self.operation.draining
        if not interrupts or not len(scheduler):
            self._undecided.clear()
            return
        self._undecided.set()
        now = self.stats.journal.clock()
        for job_id in scheduler.running:
            exchange = self.dispatcher.live[job_id]
            if exchange.splice is not None and exchange.splice.why_not and exchange.attempt is not None:
                exchange.attempt.is_cutting = False
                self._spare(exchange, exchange.splice.why_not)
            self._note_progress(exchange, now)
        for preempt in scheduler.preemptions(now):
            exchange = self.dispatcher.live[preempt.job_id]
            cutting = any(each.is_cutting for each in self.dispatcher.attempts_on(preempt.worker))
            # Whether it may be cut is known once it has been sent.
            if cutting or exchange.phase is Phase.CONNECTING:
                continue
            if scheduler.running[preempt.job_id].stops_s is not None:
                if not stop_reading(exchange, self.pool.server_of(exchange), now):
                    self._note_progress(exchange, now)
            elif not _is_too_early(exchange):
                attempt, splice = exchange.attempt, exchange.splice
                if attempt is None or splice is None:
                    self._cut(exchange)
                else:
                    attempt.is_cutting = True
                    self.spawn(self._cut_if_exact(exchange, attempt, splice))

    def _note_progress(self, exchange: Exchange, now: float) -> None:
        """Tell the scheduler how far a running request is, and what a cut costs."""
        scheduler, attempt = self.dispatcher.scheduler, exchange.attempt
        if attempt is None or attempt.read_s is not None:
            return  # it is being cut
        expected_s = scheduler.running[exchange.id].expected_s
        reading = prefill_of(exchange, self.pool.server_of(exchange), expected_s, now)
        if reading is not None and scheduler.policy.preemptive:
            scheduler.progress(exchange.id, 0, *reading[1], prefill=reading[0])
            return
        scheduler.progress(exchange.id, exchange.tokens, *self._price(exchange))
        if exchange.splice is None and exchange.phase is not Phase.CONNECTING:
            scheduler.spare(exchange.id)

    def _price(self, exchange: Exchange) -> CutPrice:
        """Return the price of cutting an answer now and continuing it. If the answer is shorter than its
        prompt, llama.cpp may drop it for a similar chat, so it is read again at worst.
        """
        server = self.pool.server_of(exchange)
        found = server.continuation_of(exchange.job.model)
        if exchange.splice is None or found is None:
            return CutPrice(0.0)  # it is spared
        tokens, resume_s = _context_tokens(exchange), found.proof.resume_s
        price = self._cache_of(server).price_of_cut(exchange.id, tokens, resume_s, server.read_s)
        if exchange.tokens < exchange.job.prompt_tokens:
            return price._replace(resume_s=max(price.resume_s, resume_s + server.read_s(tokens)))
        return price

    async def _cut_if_exact(self, exchange: Exchange, attempt: Attempt, splice: Splice) -> None:
        """Cut, once it is known that the continuation would be exact."""
        server = self.pool[attempt.worker]
        splice.read()
        pieces = tuple(splice.pieces)  # more come meanwhile
        asked = await server.bounded(exchange.job.model, splice.asked, pieces)
        alike = None
        if splice.asked.is_greedy and self.which != "all" and isinstance(asked, Continuable):
            alike = await server.adapter.reads_as_written(server.ask, asked, pieces)
        attempt.is_cutting = False  # for all that is known yet: it may turn out that it cannot be cut
        if exchange.attempt is not attempt or exchange.id not in self.dispatcher.scheduler.running:
            return
        if isinstance(asked, str):
            self._spare(exchange, asked)
        elif alike is False:
            self._spare(exchange, "the server would tokenise it differently")
        else:
            splice.asked = asked
            self._cut(exchange)

    def _cut(self, exchange: Exchange) -> None:
        attempt, splice = exchange.attempt, exchange.splice
        if attempt is None or splice is None or not splice.want_cut():
            self._spare(exchange, exchange.uncut_because if splice is None else splice.why_not)
        else:
            attempt.is_cutting = True

    def _spare(self, exchange: Exchange, why: str) -> None:
        exchange.uncut_because = why
        self.dispatcher.scheduler.spare(exchange.id)

    def suspended(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count a cut, and record what its server keeps of it."""
        self.stats.cuts += 1
        if attempt.read_s is not None:
            return  # what is kept of a prompt is learned from cuts of prompts
        self.stats.recomputed_tokens += attempt.reread_tokens
        self._left(exchange, attempt.worker, waits=True)

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Record what an ended answer leaves in its server's cache."""
        if not self.enabled:
            return
        if exchange.attempt is not None and exchange.asked.route.work is Work.GENERATE:
            self._left(exchange, exchange.attempt.worker, waits=False)
        elif exchange.cuts and (server := self.pool.get(exchange.cuts[-1].worker)) is not None:
            self._cache_of(server).ended(exchange.id)

    def _cache_of(self, server: Server) -> ServerCache:
        return self.dispatcher.scheduler.fleet.stations[server.name].cache

    def _left(self, exchange: Exchange, server_name: str, *, waits: bool) -> None:
        server, scheduler = self.pool.get(server_name), self.dispatcher.scheduler
        if server is None:
            return
        tokens, interactive = _context_tokens(exchange), exchange.job.interactive
        cache = self._cache_of(server)
        for job_id in cache.left(exchange.id, tokens, waits=waits, interactive=interactive):
            other = self.dispatcher.live.get(job_id)
            found = None if other is None else server.continuation_of(other.job.model)
            if other is not None and other.is_suspended and found is not None:
                owed_s = found.proof.resume_s + server.read_s(_context_tokens(other))
                scheduler.owe(job_id, owed_s, self.stats.journal.clock())

    def first(self, exchange: Exchange) -> ContinuationRequest | None:
        """Return the request to send for an answer that begins; None if it is the client's own."""
        splice = exchange.splice
        if splice is None or splice.asked.streamed:
            return None
        return ContinuationRequest(streamed(splice.asked), splice.asked.shape)

    async def onward(self, exchange: Exchange, server: Server) -> ContinuationRequest:
        """Return the request that continues an answer; UnfitError if the server cannot."""
        splice, adapter, counted = exchange.splice, server.adapter, None
        with suppress(TimeoutError):
            async with asyncio.timeout(ASIDE_S):
                await server.see_settings()  # it may have been started again meanwhile
        found = server.continuation_of(exchange.job.model)
        if splice is None or found is None:
            raise UnfitError("it can no longer continue the answer exactly")
        with suppress(TimeoutError):
            async with asyncio.timeout(ASIDE_S):
                if (lookup := adapter.cache_lookup(splice.asked)) is not None:
                    await server.ask(lookup[0], ASIDE_S, lookup[1])
                counted = await adapter.said_tokens(server.ask, splice.asked, splice.said)
        tokens = max(splice.tokens, counted or 0)  # an event may bring a letter of several tokens
        onward = await found.way.onward(server.ask, splice.asked, splice.said, tokens)
        if onward is None:
            raise UnfitError("it did not render the prompt: its model may be gone")
        splice.continue_in(onward.shape, _earlier(exchange, tokens, counted))
        return onward

    def goes_on(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count a continuation. The time of its first token shows whether the context was still cached."""
        self.stats.resumes += exchange.parts[-1].end is AttemptEnd.CUT
        server = self.pool[attempt.worker]
        found = server.continuation_of(exchange.job.model)
        was_there = None
        if found is not None and attempt.first_byte_s is not None:
            tokens, resume_s = _context_tokens(exchange), found.proof.resume_s
            read_s, took_s = server.read_s(tokens), attempt.first_byte_s - attempt.granted_s
            if read_s > max(resume_s, TELLING_S):
                was_there = took_s < resume_s + read_s / 2.0
            if was_there is False:
                attempt.reread_tokens = round(tokens)
        if was_there is None:
            return
        cache, before = self._cache_of(server), self._cache_of(server).room_tokens
        cache.continued(self.dispatcher.scheduler.running[exchange.id].expected, was_there=was_there)
        if before == inf and cache.room_tokens < inf:
            news = f"{server.name} had to recompute a cut answer: its cache seems to hold"
            self.stats.journal.event(logging.INFO, f"{news} {cache.room_tokens:.0f} tokens")

    def read_whole(self, totals: Totals, exchange: Exchange, attempt: Attempt) -> None:
        """Learn from the totals of an answer what cuts of prompts cost, and count what was read again."""
        server = self.pool.get(attempt.worker)
        if totals.complete and not exchange.has_begun and server is not None:
            again = learn_from(exchange, attempt, totals, server, self.stats.journal.clock())
            self.stats.recomputed_tokens += again

    def ran_on(self, last: Totals, exchange: Exchange) -> None:
        """Count the tokens recomputed for the last part of an answer, as reported or else estimated. Ollama
        counts the whole prompt as read since June 2026; only later versions report what was cached.
        """
        if exchange.has_begun and exchange.attempt is not None:
            tells = last.prefill_s is not None and last.prefilled_tokens != last.prompt_tokens
            told = last.prefilled_tokens if tells else None
            self.stats.recomputed_tokens += told or exchange.attempt.reread_tokens


def _context_tokens(exchange: Exchange) -> float:
    """Return how many tokens of a request its server has, or had, in a slot: its prompt and its answer."""
    return exchange.job.prompt_tokens + exchange.tokens


def _is_too_early(exchange: Exchange) -> bool:
    """Whether cutting a greedy answer now might change its text. llama.cpp keeps a slot's content only if
    less than half of it matches the next chat, and rounds differently where it has to read its own tokens
    again.
    """
    splice = exchange.splice
    if splice is None or not splice.asked.is_greedy:
        return False
    shared = 2.0 * splice.asked.shared_chars / SHARED_CHARS_A_TOKEN
    return exchange.job.prompt_tokens + exchange.tokens < TEMPLATE_TOKENS + shared


def _earlier(exchange: Exchange, tokens: int, counted: int | None) -> Earlier:
    prefill_s = decode_s = 0.0
    for part in exchange.parts:
        ended_s = part.ended_s or part.granted_s
        begun_s = part.first_byte_s or ended_s
        prefill_s += begun_s - part.granted_s
        decode_s += ended_s - begun_s
    return Earlier(tokens, prefill_s, decode_s, tokens if counted is None else counted)
