"""What goes out in OpenTelemetry's names: metrics for a scrape, and traces by OTLP."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.observing.traces import VARIABLES, traces_to
from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.serving import asked, serving, until

EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ASKED = "how tall is the lighthouse"
LENGTHS = tabled({ASKED: 5})


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def backend() -> AsyncIterator[str]:
    async with serve_app(Replay(Engine(1, answer_tokens=LENGTHS)).app) as url:
        yield url


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[str, list[Span]]]:
    """Take what is sent to an OTLP endpoint; yield its URL and the spans."""
    spans: list[Span] = []

    async def take(request: Request) -> Response:
        sent = ExportTraceServiceRequest.FromString(await request.body())
        for resource in sent.resource_spans:
            assert any(each.value.string_value == "clairvoyant" for each in resource.resource.attributes)
            spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        return Response(b"", media_type="application/x-protobuf")

    async with serve_app(Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])) as url:
        yield url, spans


def chat(*headers: str, model: str = "replay", stream: bool = True) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": ASKED}], "stream": stream}
    return post("/v1/chat/completions", json.dumps(body).encode(), *headers)


def told(span: Span) -> dict[str, Any]:
    kinds = {each.key: each.value.WhichOneof("value") for each in span.attributes}
    return {each.key: getattr(each.value, kinds[each.key]) for each in span.attributes}


async def test_metrics_have_the_names_buckets_and_attributes_of_the_conventions() -> None:
    async with backend() as url, serving(url) as daemon, raw_client(daemon.base_url) as client:
        for request in (chat(), chat(stream=False), chat(model="unknown")):
            await client.ask(request)
        await until(daemon, lambda s: s.counters.completed + s.counters.upstream_error == 3)
        scrape = await client.ask(get("/_clairvoyant/metrics", host=daemon.base_url.removeprefix("http://")))
    families = {each.name: each for each in text_string_to_metric_families(scrape.body.decode())}
    found = {
        name: {
            (each.labels["gen_ai_request_model"], each.labels["error_type"]): each.value
            for each in families[f"gen_ai_server_{name}_seconds"].samples
            if each.name.endswith("_count")
        }
        for name in ("request_duration", "time_to_first_token", "time_per_output_token")
    }
    assert found == {
        "request_duration": {("replay", ""): 2, ("other", "404"): 1},
        "time_to_first_token": {("replay", ""): 1},
        "time_per_output_token": {("replay", ""): 1},
    }
    sample = families["gen_ai_server_request_duration_seconds"].samples[0]
    host, _, port = url.removeprefix("http://").partition(":")
    bounds = [each.labels.get("le") for each in families["gen_ai_server_request_duration_seconds"].samples]
    assert (bounds[0], bounds[13]) == ("0.01", "81.92")
    assert sample.labels["gen_ai_operation_name"] == "chat"
    assert sample.labels["gen_ai_provider_name"] == daemon.pool.first.adapter.name
    assert (sample.labels["server_address"], sample.labels["server_port"]) == (host, port)


async def test_a_request_is_a_span_in_its_client_s_trace_with_its_time_in_the_queue() -> None:
    async with collector() as (endpoint, spans), backend() as url:
        settings: dict[str, Any] = {"announced": True, "otlp_endpoint": endpoint + "/"}
        async with serving(url, **settings) as daemon, raw_client(daemon.base_url) as client:
            sampled = f"traceparent: 00-{TRACE}-{PARENT}-01"
            assert (await client.ask(chat(sampled))).status == 200
            assert (await client.ask(chat(f"traceparent: 00-{TRACE}-{PARENT}-00"))).status == 200
            assert (await client.ask(chat("traceparent: nonsense", model="unknown"))).status == 404
            daemon.dispatcher.scheduler.pause()
            async with asked(daemon, chat(sampled)):
                pass  # it leaves the queue
            await until(daemon, lambda s: s.counters.client_cancelled == 1)
    by_id = {span.span_id: span for span in spans}
    served, failed, left = (span for span in spans if span.parent_span_id not in by_id)
    assert (served.name, served.kind) == ("chat replay", Span.SPAN_KIND_SERVER)
    assert (served.trace_id.hex(), served.parent_span_id.hex()) == (TRACE, PARENT)
    assert [event.name for event in served.events] == ["first token"]
    attributes = told(served)
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["server.port"] == int(url.rpartition(":")[2])
    assert "error.type" not in attributes
    queue, attempt = (span for span in spans if span.parent_span_id == served.span_id)
    assert (queue.name, attempt.name) == ("queue", "attempt")
    times = (served.start_time_unix_nano, queue.start_time_unix_nano, queue.end_time_unix_nano)
    assert times[0] == times[1] <= times[2] == attempt.start_time_unix_nano
    assert attempt.end_time_unix_nano == served.end_time_unix_nano
    assert failed.trace_id.hex() != TRACE
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert told(failed)["error.type"] == "404"
    assert told(left)["error.type"] == "client_cancelled"
    assert [each.name for each in spans if each.parent_span_id == left.span_id] == ["queue"]
    assert not any(ASKED.encode() in span.SerializeToString() for span in spans)


async def test_unresponsive_endpoint_delays_neither_requests_nor_shutdown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLES[1], "http://127.0.0.1:9")
    async with (
        backend() as url,
        serving(url, announced=True, faults_expected=True) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        assert (await client.ask(chat())).status == 200


def test_without_the_extra_a_setting_is_refused_and_a_variable_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, EXPORTER, None)
    assert traces_to(None) is None
    assert not caplog.text
    with pytest.raises(ClairvoyantError, match=r"uv tool install '\.\[otel\]'"):
        traces_to("http://127.0.0.1:4318")
    monkeypatch.setenv(VARIABLES[0], "http://127.0.0.1:4318/v1/traces")
    assert traces_to(None) is None
    assert "uv tool install '.[otel]'" in caplog.text
