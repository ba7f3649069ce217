"""The official clients across cuts: what they parse is what they parse of an uncut answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import ollama
import openai
import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.proof import proven
from clairvoyant_lab.virtual_time import run_virtually
from pydantic import BaseModel

from clairvoyant_cli.proxy.daemon import Daemon
from clairvoyant_cli.state.snapshot import Snapshot
from profiles.records import Served
from tests.fakes.replay_backend import Engine, Replay, Speed
from tests.fakes.serving import believe, serving, until

TOKENS = 200
SPEED = Speed(prefill_tokens_per_s=10_000.0, decode_tokens_per_s=400.0)
LONG, SHORT = "0.9 Tell me everything", "0.0 Hi"
NEVER_THE_SAME = {"id", "created", "created_at", "total_duration", "eval_duration", "prompt_eval_duration"}


@asynccontextmanager
async def client_of_ollama(url: str) -> AsyncIterator[Any]:
    client: Any = ollama.AsyncClient(host=url)
    yield client
    await client.close()


async def ask_ollama(url: str, kind: str, prompt: str, *, stream: bool, tokens: int = TOKENS) -> Any:
    """Return what Ollama's client makes of an answer: its only object, or those of its stream."""
    asked: dict[str, Any] = {"model": "replay", "options": {"num_predict": tokens}, "stream": stream}
    async with client_of_ollama(url) as client:
        if kind == "chat":
            got = await client.chat(**asked, messages=[{"role": "user", "content": prompt}])
        else:
            got = await client.generate(**asked, prompt=prompt, raw=True)
        return [part async for part in got] if stream else [got]


async def ask_openai(url: str, kind: str, prompt: str, *, stream: bool) -> Any:
    """Return what OpenAI's client makes of an answer: its only object, or those of its stream."""
    asked: dict[str, Any] = {"model": "replay", "max_tokens": TOKENS, "stream": stream}
    if stream and kind == "chat":
        asked["stream_options"] = {"include_usage": True}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if kind == "chat":
            got = await client.chat.completions.create(
                **asked, messages=[{"role": "user", "content": prompt}]
            )
        else:
            got = await client.completions.create(**asked, prompt=prompt)
        return [chunk async for chunk in got] if stream else [got]


@asynccontextmanager
async def preempting(way: str) -> AsyncIterator[Daemon]:
    """Run the proxy before one slot, of which it is proved that it goes on in a way."""
    engine = Engine(speed=SPEED, seed=1, answer_tokens=lambda prompt, rng: 1000)
    clock = asyncio.get_running_loop().time
    async with serve_app(Replay(engine).app) as url, serving(url, policy="boost", clock=clock) as daemon:
        await until(daemon, lambda s: s.backends[0].state == "up")
        worker = daemon.pool.first
        adapter = worker.adapter
        offered = await adapter.offered_models(worker.ask) or ()
        version, digest = worker.version, offered[0].digest
        profile = proven(Served(adapter.name, "replay", version=version, digest=digest), 0.001, slots=1)
        proof = replace(profile.continuations[0], way=way)
        await believe(worker, replace(profile, continuations=(proof,)))
        worker.speeds.decode_tokens_per_s = SPEED.decode_tokens_per_s
        yield daemon


def fields(parsed: list[BaseModel]) -> list[dict[str, Any]]:
    """Return every field of what was parsed, those the client does not know as well, ids and times aside."""
    return [
        {name: value for name, value in each.model_dump().items() if name not in NEVER_THE_SAME}
        for each in parsed
    ]


def has_said(tokens: int, state: Snapshot) -> bool:
    return bool(state.running) and state.running[0].tokens > tokens


@pytest.mark.parametrize("way", ["prefill", "raw"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("ask", [ask_ollama, ask_openai])
def test_a_client_cannot_tell(ask: Any, kind: str, stream: bool, way: str) -> None:
    async def scene() -> tuple[Any, Any, tuple[int, int]]:
        async with preempting(way) as daemon:
            uncut = await ask(daemon.base_url, kind, LONG, stream=stream)
            asking = asyncio.create_task(ask(daemon.base_url, kind, LONG, stream=stream))
            for begun in (5, 60):
                await until(daemon, partial(has_said, begun))
                await ask_ollama(daemon.base_url, "chat", SHORT, stream=False, tokens=5)
            cut = await asking
            counts = daemon.snapshot().counters
            return uncut, cut, (counts.cuts, counts.resumes)

    uncut, cut, counts = run_virtually(scene())
    assert counts == (2, 2)
    assert fields(cut) == fields(uncut)
    assert len({getattr(each, "id", None) for each in cut}) == 1


def is_reading(state: Snapshot) -> bool:
    return bool(state.running) and state.running[0].state == "prefill"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("ask", [ask_ollama, ask_openai])
def test_a_client_cannot_tell_that_its_prompt_was_cut(ask: Any, kind: str, stream: bool) -> None:
    prompt = LONG + " and more" * 10_000

    async def scene() -> tuple[Any, Any, tuple[int, int]]:
        async with preempting("raw") as daemon:
            uncut = await ask(daemon.base_url, kind, prompt, stream=stream)
        async with preempting("raw") as daemon:  # the first has the prompt in its cache
            await ask_ollama(daemon.base_url, "chat", SHORT, stream=False, tokens=5)  # loads the model
            daemon.pool.first.speeds.prefill_tokens_per_s = SPEED.prefill_tokens_per_s
            asking = asyncio.create_task(ask(daemon.base_url, kind, prompt, stream=stream))
            await until(daemon, is_reading)
            await ask_ollama(daemon.base_url, "chat", SHORT, stream=False, tokens=5)
            cut = await asking
            counts = daemon.snapshot().counters
            return uncut, cut, (counts.cuts, counts.resumes)

    uncut, cut, counts = run_virtually(scene())
    assert counts == (1, 1)
    assert fields(cut) == fields(uncut)
