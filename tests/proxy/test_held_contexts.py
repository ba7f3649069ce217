"""With `--hold-context`, requests for less than Ollama has loaded do not have it load the model again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.requests import held_contexts
from tests.fakes.raw_http import Message, RawClient, post, raw_client
from tests.fakes.serving import serving

MODEL = "m:latest"


class LoadingOllama:
    """Loads its model with the context that each request asks for, and at most `most`."""

    def __init__(self, context: int = 8192) -> None:
        self.context = context  # 0: nothing is loaded
        self.asked: list[int] = []
        self.most, self.listed_meanwhile = 32768, 0  # 0: none is listed while it loads
        self.has_model = True
        self.may_list, self.may_load = asyncio.Event(), asyncio.Event()
        self.may_list.set()
        self.may_load.set()
        self.loads, self.listed = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        status, told = 200, dict[str, Any](version="0.40.0")
        if scope["path"] == "/api/ps":
            await self.may_list.wait()
            self.listed.set()
        if scope["path"] in ("/api/ps", "/api/tags"):
            details = {"context_length": self.most}
            entry = {"name": MODEL, "model": MODEL, "context_length": self.context, "details": details}
            told = {"models": [entry] if self.context or scope["path"] == "/api/tags" else []}
        elif scope["path"] in ("/api/chat", "/api/embed"):
            status, told = 200 if self.has_model else 404, await self.answer(json.loads(body))
        answer = json.dumps(told).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        context = asked["options"]["num_ctx"]
        self.asked.append(context)
        if self.has_model and context != self.context:
            self.context = self.listed_meanwhile
            self.loads.set()
            await self.may_load.wait()
            self.context = min(context, self.most)
        return {"message": {"content": "x"}, "embeddings": [[0.1]], "done": True, "load_duration": 1000}


@asynccontextmanager
async def held(*fakes: LoadingOllama, **settings: Any) -> AsyncIterator[tuple[Daemon, RawClient]]:
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serve_app(fake)) for fake in fakes]
        backends = tuple(BackendConfig(f"b{n}", url, **settings) for n, url in enumerate(urls))
        daemon = await stack.enter_async_context(serving(None, backends=backends, hold_context=True))
        yield daemon, await stack.enter_async_context(raw_client(daemon.base_url))


def asking(context: int, path: str = "/api/chat", text: str = "hello") -> bytes:
    prompt = {"messages": [{"role": "user", "content": text}]} if path == "/api/chat" else {"input": text}
    return post(
        path, json.dumps({"model": "m", "stream": False, "options": {"num_ctx": context}, **prompt}).encode()
    )


async def ask(client: RawClient, context: int, path: str = "/api/chat") -> Message:
    answer = await client.ask(asking(context, path))
    assert answer.status == 200
    return answer


async def test_what_is_loaded_now_counts_whoever_had_it_loaded() -> None:
    fake = LoadingOllama()
    async with held(fake) as (_, client):
        for loaded, asked, sent in (
            (None, 2048, 8192),
            (4096, 4096, 4096),  # another program had it loaded with less
            (None, 16384, 16384),
            (None, 10000, 16384),  # the request before had it loaded with more
            (0, 2048, 2048),  # it was unloaded
            (None, 1024, 2048),
        ):
            fake.context = fake.context if loaded is None else loaded
            await ask(client, asked)
            assert fake.asked[-1] == sent
        await ask(client, 1024, "/api/embed")
        assert fake.asked[-1] == 2048


async def test_each_server_of_a_pool_keeps_its_own_context() -> None:
    first, second = LoadingOllama(8192), LoadingOllama(4096)
    async with held(first, second) as (_, client):
        await ask(client, 2048)
        assert first.asked == [8192]
        first.has_model = False  # so the request goes on to the other, and asks that for less
        await ask(client, 2048)
        assert (first.asked, second.asked) == ([8192, 8192], [4096])


@pytest.mark.parametrize("meanwhile", [0, 8192])  # it is loading, or waits for answers of what is loaded
async def test_a_request_waits_while_its_model_is_loaded_with_more_for_one_before_it(meanwhile: int) -> None:
    fake = LoadingOllama()
    fake.listed_meanwhile = meanwhile
    async with held(fake, slots=2) as (daemon, client), raw_client(daemon.base_url) as other:
        fake.may_load.clear()
        client.send(asking(16384))
        await fake.loads.wait()
        fake.listed.clear()
        other.send(asking(2048))
        await fake.listed.wait()
        fake.may_load.set()
        await client.response()
        await other.response()
        assert fake.asked == [16384, 16384]


async def test_a_request_does_not_wait_for_more_than_its_model_can_have() -> None:
    fake = LoadingOllama()
    fake.most = fake.listed_meanwhile = 8192
    async with held(fake, slots=2) as (daemon, client), raw_client(daemon.base_url) as other:
        fake.may_load.clear()
        client.send(asking(100000))
        await fake.loads.wait()
        assert (await other.ask(asking(2048))).status == 200
        assert fake.asked == [100000, 8192]
        fake.may_load.set()
        await client.response()


async def test_without_a_list_a_request_is_sent_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_contexts, "LIST_TIMEOUT_S", 0.05)
    fake = LoadingOllama()
    async with held(fake) as (_, client):
        fake.may_list.clear()
        await ask(client, 2048)
        fake.may_list.set()
        assert fake.asked == [2048]
