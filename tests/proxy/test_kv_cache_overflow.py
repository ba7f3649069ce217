"""A llama.cpp whose slots share one KV cache, which an overflow reveals."""

import asyncio
import json
from math import inf
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app

from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import serving

CONTEXT = 1000
WHOLE = b'data: {"content": "x", "stop": true, "tokens_predicted": 9, "tokens_evaluated": 9}\n\n'
ABORTED = b'data: {"error": {"code": 500, "message": "Context size has been exceeded."}}\n\n'


class SharedCache:
    """Two slots; two answers at once overflow the cache, and both are aborted. `pages` by path."""

    def __init__(self, pages: dict[str, Any]) -> None:
        self.pages = pages
        self.running = self.most = 0
        self.waits = True  # the first answer, for one that runs beside it
        self.overflowed = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        kind, body = b"application/json", json.dumps(self.pages.get(scope["path"], {})).encode()
        if scope["method"] == "POST":
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running == 2:
                self.overflowed.set()
            elif not self.waits:
                await asyncio.sleep(0.2)  # it works, and another may come meanwhile
            elif not self.overflowed.is_set():
                await self.overflowed.wait()
            kind, body = b"text/event-stream", ABORTED if self.most == 2 else WHOLE
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.running -= scope["method"] == "POST"


@pytest.mark.parametrize("context", [CONTEXT, None])
async def test_after_an_overflow_requests_that_do_not_fit_together_wait_for_each_other(
    context: int | None,
) -> None:
    props = {"total_slots": 2, "model_path": "m", "default_generation_settings": {"n_ctx": context}}
    backend = SharedCache({"/props": props})
    asked = post(
        "/completion", json.dumps({"prompt": "word " * 450, "stream": True, "n_predict": 50}).encode()
    )
    async with (
        serve_app(backend) as url,
        serving(url) as daemon,
        raw_client(daemon.base_url) as one,
        raw_client(daemon.base_url) as other,
    ):
        while daemon.pool.first.slots != 2 or not daemon.pool.first.status.models:
            daemon.pool.first.probe_due.set()
            await asyncio.sleep(0.01)
        both = await asyncio.gather(one.ask(asked), other.ask(asked))
        assert [answer.body for answer in both] == [ABORTED, ABORTED]
        (line,) = [each.text for each in daemon.snapshot().log if "share" in each.text]
        assert ("overflowed (1,000 tokens)" in line) is (context is not None)
        [there] = daemon.dispatcher.scheduler.fleet.servers.values()
        assert there.shared_tokens < inf
        backend.most = 0
        both = await asyncio.gather(one.ask(asked), other.ask(asked))
        assert [answer.body for answer in both] == [WHOLE, WHOLE]
        assert backend.most == 1


async def test_answers_of_lm_studio_that_do_not_fit_into_its_cache_wait_for_each_other() -> None:
    instance = {"id": "m", "config": {"context_length": CONTEXT, "parallel": 2}}
    models = [{"type": "llm", "key": "m", "loaded_instances": [instance]}]
    models += [{"type": "embedding", "key": "e", "loaded_instances": [{"id": "e", "config": {}}]}]
    backend = SharedCache({"/api/v0/models": {"data": []}, "/api/v1/models": {"models": models}})
    backend.waits = False
    asked = post("/v1/completions", json.dumps({"prompt": "word " * 450, "stream": True}).encode())
    async with (
        serve_app(backend) as url,
        serving(url) as daemon,
        raw_client(daemon.base_url) as one,
        raw_client(daemon.base_url) as other,
    ):
        server = daemon.pool.first
        [there] = daemon.dispatcher.scheduler.fleet.servers.values()
        while there.shared_tokens == inf:
            server.probe_due.set()
            await asyncio.sleep(0.01)
        assert ([each.name for each in server.status.models], there.shared_tokens) == (["m"], CONTEXT)
        both = await asyncio.gather(one.ask(asked), other.ask(asked))
        assert [answer.body for answer in both] == [WHOLE, WHOLE]
        assert backend.most == 1
