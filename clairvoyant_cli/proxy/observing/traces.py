"""Sends a trace of each ended request by OTLP: the request, its times in the queue, its attempts. No text."""

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.observing.metrics import genai_attributes
from clairvoyant_cli.proxy.queue.dispatcher import Keeper
from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
from clairvoyant_cli.proxy.servers.pool import ServerPool

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from requests import Session

log = logging.getLogger("clairvoyant")

VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
MAX_ANSWER_BYTES = 65536
CLOSING_S = 3.0
"""How long the last spans may take to be sent."""


def traces_to(endpoint: str | None) -> "Traces | None":
    """Return what sends traces, None if no endpoint is set. ClairvoyantError if the extra is missing; if only
    a variable asks for traces, which may be meant for other programs, a warning.
    """
    if endpoint is None and not any(map(os.environ.get, VARIABLES)):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        why = "traces need the otel extra; in the checkout, run: uv tool install '.[otel]'"
        if endpoint is not None:
            raise ClairvoyantError(why) from None
        log.warning("no traces are sent: %s", why)
        return None
    name = os.environ.get("OTEL_SERVICE_NAME", "clairvoyant")
    provider = TracerProvider(resource=Resource.create({"service.name": name}), shutdown_on_exit=False)
    url = None if endpoint is None else endpoint.rstrip("/") + "/v1/traces"
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url, session=_bounded_session())))
    return Traces(provider)


def _bounded_session() -> "Session":
    """Return a session that reads no answer beyond `MAX_ANSWER_BYTES`: the exporter keeps them whole."""
    from requests import PreparedRequest, Response, Session

    class Bounded(Session):
        def send(self, request: PreparedRequest, **options: Any) -> Response:
            answer = super().send(request, **{**options, "stream": True})
            with answer:
                answer._content = answer.raw.read(MAX_ANSWER_BYTES)  # noqa: SLF001 - the rest is never read
            return answer

    return Bounded()


class Traces:
    """Makes spans of ended requests. The SDK sends them from a thread of its own."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider

    def keeper(self, journal: Journal, pool: ServerPool) -> Keeper:
        """Return what makes the spans of an ended request."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        tracer, propagator = self._provider.get_tracer("clairvoyant"), TraceContextTextMapPropagator()

        def make_spans(exchange: Exchange, end: RequestEnd) -> None:
            told = genai_attributes(exchange, end, pool)
            epoch_s, asked, total = journal.at(0.0), exchange.asked, exchange.totals

            def ns(clock_s: float) -> int:
                return int((epoch_s + clock_s) * 1e9)

            name = f"{told['gen_ai.operation.name']} {asked.parsed.model}".rstrip()
            parent = propagator.extract({"traceparent": asked.traceparent})
            span = tracer.start_span(name, parent, SpanKind.SERVER, start_time=ns(exchange.job.arrival_s))
            span.set_attributes(told)
            counts = {
                "server.port": int(told.get("server.port", 0)) or None,
                "http.response.status_code": end.status,
                "gen_ai.usage.input_tokens": total.prompt_tokens,
                "gen_ai.usage.output_tokens": total.tokens,
                "clairvoyant.predicted_tokens": asked.prediction.expected_tokens,
                "clairvoyant.cuts": len(exchange.cuts),
            }
            span.set_attributes({key: value for key, value in counts.items() if value is not None})
            span.set_attribute("clairvoyant.request_id", exchange.id)
            within = set_span_in_context(span)

            def child(name: str, begun_s: float, ended_s: float) -> None:
                tracer.start_span(name, within, start_time=ns(begun_s)).end(ns(ended_s))

            since_s = exchange.job.arrival_s
            for attempt in exchange.attempts:
                child("queue", since_s, attempt.granted_s)
                since_s = attempt.ended_s or end.at_s
                child("attempt", attempt.granted_s, since_s)
            if exchange.attempt is None:
                child("queue", since_s, end.at_s)
            if exchange.first_byte_s is not None:
                span.add_event("first token", timestamp=ns(exchange.first_byte_s))
            if "error.type" in told:
                span.set_status(StatusCode.ERROR)
            span.end(ns(end.at_s))

        return make_spans

    async def close(self) -> None:
        """Send what is left, for `CLOSING_S` at most."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)  # no exit waits for it
        last.start()
        await asyncio.to_thread(last.join, CLOSING_S)
        if last.is_alive():
            log.warning("the OTLP endpoint does not answer; the last traces are lost")
