"""Cuts requests whose prompt is still being read: no answer has begun, so they are sent again later.

This needs no proof of exact continuation and no plain text. What it costs is learned: `PromptCuts`.
"""

from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.exchange import Attempt, Exchange, Phase
from clairvoyant_cli.proxy.servers.prompt_cuts import share_found
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.job import Prefill
from clairvoyant_cli.scheduler.server_cache import CutPrice

MIN_PROMPT_S = 1.0
"""A prompt that is read sooner is not cut: llama.cpp looks once a second whether its client has left."""


def prefill_of(
    exchange: Exchange, server: Server, expected_s: float, now: float
) -> tuple[Prefill, CutPrice] | None:
    """Return how far a prompt was read and the price of cutting it now; None if it may not be cut. An answer
    that does not show when it begins counts as begun when its prompt should be read, at the server's measured
    speed and without what was cached when this run of `expected_s` seconds started.
    """
    attempt = exchange.attempt
    if attempt is None or attempt.stop_reading is None or exchange.phase is not Phase.PREFILL:
        return None
    whole_s, cuts = _unread_s(exchange, server), server.prompt_cuts
    before_s, runs_s = cuts.kept * _read_before_s(exchange, attempt), now - attempt.granted_s
    if whole_s < MIN_PROMPT_S:
        return None
    if not _shows_its_beginning(exchange):
        reads_s = min(whole_s - before_s, expected_s - server.service_s(0.0, exchange.job.tokens))
        if runs_s > reads_s or server.speeds.prefill_tokens_per_s is None:
            return None
    read_s = min(before_s + runs_s, whole_s)
    stops_s = cuts.stops_s(server.read_s, whole_s - read_s)
    return Prefill(read_s, stops_s), CutPrice((1.0 - cuts.kept) * (read_s + stops_s))


def stop_reading(exchange: Exchange, server: Server, now: float) -> bool:
    """Cut a request whose prompt is being read; False if the client would notice."""
    attempt = exchange.attempt
    if attempt is None or attempt.stop_reading is None:
        return False
    stop, attempt.stop_reading = attempt.stop_reading, None
    if not stop():
        return False
    whole_s = _unread_s(exchange, server)
    attempt.is_cutting, attempt.read_s = True, now - attempt.granted_s
    server.prompt_cuts.cut(now, max(whole_s - attempt.read_s - _read_before_s(exchange, attempt), 0.0))
    if exchange.splice is not None:
        exchange.splice = Splice(exchange.splice.asked)
    return True


def learn_from(exchange: Exchange, attempt: Attempt, totals: Totals, server: Server, now: float) -> int:
    """Learn from a whole answer what cuts of prompts cost; return the tokens that it read again."""
    cuts, job = server.prompt_cuts, exchange.job
    begun_s = attempt.first_byte_s
    streamed = attempt.usage is not None and attempt.usage.streaming and begun_s is not None
    until_s = begun_s if streamed and begun_s is not None else now
    prefill_s = totals.prefill_s or (server.read_s(job.prompt_tokens) if streamed else None)
    worked_s = None if prefill_s is None else prefill_s + (totals.load_s or 0.0)
    if not streamed:
        worked_s = None if worked_s is None or totals.decode_s is None else worked_s + totals.decode_s
    if attempt.follows_cut_s is not None and worked_s is not None:
        cuts.stopped(max(until_s - worked_s - attempt.follows_cut_s, 0.0))
    read_s = _read_before_s(exchange, attempt)
    if read_s <= 0.0:
        return 0
    tokens = totals.prompt_tokens or round(job.prompt_tokens)
    took_s = totals.prefill_s or (until_s - attempt.granted_s if streamed else None)
    whole_s = server.read_s(tokens)
    share = share_found(read_s, whole_s, took_s, totals.prompt_tokens, totals.prefilled_tokens, job.saved_s)
    if share is None:
        return 0
    cuts.found(share)
    return round(tokens * min(read_s / whole_s, 1.0) * (1.0 - min(max(share, 0.0), 1.0)))


def _unread_s(exchange: Exchange, server: Server) -> float:
    """Return the seconds it takes to read what is not cached of a prompt."""
    return max(server.read_s(exchange.job.prompt_tokens) - exchange.job.saved_s, 0.0)


def _shows_its_beginning(exchange: Exchange) -> bool:
    """Whether the first token is seen: Ollama holds a stream back until a tool's call is whole."""
    parsed = exchange.asked.parsed
    plain = parsed.view is not None and not parsed.view.tools
    return exchange.splice is not None or (parsed.stream and plain)


def _read_before_s(exchange: Exchange, attempt: Attempt) -> float:
    """Return the seconds for which the server of an attempt read the prompt before."""
    return sum(each.read_s or 0.0 for each in exchange.cuts if each.worker == attempt.worker)
