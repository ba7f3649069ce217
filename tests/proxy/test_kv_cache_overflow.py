"""A llama.cpp whose slots share one KV cache, which an overflow reveals."""

import asyncio
import json
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.backends import llamacpp
from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import serving, until

CONTEXT = 1000
WHOLE = b'data: {"content": "x", "stop": true, "tokens_predicted": 9, "tokens_evaluated": 9}\n\n'
ABORTED = b'data: {"error": {"code": 500, "message": "Context size has been exceeded."}}\n\n'


class SharedCache:
    """Two slots; two answers at once overflow the cache, and both are aborted."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.overflowed = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        kind, body = (
            b"application/json",
            json.dumps(
                {"total_slots": 2, "model_path": "m", "default_generation_settings": {"n_ctx": CONTEXT}}
            ).encode(),
        )
        if scope["method"] == "POST":
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running == 2:
                self.overflowed.set()
            elif not self.overflowed.is_set():
                await self.overflowed.wait()
            kind, body = b"text/event-stream", ABORTED if self.most == 2 else WHOLE
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self.running -= scope["method"] == "POST"


async def test_after_an_overflow_requests_that_do_not_fit_together_wait_for_each_other() -> None:
    backend = SharedCache()
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
            daemon.pool.first.look_now()
            await asyncio.sleep(0.01)
        both = await asyncio.gather(one.ask(asked), other.ask(asked))
        assert [answer.body for answer in both] == [ABORTED, ABORTED]
        (line,) = [each.text for each in daemon.snapshot().log if "share" in each.text]
        assert "overflowed (1,000 tokens)" in line
        backend.most = 0
        both = await asyncio.gather(one.ask(asked), other.ask(asked))
        assert [answer.body for answer in both] == [WHOLE, WHOLE]
        assert backend.most == 1


async def test_the_size_of_the_cache_behind_the_slots_is_known_once_the_server_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llamacpp, "cache_tokens", lambda started, model: 500.0 if model == "m" else 0.0)
    async with serve_app(SharedCache()) as url, serving(url) as daemon:
        await until(daemon, lambda state: state.backends[0].state == "up")
        [server] = daemon.dispatcher.scheduler.fleet.servers.values()
        assert server.cache.room_tokens == 500.0
