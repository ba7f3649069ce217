"""What has ended leaves numbers behind, and no text; what passes the queue by mistake does not."""

import json

import httpx
from prometheus_client.parser import text_string_to_metric_families

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.protocols.routes import ROUTES, Work
from clairvoyant_cli.proxy.observing.metrics import (
    MAX_HISTOGRAM_SETS,
    MAX_MODELS,
    MODEL_CHARS,
    Histogram,
    observe,
)
from clairvoyant_cli.proxy.queue.exchange import Exchange
from tests.fakes.llamacpp_server import LlamaServer
from tests.fakes.raw_http import post, raw_client
from tests.fakes.scripted_upstream import always, answer
from tests.fakes.serving import between, serving, until


async def test_no_text_of_a_request_outlives_it(llama: LlamaServer) -> None:
    kept: list[Exchange] = []
    body = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4}
    async with serving(llama.base_url, show_prompts=True) as daemon, raw_client(daemon.base_url) as client:
        daemon.admitted.functions.append(kept.append)
        await client.ask(post("/v1/chat/completions", json.dumps(body).encode()))
        await until(daemon, lambda s: s.counters.completed == 1 and not s.running)
    assert len(kept) == 1
    assert kept[0].totals.tokens == 4
    asked, attempt = kept[0].asked, kept[0].attempt
    assert (asked.parsed.view, asked.prompt, kept[0].task, kept[0].answer) == (None, None, None, None)
    assert attempt is not None
    assert (attempt.usage, attempt.connection) == (None, None)


def test_an_encoded_path_waits_like_any_other() -> None:
    ollama = adapter_of("ollama")
    assert ollama.route_of(b"POST", "/api/%63hat").work is Work.GENERATE
    assert ollama.route_of(b"POST", "/v1/chat%2Fcompletions").work is Work.GENERATE


async def test_whatever_clients_make_up_the_labels_have_an_end(llama: LlamaServer) -> None:
    spelled = [
        "/v1/chat/completions",
        "/v1/chat%2Fcompletions",
        "/v1/%63hat/completions",
        "/v1/chat/completions/",
    ]
    count = MAX_MODELS + 10
    async with serving(llama.base_url) as daemon, raw_client(daemon.base_url) as client:
        for number in range(count):
            body = {"model": f"m{number}" * 100, "messages": [], "max_tokens": 1}
            path = spelled[number % len(spelled)]
            await client.ask(post(f"{path}?{number}", json.dumps(body).encode()))
        await until(daemon, lambda s: s.counters.submitted == count and not s.running)
        async with httpx.AsyncClient(base_url=daemon.base_url) as operator:
            text = (await operator.get("/_clairvoyant/metrics")).text
    labels = [s.labels for family in text_string_to_metric_families(text) for s in family.samples]
    assert {each["endpoint"] for each in labels if "endpoint" in each} <= set(ROUTES)
    models = {each["model"] for each in labels if "model" in each}
    assert "other" in models
    assert len(models) <= MAX_MODELS + 1
    assert max(map(len, models)) <= MODEL_CHARS


async def test_statuses_that_a_backend_makes_up_are_counted_together() -> None:
    sent = [200, 299, 404, 499, 529, 599, 600, 777, 999]

    to_send = iter(sent)

    async with between(always(lambda _: answer(status=f"{next(to_send)} X"))) as (daemon, client):
        for status in sent:
            got = await client.ask(post("/v1/chat/completions", b"{}"))
            assert got.status == status, "what is forwarded is forwarded as it came"
        await until(daemon, lambda s: s.counters.submitted == len(sent) and not s.running)
        async with httpx.AsyncClient(base_url=daemon.base_url) as operator:
            text = (await operator.get("/_clairvoyant/metrics")).text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    counted: dict[str, float] = {}
    for each in samples:
        if each.name == "clairvoyant_requests_total":
            counted[each.labels["code"]] = counted.get(each.labels["code"], 0) + each.value
    assert counted == {"200": 1, "404": 1, "499": 1, "529": 1, "other": 5}
    assert {s.labels.get("error_type", "") for s in samples} == {"", "404", "499", "529", "other"}


def test_the_sets_of_labels_of_a_metric_have_an_end_and_nothing_is_lost() -> None:
    histogram = Histogram("Some text", (1.0,), "operation model error_type")
    for number in range(4000):
        labels = ("chat", "embed")[number % 2], f"m{number % 60}", str(number)
        observe({"x": histogram}, {"x": (0.5, labels)})
    samples = histogram.family("x").samples
    counts = {tuple(each.labels.values()): each.value for each in samples if each.name == "x_count"}
    assert len(counts) == MAX_HISTOGRAM_SETS + 2
    assert sum(counts.values()) == 4000
    assert counts["embed", "other", "other"] == 2000 - MAX_HISTOGRAM_SETS / 2
