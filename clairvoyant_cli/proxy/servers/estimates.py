"""Estimates service times from predicted lengths, and learns the servers' speeds from their answers."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, RequestEnd
from clairvoyant_cli.proxy.queue.operation import Coverage
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.job import Estimates
from predictor.record import Prediction

# A shorter prompt tells more of the chat template than of how many tokens a character makes.
TELLING_CHARACTERS = 400
TELLING_S = 0.5  # where a prompt is read sooner, the time of an answer does not tell what was cached
RATIO_WEIGHT = 0.3
MAX_MODELS = 256


@dataclass(slots=True)
class ServiceTimes:
    """Service times on the servers of a pool. `coverage` corrects the upper quantiles;
    `tokens_per_character` is learned for each model.
    """

    pool: ServerPool
    say: Callable[[int, str], None]
    coverage: Coverage = field(default_factory=Coverage)
    tokens_per_character: dict[str, float] = field(default_factory=dict)
    # Of requests for sound and images, by what is counted (`ParsedRequest.amount_kind`).
    seconds_per_amount: dict[str, float] = field(default_factory=dict)

    def prompt_tokens(self, parsed: ParsedRequest) -> float:
        """Return the expected number of tokens of a prompt."""
        ratio = self.tokens_per_character.get(parsed.model)
        chain = parsed.conversation.chain
        return parsed.prompt_tokens if ratio is None or not chain else ratio * chain.length

    def fastest_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return the service time on the fastest server that is up, in seconds."""
        there = [server for server in self.pool if not server.away] or list(self.pool)
        return min(server.service_s(prompt_tokens, tokens) for server in there)

    def estimates(self, parsed: ParsedRequest, prediction: Prediction) -> Estimates:
        """Return what the scheduler orders a request by, given the prediction of its length."""
        tokens = prediction.expected_tokens * parsed.choices
        tokens_q90 = prediction.q90_tokens * parsed.choices
        prompt_tokens = self.prompt_tokens(parsed)
        if (seconds := self.seconds_per_amount.get(parsed.amount_kind)) is not None:
            tokens = tokens_q90 = seconds * parsed.amount / self.fastest_s(0.0, 1.0)
        cost_s, high_s = (self.fastest_s(prompt_tokens, each) for each in (tokens, tokens_q90))
        return Estimates(
            p_long=prediction.p_long,
            cost_s=cost_s,
            cost_high_s=self.coverage.corrected(prediction.length_class.value, high_s),
            tokens=tokens,
            tokens_q90=tokens_q90,
        )

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Learn from an answer that ended; incomplete ones tell nothing about speed."""
        totals = exchange.totals
        parsed = exchange.asked.parsed
        if parsed.amount and end.outcome is Outcome.COMPLETED and exchange.attempt is not None:
            seconds, kind = exchange.service_s(end.at_s) / parsed.amount, parsed.amount_kind
            before = self.seconds_per_amount.get(kind, seconds)
            self.seconds_per_amount[kind] = before + RATIO_WEIGHT * (seconds - before)
        if not totals.complete:
            return
        server, job = self.pool.server_of(exchange), exchange.job
        entry = self.pool.queue.running.get(exchange.id)
        cached = 0.0 if entry is None else entry.expected.tokens
        if exchange.attempt is not None and job.cost_s and end.outcome is Outcome.COMPLETED:
            here = server.service_s(max(job.prompt_tokens - cached, 0.0), job.tokens) / job.cost_s
            regime = exchange.asked.prediction.length_class.value
            self.coverage.learn(regime, job.cost_high_s * here, exchange.service_s(end.at_s))
        self._learn_cache(exchange, totals, end, server)
        decode_s = totals.decode_s or _streamed_s(exchange, end)
        # Without a number of cached tokens, Ollama counts all as read.
        counts = totals.cached_tokens is not None or not cached
        prefilled = totals.prefilled_tokens if counts else None
        server.traits.speeds.learn(totals.tokens, decode_s, prefilled, totals.prefill_s)

    def _learn_cache(self, exchange: Exchange, totals: Totals, end: RequestEnd, server: Server) -> None:
        """Have the scheduler's account of the KV cache follow what the server reports of an answer."""
        chain, prompt_tokens = exchange.job.prefix, totals.prompt_tokens
        if not chain or exchange.attempt is None:
            return
        if prompt_tokens is None:
            prompt_tokens = round(exchange.job.prompt_tokens)
        elif chain.length >= TELLING_CHARACTERS and not exchange.is_truncated:
            learned, model = self.tokens_per_character, exchange.job.model
            ratio = prompt_tokens / chain.length
            if model in learned:
                learned[model] += RATIO_WEIGHT * (ratio - learned[model])
            elif len(learned) < MAX_MODELS:
                learned[model] = ratio
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


def _streamed_s(exchange: Exchange, end: RequestEnd) -> float | None:
    """Return how long an answer that came in one part was streamed; for servers that do not report it."""
    attempt = exchange.attempt
    if attempt is None or attempt.first_byte_s is None or not exchange.asked.parsed.stream or exchange.parts:
        return None
    return end.at_s - attempt.first_byte_s
