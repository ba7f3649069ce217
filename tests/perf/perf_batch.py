"""What `clairvoyant batch` costs a person, and a person the batch, in virtual time, as lines of JSON.

    python -m tests.perf.perf_batch [--requests 500]

A simulated server with one slot reads 2,000 tokens/s and writes 50. The batch asks for 150 tokens each; the
person reads for 30 s on average between two answers of 100 tokens. `plain` sends the batch as any program.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from io import BytesIO
from math import inf
from random import Random
from typing import Any

import httpx
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.bench.setup import unlimited
from clairvoyant_lab.proof import proven
from clairvoyant_lab.replay import DEFAULT_MODEL, Engine, Replay, Speed
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.commands.batch import Batch
from clairvoyant_cli.commands.batch_files import Line
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.daemon import running_daemon
from predictor import load
from profiles.records import Served
from tests.perf.harness import options, quantiles

CHAT = "/v1/chat/completions"


def asks(name: str, prompt_tokens: int, tokens: int, **more: object) -> dict[str, object]:
    text = f"{name} " + "word " * prompt_tokens
    return {
        "model": DEFAULT_MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
    } | more


async def person(client: httpx.AsyncClient, ttft_s: list[float], turns: float) -> None:
    """Ask, read and ask again; notes the times to first token."""
    rng, clock, turn = Random(1), asyncio.get_running_loop().time, 0
    while turn < turns:
        turn += 1
        await asyncio.sleep(rng.expovariate(1 / 30))
        asked_s = clock()
        async with client.stream("POST", CHAT, json=asks(f"turn {turn}", 1000, 100, stream=True)) as response:
            events = (line async for line in response.aiter_lines() if '"content":"' in line.replace(" ", ""))
            await anext(events)
            ttft_s.append(clock() - asked_s)
            async for _ in events:
                pass


async def measured(
    requests: int, turns: float, *, proof: bool = True, plain: bool = False
) -> dict[str, float]:
    """Run a batch of some requests beside a person of some turns, until one has ended."""
    loop, ttft_s = asyncio.get_running_loop(), list[float]()
    engine = Engine(speed=Speed(2000, 50), answer_tokens=unlimited)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_app(Replay(engine).app))
        config = ServeConfig(backend=url, listen="127.0.0.1:0", semantic="off")
        daemon = await stack.enter_async_context(running_daemon(config, load(), clock=loop.time))
        client = await stack.enter_async_context(client_for(daemon.base_url))
        server = daemon.pool.first
        if proof:
            settings = await server.adapter.settings(server.ask, DEFAULT_MODEL, server.status.version)
            offered = await server.adapter.offered_models(server.ask) or ()
            digest = next(each.digest for each in offered if each.name == DEFAULT_MODEL)
            served = Served(server.adapter.name, DEFAULT_MODEL, version=server.status.version, digest=digest)
            server.traits.profiles = [proven(served, 0.1, 1, settings.fingerprint if settings else "")]
            await server.see_settings()
        began_s = loop.time()
        asking = asyncio.create_task(person(client, ttft_s, turns if requests == 0 else inf if turns else 0))
        if requests:
            lines = deque(
                Line(f"r{n}", "POST", CHAT, asks(f"document {n}", 400, 150)) for n in range(requests)
            )
            batch = Batch(lines, "perf", BytesIO(), BytesIO(), show=_silent)
            await (_plainly(client, lines) if plain else batch.run(daemon.base_url, "", 2))
            asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        found = {"requests_per_hour": requests / (loop.time() - began_s) * 3600}
    if ttft_s:
        found["ttft_p50_s"], found["ttft_p95_s"] = quantiles(ttft_s, 0.5, 0.95)
    return found


def _silent(why: str = "") -> None:
    """Show nothing."""


async def _plainly(client: httpx.AsyncClient, lines: deque[Line]) -> None:
    async def work() -> None:
        while lines:
            await client.post(CHAT, json=lines.popleft().body)

    await asyncio.gather(work(), work())


def main() -> None:
    requests = options(__doc__, requests=500).requests
    arms: dict[str, Callable[[], Coroutine[Any, Any, dict[str, float]]]] = {
        "person alone": lambda: measured(0, 60),
        "batch alone": lambda: measured(requests, 0),
        "both": lambda: measured(requests, 1),
        "both, answers not cut": lambda: measured(requests, 1, proof=False),
        "both, plain": lambda: measured(requests, 1, plain=True),
        "both, plain, answers not cut": lambda: measured(requests, 1, plain=True, proof=False),
    }
    for name, arm in arms.items():
        found = run_virtually(arm())
        print(json.dumps({"arm": name} | {key: round(value, 3) for key, value in found.items()}), flush=True)


if __name__ == "__main__":
    main()
