"""Preempts requests whose prompt is still being read: no answer has begun, so they are sent again later.

This needs no proof of exact continuation and no plain text. What it costs is learned, for each server:
llama.cpp goes on to the end of its batch (`--batch-size`, 2,048 tokens by default), and finds what it has
read again if its host cache is on. Others may never stop, or start again from nothing; no server says so.
"""

from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.exchange import Attempt, Exchange, Phase
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.job import PromptRead
from clairvoyant_cli.scheduler.server_cache import PreemptionPrice

MIN_PROMPT_S = (
    1.0  # shorter prompts are not preempted: llama.cpp looks once a second whether its client has left
)
MIN_SHARE = 0.3  # of a prompt that was read, from which its prefill time tells whether that was still there


def prefill_of(
    exchange: Exchange, attempt: Attempt, server: Server, expected_s: float, now: float
) -> tuple[PromptRead, PreemptionPrice] | None:
    """Return how far a prompt was read and the price of preempting it now; None if it may not be. An
    answer that does not show when it begins counts as begun when its prompt should be read, at the
    server's measured speed and without what was cached when this run of `expected_s` seconds started.
    """
    whole_s = _unread_s(exchange, server)
    before_s, runs_s = server.prompts.kept * _read_before_s(exchange, attempt), now - attempt.run.started_s
    if attempt.phase is not Phase.PREFILL or whole_s < MIN_PROMPT_S:
        return None
    if not _shows_its_beginning(exchange):
        reads_s = min(whole_s - before_s, expected_s - server.speeds.seconds(0.0, exchange.job.tokens))
        if runs_s > reads_s or server.speeds.prefill_tokens_per_s is None:
            return None
    read_s = min(before_s + runs_s, whole_s)
    stops_s = server.prompts.stops_s(server.speeds.read_s, whole_s - read_s)
    return PromptRead(read_s, stops_s), PreemptionPrice((1.0 - server.prompts.kept) * (read_s + stops_s))


def record_preemption(exchange: Exchange, attempt: Attempt, server: Server, now: float) -> None:
    """Record that a request was preempted while its prompt was read."""
    attempt.read_s = now - attempt.run.started_s
    read_s = attempt.read_s + _read_before_s(exchange, attempt)
    server.prompts.preempted(now, max(_unread_s(exchange, server) - read_s, 0.0))


def learn_from(exchange: Exchange, attempt: Attempt, totals: Totals, server: Server, now: float) -> int:
    """Learn from a whole answer what preemptions cost; return the prompt's tokens that were read again."""
    job, begun_s = exchange.job, attempt.first_byte_s
    streamed = attempt.usage is not None and attempt.usage.streaming and begun_s is not None
    until_s = begun_s if streamed and begun_s is not None else now
    prefill_s = totals.prefill_s or (server.speeds.read_s(job.prompt_tokens) if streamed else None)
    worked_s = None if prefill_s is None else prefill_s + (totals.load_s or 0.0)
    if not streamed:
        worked_s = None if worked_s is None or totals.decode_s is None else worked_s + totals.decode_s
    if attempt.follows_preemption_s is not None and worked_s is not None:
        server.prompts.stopped(max(until_s - worked_s - attempt.follows_preemption_s, 0.0))
    if (read_s := _read_before_s(exchange, attempt)) <= 0.0:
        return 0
    tokens = totals.prompt_tokens or round(job.prompt_tokens)
    took_s = totals.prefill_s or (until_s - attempt.run.started_s if streamed else None)
    whole_s = server.speeds.read_s(tokens)
    counts = totals.prompt_tokens, totals.read_tokens
    if (share := share_found(read_s, whole_s, took_s, *counts, job.saved_s)) is None:
        return 0
    server.prompts.found(share)
    return round(tokens * min(read_s / whole_s, 1.0) * (1.0 - min(max(share, 0.0), 1.0)))


def share_found(
    read_s: float,
    prompt_s: float,
    took_s: float | None,
    prompt_tokens: int | None,
    read_tokens: int | None,
    saved_s: float = 0.0,
) -> float | None:
    """Return the share of what was read before a preemption that was found again; None if unknown.

    `read_s` of `prompt_s` seconds were read before; then the prompt took `took_s`; `saved_s` of it were
    cached from the start. Where the server reports fewer prefilled tokens than the prompt has, these tell; a
    count of all may mean that none was found or that it counts in this way.
    """
    if prompt_tokens and read_tokens and read_tokens < prompt_tokens and prompt_s > 0.0:
        return ((1.0 - read_tokens / prompt_tokens) * prompt_s - saved_s) / read_s
    if took_s is None or read_s < MIN_SHARE * prompt_s:
        return None
    return (prompt_s - saved_s - took_s) / read_s


def _unread_s(exchange: Exchange, server: Server) -> float:
    """Return the seconds it takes to read what is not cached of a prompt."""
    return max(server.speeds.read_s(exchange.job.prompt_tokens) - exchange.job.saved_s, 0.0)


def _shows_its_beginning(exchange: Exchange) -> bool:
    """Whether the first token is seen: Ollama holds a stream back until a tool's call is whole."""
    parsed = exchange.asked.parsed
    plain = parsed.view is not None and not parsed.view.tools
    return exchange.splice is not None or (parsed.stream and plain)


def _read_before_s(exchange: Exchange, attempt: Attempt) -> float:
    """Return the seconds for which the server of an attempt read the prompt before."""
    server_id = attempt.run.server_id
    return sum(part.read_s or 0.0 for part in exchange.preempted if part.run.server_id == server_id)
