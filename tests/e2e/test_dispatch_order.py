"""The paper's dispatch test on a real server: every short answer before any long one (section 4.4)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.fakes.llamacpp_server import LlamaServer
from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import serving, until

pytestmark = pytest.mark.real

SHORT_TOKENS, LONG_TOKENS = 8, 300


def body(p_long: float, tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": f"{p_long} about the river"}]
    return {"model": "tiny", "messages": messages, "max_tokens": tokens, "ignore_eos": True}


async def test_every_short_completes_before_any_long(llama: LlamaServer) -> None:
    wanted = [body(0.9, LONG_TOKENS), body(0.1, SHORT_TOKENS)] * 4
    async with (
        serving(llama.base_url) as daemon,
        httpx.AsyncClient(base_url=daemon.base_url, timeout=60) as client,
        asyncio.TaskGroup() as group,
    ):
        daemon.dispatcher.scheduler.pause()
        asks = [group.create_task(client.post("/v1/chat/completions", json=each)) for each in wanted]
        await until(daemon, lambda s: len(s.queue) == 8)
        daemon.dispatcher.scheduler.resume()
        daemon.dispatcher.moved()
        await asyncio.gather(*asks)
        recent = daemon.snapshot().recent
    assert [each.tokens for each in recent] == [SHORT_TOKENS] * 4 + [LONG_TOKENS] * 4
    assert {each.outcome for each in recent} == {"completed"}


async def test_the_server_never_queues(llama: LlamaServer) -> None:
    """While eight wait here, llama.cpp has one at most: its own first-come-first-served never decides."""
    async with (
        serving(llama.base_url) as daemon,
        httpx.AsyncClient(base_url=daemon.base_url, timeout=60) as client,
    ):
        asks = [client.post("/v1/chat/completions", json=body(0.5, 40)) for _ in range(8)]
        deferred = []

        async def look() -> None:
            async for state in _states(daemon.base_url):
                metrics = (await client.get(f"{llama.base_url}/metrics")).text
                deferred.append(float(metrics.split("\nllamacpp:requests_deferred ")[1].split("\n")[0]))
                assert len(state["running"]) <= 1
                if state["counters"]["completed"] == 8:
                    return

        await asyncio.gather(look(), *asks)
    assert deferred
    assert set(deferred) == {0.0}


async def test_tau_promotes_the_longest_waiting(llama: LlamaServer) -> None:
    """Under the paper's guard, and a tiny tau, nobody is displaced: the longest waiting is next."""
    wanted = [body(p_long, 4) for p_long in (0.9, 0.8, 0.1, 0.2)]
    async with serving(llama.base_url, policy="sjf", tau=1e-9) as daemon, asyncio.TaskGroup() as group:
        scheduler = daemon.dispatcher.scheduler
        scheduler.pause()
        for number, each in enumerate(wanted, 1):
            group.create_task(_ask(daemon.base_url, each))
            await until(daemon, lambda s, number=number: len(s.queue) == number)  # type: ignore[misc]
        scheduler.resume()
        daemon.dispatcher.moved()
        state = await until(daemon, lambda s: s.counters.completed == 4)
    predicted = [each.predicted.p_long for each in state.recent]
    assert sorted(predicted, reverse=True) == [0.9, 0.8, 0.2, 0.1]
    assert state.recent[0].predicted.p_long == 0.9
    assert state.recent[0].dispatched_by == "tau"
    assert state.tau.firings_total >= 1


async def _ask(base_url: str, wanted: dict[str, object]) -> None:
    async with raw_client(base_url) as client:
        await client.ask(post("/v1/chat/completions", json.dumps(wanted).encode()))


async def _states(base_url: str) -> AsyncIterator[Any]:
    async with (
        httpx.AsyncClient(base_url=base_url, timeout=60) as client,
        client.stream("GET", "/_clairvoyant/events") as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])
