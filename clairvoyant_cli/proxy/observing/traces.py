"""Sends a trace of each ended request by OTLP: the request, its times in the queue, its attempts. No text."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.observing.metrics import genai_attributes
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended

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

    def keeper(self) -> Callable[[Ended], None]:
        """Return what makes the spans of an ended request."""
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        tracer, propagator = self._provider.get_tracer("clairvoyant"), TraceContextTextMapPropagator()

        def make_spans(of: Ended) -> None:
            told = {name: value for name, value in genai_attributes(of).items() if value}

            def ns(clock_s: float) -> int:
                return int(of.at(clock_s) * 1e9)

            name = f"{told['gen_ai.operation.name']} {of.model}".rstrip()
            parent = propagator.extract({"traceparent": of.traceparent})
            span = tracer.start_span(name, parent, SpanKind.SERVER, start_time=ns(of.arrival_s))
            span.set_attributes(told)
            counts = {
                "server.port": None if of.last.address is None else of.last.address[1],
                "http.response.status_code": of.status,
                "gen_ai.usage.input_tokens": of.totals.prompt_tokens,
                "gen_ai.usage.output_tokens": of.totals.tokens,
                "clairvoyant.predicted_tokens": of.prediction.expected_tokens,
                "clairvoyant.cuts": of.cuts,
            }
            span.set_attributes({key: value for key, value in counts.items() if value is not None})
            span.set_attribute("clairvoyant.request_id", of.id)
            within = set_span_in_context(span)

            def child(name: str, begun_s: float, ended_s: float) -> None:
                tracer.start_span(name, within, start_time=ns(begun_s)).end(ns(ended_s))

            since_s = of.arrival_s
            for use in of.uses:
                child("queue", since_s, use.granted_s)
                child("attempt", use.granted_s, use.ended_s)
                since_s = use.ended_s
            if of.last is NOWHERE:
                child("queue", since_s, of.ended_s)
            if of.ttft_s is not None:
                span.add_event("first token", timestamp=ns(of.arrival_s + of.ttft_s))
            if "error.type" in told:
                span.set_status(StatusCode.ERROR)
            span.end(ns(of.ended_s))

        return make_spans

    async def close(self) -> None:
        """Send what is left, for `CLOSING_S` at most."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)  # no exit waits for it
        last.start()
        await asyncio.to_thread(last.join, CLOSING_S)
        if last.is_alive():
            log.warning("the OTLP endpoint does not answer; the last traces are lost")
