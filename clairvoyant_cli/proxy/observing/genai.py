"""Requests in the names of OpenTelemetry's GenAI conventions (open-telemetry/semantic-conventions-genai)."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from clairvoyant_cli.protocols.routes import Route, Shape
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, RequestEnd
from clairvoyant_cli.proxy.servers.pool import ServerPool

DURATION = "gen_ai.server.request.duration"
FIRST_TOKEN = "gen_ai.server.time_to_first_token"  # noqa: S105 - a metric
PER_TOKEN = "gen_ai.server.time_per_output_token"  # noqa: S105 - a metric

METRICS = {
    DURATION: (
        "Arrival to end",
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
    ),
    FIRST_TOKEN: (
        "Arrival to first byte of successful streams",
        (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    ),
    PER_TOKEN: (
        "Time per token after the first of successful streams",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
    ),
}
"""Text and recommended buckets, in seconds."""

LABELS = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "server.address",
    "server.port",
    "error.type",
)

OPERATIONS = {
    Shape.OLLAMA_GENERATE: "text_completion",
    Shape.COMPLETION: "text_completion",
    Shape.LLAMACPP_COMPLETION: "text_completion",
    Shape.INFILL: "text_completion",
    Shape.EMBEDDING: "embeddings",
    Shape.OPAQUE: "generate_content",
}


def operation(route: Route) -> str:
    """Return the conventions' name of what a route does."""
    return OPERATIONS.get(route.shape, "chat")


def error_type(exchange: Exchange, end: RequestEnd) -> str:
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
        "gen_ai.operation.name": operation(exchange.asked.route),
        "gen_ai.provider.name": "clairvoyant" if server is None else server.adapter.name,
        "gen_ai.request.model": exchange.asked.parsed.model,
        "error.type": error_type(exchange, end),
    }
    if server is not None:
        place = urlsplit(server.base_url)
        port = place.port or (443 if place.scheme == "https" else 80)
        told |= {"server.address": place.hostname or "", "server.port": str(port)}
    return {name: value for name, value in told.items() if value}


def values(exchange: Exchange, end: RequestEnd) -> Iterator[tuple[str, float]]:
    """Yield the metrics of an ended request."""
    sojourn_s, ttft_s = exchange.sojourn_s(end.at_s), exchange.ttft_s
    yield DURATION, sojourn_s
    if ttft_s is None or not exchange.asked.parsed.stream or error_type(exchange, end):
        return
    yield FIRST_TOKEN, ttft_s
    tokens = exchange.totals.tokens or 0
    if tokens > 1:
        yield PER_TOKEN, (sojourn_s - ttft_s) / (tokens - 1)
