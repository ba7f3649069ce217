"""Estimates service times from predicted lengths, and learns the servers' speeds from their answers."""

from dataclasses import dataclass, field

from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, RequestEnd
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.scheduler.job import Estimates
from clairvoyant_cli.scheduler.quantile_coverage import Coverage
from predictor.record import Prediction


@dataclass(slots=True)
class ServiceTimes:
    """Service times on the servers of a pool. `coverage` corrects the upper quantiles."""

    pool: ServerPool
    coverage: Coverage = field(default_factory=Coverage)

    def fastest_s(self, prompt_tokens: float, tokens: float) -> float:
        """Return the service time on the fastest server that is up, in seconds."""
        there = [server for server in self.pool if not server.away] or list(self.pool)
        return min(server.service_s(prompt_tokens, tokens) for server in there)

    def estimates(self, parsed: ParsedRequest, prediction: Prediction) -> Estimates:
        """Return what the scheduler orders a request by, given the prediction of its length."""
        tokens = prediction.expected_tokens * parsed.choices
        tokens_q90 = prediction.q90_tokens * parsed.choices
        return Estimates(
            p_long=prediction.p_long,
            cost_s=self.fastest_s(parsed.prompt_tokens, tokens),
            cost_high_s=self.coverage.corrected(
                prediction.length_class.value, self.fastest_s(parsed.prompt_tokens, tokens_q90)
            ),
            tokens=tokens,
            tokens_q90=tokens_q90,
        )

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Learn from an answer that ended; incomplete ones tell nothing about speed."""
        totals = exchange.totals
        if not totals.complete:
            return
        server, job = self.pool.server_of(exchange), exchange.job
        if exchange.attempt is not None and job.cost_s and end.outcome is Outcome.COMPLETED:
            here = server.service_s(job.prompt_tokens, job.tokens) / job.cost_s
            regime = exchange.asked.prediction.length_class.value
            self.coverage.learn(regime, job.cost_high_s * here, exchange.service_s(end.at_s))
        decode_s = totals.decode_s or _streamed_s(exchange, end)
        server.speeds.learn(totals.tokens, decode_s, totals.prefilled_tokens, totals.prefill_s)


def _streamed_s(exchange: Exchange, end: RequestEnd) -> float | None:
    """Return how long an answer that came in one part was streamed; for servers that do not report it."""
    attempt = exchange.attempt
    if attempt is None or attempt.first_byte_s is None or not exchange.asked.parsed.stream or exchange.parts:
        return None
    return end.at_s - attempt.first_byte_s
