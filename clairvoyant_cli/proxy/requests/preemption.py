"""Preempts running requests for shorter ones, and continues them later.

The scheduler decides which request is preempted and when; this decides whether its answer may be, by the
request and the server's proof of exact continuation, stops it, and asks the server to go on.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

import msgspec

from clairvoyant_cli.backends.continuation import ContinuationRequest, request_to_continue, streamed
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import UpstreamError
from clairvoyant_cli.protocols.can_continue import Continuable, continuable
from clairvoyant_cli.protocols.request_bodies import KEPT_RUNNING
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES
from clairvoyant_cli.protocols.routes import Work
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher, Spawn
from clairvoyant_cli.proxy.queue.exchange import Attempt, AttemptEnd, Exchange, Phase, RequestEnd
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.requests.prompt_preemption import learn_from, prefill_of, record_preemption
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.tasks import repeat
from clairvoyant_cli.scheduler.server_cache import PreemptionPrice
from profiles.records import Continuation, verdict_of

DECIDE_EVERY_S = 0.1  # interval of checks whether a running answer has outgrown a waiting one
ASIDE_S = 3.0  # limit on what is asked only to go on sooner or to count better: the slot is held meanwhile
MAX_PLAIN = 1000
MAX_ASKED_BEFORE = 10_000  # questions that are remembered, as hashes, to know whether one is asked again
SETTINGS_TIMEOUT_S = (
    0.5  # for a server's settings before a preemption; after it, the last known ones are used
)
CHANGED = "the server is not the one that was measured"

TELLING_S = 0.1  # a context that is read in less leaves no trace in when the first of an answer comes
TEMPLATE_TOKENS = 48.0  # at most this many tokens come from a chat's template
SHARED_CHARS_A_TOKEN = 3.0  # at least this many characters make a token


class UnfitError(UpstreamError):
    """What the server sent is no part of the answer, and none of it was passed on."""


@dataclass(slots=True)
class Preemption:
    """Preempts and continues requests."""

    dispatcher: Dispatcher
    pool: ServerPool
    operation: Operation
    journal: Journal
    spawn: Spawn
    which: str = "proven"  # the setting `preempt`
    enabled: bool = field(init=False)
    _undecided: asyncio.Event = field(default_factory=asyncio.Event)
    _decides_soon: bool = False
    # Servers and models that stream more than text: their unstreamed answers are left unstreamed.
    _plain: set[tuple[str, str]] = field(default_factory=set)
    # Hashes of the questions to each server, the newest last.
    _asked_before: dict[tuple[str, int], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.enabled = self.which != "off"

    def report(self) -> None:
        """Log which answers may be preempted."""
        if not self.enabled:
            return
        proofs = [
            (server, model, proof)
            for server in self.pool
            for model, proof in server.proofs.items()
            if proof.fingerprint  # of known settings
        ]
        for server, model, proof in proofs:
            resume = f"{proof.resume_s * 1000:.0f} ms to resume"
            news = f"{server.name}: preemption enabled for {model}: {verdict_of(proof)}, {resume}"
            self.journal.event(logging.INFO, news)
        if self.dispatcher.scheduler.policy.preemptive and not proofs:
            news = "answers are not preempted yet: no server is proven to continue them exactly"
            self.journal.event(logging.INFO, news)

    async def request_for(
        self, exchange: Exchange, attempt: Attempt, request: Request, server: Server
    ) -> ContinuationRequest | None:
        """Return the request to send in place of the client's, None for its own; decide whether its answer
        may be preempted. UnfitError if the server cannot go on with an answer that has begun.
        """
        attempt.follows_preemption_s = server.prompts.followed(attempt.run.started_s)
        if exchange.has_begun:
            return await self._onward(exchange, server)
        if exchange.splice is None:
            if self.enabled and server.profiles and server.settings_of(exchange.job.model) is None:
                await server.see_settings()
            asked = self._judged(exchange, request, server)
            if isinstance(asked, str):
                exchange.not_preempted_because = asked
            else:
                exchange.splice = Splice(asked)
        splice = exchange.splice
        if splice is None or splice.asked.streamed:
            return None
        return ContinuationRequest(streamed(splice.asked), splice.asked.shape)

    def _judged(self, exchange: Exchange, request: Request, server: Server) -> Continuable | str:
        """Return what is needed to continue an answer that will begin, or why it must not be preempted."""
        if exchange.only_as_asked:
            return "the request was repeated unchanged"
        if not self.enabled or not self.dispatcher.scheduler.policy.preemptive:
            return "the policy does not preempt" if self.enabled else "--preempt off"
        if server.stamps is not None:
            return "the engine orders its own queue"
        if (found := server.continuation_of(exchange.job.model)) is None:
            return "no proof that the server continues it exactly"
        if (body := request.whole(SMALL_BYTES)) is None:
            return "the request body is too long"
        route, adapter = exchange.asked.route, server.adapter
        defaults = adapter.defaults(found.settings, route.shape)
        asked = continuable(body, route.shape, streams=route.streams, defaults=defaults, caps=adapter.CAPS)
        if isinstance(asked, str):
            return asked
        if request.head.get(KEPT_RUNNING) is not None:
            return "the server goes on without its client"
        return self._obstacle(server, exchange.job.model, asked, found.proof) or asked

    def _obstacle(self, server: Server, model: str, asked: Continuable, proof: Continuation) -> str:
        """Return why a request that can be continued must not be preempted here, "" if it may."""
        if not asked.streamed and server.adapter.json_type(asked.shape) is None:
            return "the answer is not streamed"
        if not asked.streamed and (server.id, model) in self._plain:
            return "the server streams more than the answer"
        if not asked.is_greedy:
            return ""
        again = self._is_asked_again(server, asked)  # which remembers it, whatever the setting
        if self.which == "all":
            return ""
        if not proof.is_exact:
            return "the server continues it only up to rounding, and its temperature is 0"
        return "the server has answered it before" if again and not proof.repeats_are_exact else ""

    def _is_asked_again(self, server: Server, asked: Continuable) -> bool:
        """Whether this daemon has sent a server the question before; it counts as sent from now on."""
        body = asked.body
        question = hash(msgspec.json.encode([body.get("model"), body.get("messages") or body.get("prompt")]))
        again = (server.id, question) in self._asked_before
        self._asked_before[server.id, question] = None
        if len(self._asked_before) > MAX_ASKED_BEFORE:
            del self._asked_before[next(iter(self._asked_before))]
        return again

    def streams_more(self, server: Server, model: str) -> None:
        if len(self._plain) < MAX_PLAIN:
            self._plain.add((server.id, model))

    async def run(self) -> None:
        await repeat("preemption", self._decide_while_undecided, DECIDE_EVERY_S)

    async def _decide_while_undecided(self) -> None:
        await self._undecided.wait()
        self.decide()

    def decide_soon(self) -> None:
        """Look once in the next turn of the loop, however much changes until then: it takes milliseconds."""
        if not self._decides_soon and len(self.dispatcher.scheduler):
            self._decides_soon = True
            asyncio.get_running_loop().call_soon(self.decide)

    def decide(self) -> None:
        """Preempt what the scheduler decides, at the next place where the client does not notice."""
        self._decides_soon, scheduler = False, self.dispatcher.scheduler
        interrupts = self.enabled and scheduler.policy.preemptive
        if not interrupts or self.operation.draining or not len(scheduler):
            self._undecided.clear()
            return
        self._undecided.set()
        now = self.journal.clock()
        for job_id in scheduler.running:
            exchange = self.dispatcher.live[job_id]
            if exchange.splice is not None and exchange.splice.why_not and exchange.attempt is not None:
                exchange.attempt.is_being_preempted = False
                self._spare(exchange, exchange.splice.why_not)
            self._report_progress(exchange, now)
        for run in scheduler.preemptions(now):
            exchange = self.dispatcher.live[run.job.id]
            attempt, splice = exchange.attempt, exchange.splice
            busy = any(other.is_being_preempted for other in self.dispatcher.attempts_on(run.server_id))
            # Whether it may be preempted is known once it has been sent.
            if busy or attempt is None or attempt.phase is Phase.CONNECTING:
                continue
            if run.stops_s is not None:
                if not self._stop_reading(exchange, now):
                    self._report_progress(exchange, now)
            elif not _is_too_early(exchange):
                if splice is None:
                    self.preempt(exchange)
                else:
                    attempt.is_being_preempted = True
                    self.spawn(self._preempt_if_exact(exchange, attempt, splice))

    def _report_progress(self, exchange: Exchange, now: float) -> None:
        """Tell the scheduler how far a running request is, and what a preemption costs."""
        scheduler, attempt = self.dispatcher.scheduler, exchange.attempt
        if attempt is None or attempt.read_s is not None:
            return  # it is being preempted
        if attempt.stop_reading is not None and scheduler.policy.preemptive:
            server, expected_s = self.pool.server_of(exchange), attempt.run.expected_s
            reading = prefill_of(exchange, attempt, server, expected_s, now)
            if reading is not None:
                scheduler.progress(exchange.id, 0, *reading[1], prefill=reading[0])
                return
        scheduler.progress(exchange.id, exchange.tokens, *self._price(exchange))
        if exchange.splice is None and attempt.phase is not Phase.CONNECTING:
            scheduler.spare(exchange.id)

    def _price(self, exchange: Exchange) -> PreemptionPrice:
        """Return the price of preempting an answer now and continuing it. If the answer is shorter than its
        prompt, llama.cpp may drop it for a similar chat, so it is read again at worst.
        """
        server = self.pool.server_of(exchange)
        found = server.continuation_of(exchange.job.model)
        if exchange.splice is None or found is None:
            return PreemptionPrice(0.0)  # it is spared
        tokens, resume_s = _context_tokens(exchange), found.proof.resume_s
        price = self.dispatcher.scheduler.fleet.servers[server.id].cache.price_of_preemption(
            exchange.id, tokens, resume_s, server.speeds.read_s
        )
        if exchange.tokens < exchange.job.prompt_tokens:
            return price._replace(resume_s=max(price.resume_s, resume_s + server.speeds.read_s(tokens)))
        return price

    def _stop_reading(self, exchange: Exchange, now: float) -> bool:
        """Preempt a request whose prompt is being read; False if the client would notice."""
        attempt = exchange.attempt
        if attempt is None or (stop := attempt.stop_reading) is None:
            return False
        attempt.stop_reading = None
        if not stop():
            return False
        server = self.pool.server_of(exchange)
        record_preemption(exchange, attempt, server, now)
        attempt.is_being_preempted = True
        if exchange.splice is not None:
            exchange.splice = Splice(exchange.splice.asked)
        return True

    async def _preempt_if_exact(self, exchange: Exchange, attempt: Attempt, splice: Splice) -> None:
        """Preempt it, once it is known that the continuation would be exact."""
        server = self.pool.by_id[attempt.run.server_id]
        splice.read()
        pieces = tuple(splice.pieces)  # more come meanwhile
        asked: Continuable | str = CHANGED
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTINGS_TIMEOUT_S):
                await server.see_settings()
        if (found := server.continuation_of(exchange.job.model)) is not None:
            asked = await server.adapter.bounded(server.ask, splice.asked, pieces, found.settings)
        alike = None
        if splice.asked.is_greedy and self.which != "all" and isinstance(asked, Continuable):
            alike = await server.adapter.reads_as_written(server.ask, asked, pieces)
        attempt.is_being_preempted = (
            False  # for all that is known yet: it may turn out that it cannot be preempted
        )
        if exchange.attempt is not attempt or exchange.id not in self.dispatcher.scheduler.running:
            return
        if isinstance(asked, str):
            self._spare(exchange, asked)
        elif alike is False:
            self._spare(exchange, "the server would tokenise it differently")
        else:
            splice.asked = asked
            self.preempt(exchange)

    def preempt(self, exchange: Exchange) -> None:
        """Stop an answer at the next place where it can go on."""
        attempt, splice = exchange.attempt, exchange.splice
        if attempt is None or splice is None or not splice.want_cut():
            self._spare(exchange, exchange.not_preempted_because if splice is None else splice.why_not)
        else:
            attempt.is_being_preempted = True

    def _spare(self, exchange: Exchange, why: str) -> None:
        exchange.not_preempted_because = why
        self.dispatcher.scheduler.spare(exchange.id)

    def suspended(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count a preemption, and record what its server keeps of it."""
        self.journal.counts["cuts"] += 1
        if attempt.read_s is None:  # what is kept of a prompt is learned from such preemptions
            self.journal.counts["recomputed_tokens"] += attempt.reread_tokens
            self._leaves(exchange, attempt.run.server_id, waits=True)

    def settle(self, exchange: Exchange, end: RequestEnd) -> None:
        """Record what an ended answer leaves in its server's cache."""
        if not self.enabled:
            return
        if exchange.attempt is not None and exchange.asked.route.work is Work.GENERATE:
            self._leaves(exchange, exchange.attempt.run.server_id, waits=False)
        elif exchange.preempted:
            server = self.dispatcher.scheduler.fleet.servers.get(exchange.preempted[-1].run.server_id)
            if server is not None:
                server.cache.ended(exchange.id)

    def _leaves(self, exchange: Exchange, server_id: str, *, waits: bool) -> None:
        server, scheduler = self.pool.by_id.get(server_id), self.dispatcher.scheduler
        if server is None:
            return
        tokens, interactive = _context_tokens(exchange), exchange.job.interactive
        cache = scheduler.fleet.servers[server_id].cache
        for job_id in cache.left(exchange.id, tokens, waits=waits, interactive=interactive):
            other = self.dispatcher.live.get(job_id)
            found = None if other is None else server.continuation_of(other.job.model)
            if other is not None and other.is_suspended and found is not None:
                owed_s = found.proof.resume_s + server.speeds.read_s(_context_tokens(other))
                scheduler.set_resume_cost(job_id, owed_s, self.journal.clock())

    async def _onward(self, exchange: Exchange, server: Server) -> ContinuationRequest:
        """Return the request that continues an answer."""
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
        onward = await request_to_continue(found.way, server.ask, splice, counted, *_spent_s(exchange))
        if onward is None:
            raise UnfitError("it did not render the prompt: its model may be gone")
        return onward

    def continued(self, exchange: Exchange, attempt: Attempt) -> None:
        """Count a continuation. The time of its first token shows whether the context was still cached."""
        self.journal.counts["resumes"] += exchange.parts[-1].end is AttemptEnd.PREEMPTED
        server = self.pool.by_id[attempt.run.server_id]
        found = server.continuation_of(exchange.job.model)
        if found is None or attempt.first_byte_s is None:
            return
        tokens, resume_s = _context_tokens(exchange), found.proof.resume_s
        read_s, took_s = server.speeds.read_s(tokens), attempt.first_byte_s - attempt.run.started_s
        if read_s <= max(resume_s, TELLING_S):
            return
        was_there = took_s < resume_s + read_s / 2.0
        attempt.reread_tokens = 0 if was_there else round(tokens)
        cache = self.dispatcher.scheduler.fleet.servers[server.id].cache
        before = cache.room_tokens
        cache.continued(attempt.run.expected_cache, was_there=was_there)
        if before == inf and cache.room_tokens < inf:
            news = f"{server.name} had to recompute a preempted answer: its cache seems to hold"
            self.journal.event(logging.INFO, f"{news} {cache.room_tokens:.0f} tokens")

    def totals(self, exchange: Exchange, attempt: Attempt, totals: Totals) -> Totals:
        """Return the totals of an answer, summed over its parts. Learn from them what preempted prompts cost,
        and count what was read again, as reported or else estimated.
        """
        server = self.pool.by_id.get(attempt.run.server_id)
        was_preempted = bool(exchange.preempted) or attempt.follows_preemption_s is not None
        if totals.complete and was_preempted and not exchange.has_begun and server is not None:
            reread = learn_from(exchange, attempt, totals, server, self.journal.clock())
            self.journal.counts["recomputed_tokens"] += reread
        if exchange.splice is None:
            return totals
        if exchange.has_begun:
            # Ollama counts the whole prompt as read since June 2026; only later versions report what was
            # cached.
            tells = totals.prefill_s is not None and totals.read_tokens != totals.prompt_tokens
            self.journal.counts["recomputed_tokens"] += (
                tells and totals.read_tokens
            ) or attempt.reread_tokens
        return totals.after(exchange.splice.earlier)


def _context_tokens(exchange: Exchange) -> float:
    """Return how many tokens of a request its server has, or had, in a slot: its prompt and its answer."""
    return exchange.job.prompt_tokens + exchange.tokens


def _is_too_early(exchange: Exchange) -> bool:
    """Whether preempting a greedy answer now might change its text. llama.cpp keeps a slot's content only if
    less than half of it matches the next chat, and rounds differently where it has to read its own tokens
    again.
    """
    splice = exchange.splice
    if splice is None or not splice.asked.is_greedy:
        return False
    shared = 2.0 * splice.asked.shared_chars / SHARED_CHARS_A_TOKEN
    return exchange.job.prompt_tokens + exchange.tokens < TEMPLATE_TOKENS + shared


def _spent_s(exchange: Exchange) -> tuple[float, float]:
    """Return the seconds for which the parts so far were read and written."""
    prefill_s = decode_s = 0.0
    for part in exchange.parts:
        ended_s = part.run.ended_s or part.run.started_s
        begun_s = part.first_byte_s or ended_s
        prefill_s += begun_s - part.run.started_s
        decode_s += ended_s - begun_s
    return prefill_s, decode_s
