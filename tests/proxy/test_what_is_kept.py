"""What has ended leaves numbers behind, and no text; what passes the queue by mistake does not."""

import json

from clairvoyant_cli.proxy.exchange import Exchange
from clairvoyant_cli.proxy.protocols.routes import BackendKind, Work, route_of
from tests.fakes.llamacpp_server import LlamaServer
from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import serving, until


async def test_no_text_of_a_request_outlives_it(llama: LlamaServer) -> None:
    kept: list[Exchange] = []
    body = {"messages": [{"role": "user", "content": "a secret"}], "max_tokens": 4}
    async with serving(llama.base_url, show_prompts=True) as daemon, raw_client(daemon.base_url) as client:
        books = daemon.gateway.books
        books.on_finished = kept.append
        await client.ask(post("/v1/chat/completions", json.dumps(body).encode()))
        await until(daemon, lambda s: s.counters.completed == 1 and not s.running)
    assert len(kept) == 1
    assert kept[0].totals.tokens == 4
    assert (kept[0].facts.view, kept[0].watch, kept[0].prompt, kept[0].task) == (None, None, None, None)


def test_an_encoded_path_waits_like_any_other() -> None:
    assert route_of(b"POST", "/api/%63hat", BackendKind.OLLAMA).work is Work.GENERATE
    assert route_of(b"POST", "/v1/chat%2Fcompletions", BackendKind.OLLAMA).work is Work.GENERATE
