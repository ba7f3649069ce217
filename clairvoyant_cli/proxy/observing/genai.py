"""Requests in the names of OpenTelemetry's GenAI conventions (open-telemetry/semantic-conventions-genai)."""

from collections.abc import Iterator

from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, RequestEnd
from clairvoyant_cli.proxy.servers.pool import ServerPool

_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
BUCKETS = {
    "request_duration": [0.01 * 2**doubled for doubled in range(14)],
    "time_to_first_token": _FIRST_TOKEN_S,
    "time_per_output_token": [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5],
}
"""The metrics `gen_ai.server.*` and their recommended buckets, in seconds."""

LABELS = (
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
    *("server.address", "server.port", "error.type"),
)

_COMPLETIONS = (Shape.OLLAMA_GENERATE, Shape.COMPLETION, Shape.LLAMACPP_COMPLETION, Shape.INFILL)
_OTHERS = {Shape.EMBEDDING: "embeddings", Shape.OPAQUE: "generate_content"}
OPERATIONS = dict.fromkeys(_COMPLETIONS, "text_completion") | _OTHERS
"""What routes do; the others are `chat`."""


def error_type(end: RequestEnd) -> str:
    """Return what went wrong, "" if nothing did."""
    if end.outcome in (Outcome.CLIENT_CANCELLED, Outcome.OPERATOR_CANCELLED):
        return end.outcome.value
    if end.status >= 400:
        return str(end.status)
    return "" if end.outcome is Outcome.COMPLETED else end.outcome.value


def attributes(exchange: Exchange, end: RequestEnd, pool: ServerPool) -> dict[str, str]:
    """Return the attributes in `LABELS` that apply to an ended request."""
    server = pool.get(exchange.attempt.worker) if exchange.attempt is not None else None
    told = {
        "gen_ai.operation.name": OPERATIONS.get(exchange.asked.route.shape, "chat"),
        "gen_ai.provider.name": "clairvoyant" if server is None else server.adapter.name,
        "gen_ai.request.model": exchange.asked.parsed.model,
        "error.type": error_type(end),
    }
    if server is not None:
        told |= {"server.address": server.upstream.host, "server.port": str(server.upstream.port)}
    return {name: value for name, value in told.items() if value}


def values(exchange: Exchange, end: RequestEnd) -> Iterator[tuple[str, float]]:
    """Yield the metrics of an ended request."""
    sojourn_s, ttft_s = exchange.sojourn_s(end.at_s), exchange.ttft_s
    yield "request_duration", sojourn_s
    if ttft_s is None or not exchange.asked.parsed.stream or error_type(end):
        return
    yield "time_to_first_token", ttft_s
    tokens = exchange.totals.tokens or 0
    if tokens > 1:
        yield "time_per_output_token", (sojourn_s - ttft_s) / (tokens - 1)
