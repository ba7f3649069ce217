"""Large inputs hold nobody up: no step of the event loop takes long, whatever is asked of the daemon."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.replay.kv_cache import KvCache

from clairvoyant_cli.proxy.observing.metrics import observe
from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.replay_backend import Engine, Replay
from tests.fakes.scripted_upstream import Conversation, answer
from tests.fakes.serving import between, replaying, serving, until
from tests.fakes.watched_steps import watched_steps

AGENTS = 1000
TOOL = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


def turn(number: int) -> bytes:
    messages = [
        {"role": "user", "content": f"0.{number % 10} says agent {number}. " * 50},
        {"role": "assistant", "content": "call 1"},
        {"role": "tool", "tool_call_id": "1", "content": f"agent {number} found 1. " * 30},
    ]
    asked = {"messages": messages, "tools": [TOOL], "max_tokens": 1 + number % 900}
    body = json.dumps({"model": "replay", **asked}).encode()
    return post("/v1/chat/completions", body, f"X-Clairvoyant-Client: agent-{number}")


@pytest.mark.parametrize("policy", ["boost", "sjf"])
async def test_what_is_told_of_a_long_queue_of_agents(policy: str) -> None:
    engine = Engine(answer_tokens=lambda prompt, rng: 10**6, cache=KvCache())
    async with (
        replaying(engine, slots=4, policy=policy, max_connections=2 * AGENTS) as daemon,
        AsyncExitStack() as stack,
    ):
        engine.freeze()
        for number in range(AGENTS):
            client = await stack.enter_async_context(raw_client(daemon.base_url))
            client.send(turn(number))
        operator = await stack.enter_async_context(raw_client(daemon.base_url))
        await until(daemon, lambda s: s.waiting.total >= AGENTS - 4)
        with watched_steps():
            for path in ("state", "metrics", "past"):
                answer = await operator.ask(get(f"/_clairvoyant/{path}", host="localhost"))
                assert answer.status == 200, path


async def test_a_body_of_a_million_tools() -> None:
    body = b'{"model":"m","tools":[' + b"{}," * 10**6 + b'{}],"messages":[{"role":"user","content":"x"}]}'

    async def serve(talk: Conversation) -> None:
        await talk.request()
        talk.send(answer())

    async with between(serve) as (_, client):
        with watched_steps():
            assert (await client.ask(post("/v1/chat/completions", body))).status == 200


async def test_a_scrape_after_labels_without_end() -> None:
    engine = Engine()
    async with serve_app(Replay(engine).app) as url, serving(url) as daemon, raw_client(url) as _:
        for number in range(4000):
            labels = "chat", "other", f"m{number}", "localhost", "1", str(number)
            observe(daemon.metrics._genai, dict.fromkeys(daemon.metrics._genai, (0.1, labels)))
        with watched_steps():
            async with raw_client(daemon.base_url) as operator:
                answer = await operator.ask(get("/_clairvoyant/metrics", host="localhost"))
        assert answer.body.count(b"\n") < 10_000


async def test_a_large_file_of_clients_that_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "clients.toml"
    path.touch(0o600)
    path.write_text('[clients.ann]\nkey = "a-key-of-ann-0123"\n')
    async with serving("http://127.0.0.1:9", clients=str(path)) as daemon:
        with path.open("a") as file:
            file.writelines(
                f'[clients.c{n}]\nkey = "key-number-{n}-{n * 7}"\nweight = 2\n' for n in range(10_000)
            )
        with watched_steps():
            await asyncio.gather(daemon.reload(), daemon.reload())
            shown = daemon.snapshot().clients
        assert len(daemon.access.clients.keys) == 10_001
        assert [each.name for each in shown[:3]] == ["ann", "c0", "c1"]
