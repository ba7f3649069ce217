"""The tokens that are said of streamed answers are those that the server made, while they run and after."""

import json
from typing import Any

import pytest

from tests.fakes.raw_http import post, raw_client
from tests.fakes.replay_backend import Engine, Speed, tabled
from tests.fakes.serving import replaying, until

SPEED = Speed(decode_tokens_per_s=1000.0)


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/api/chat", {}),
        ("/v1/chat/completions", {"stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", {}),
    ],
)
async def test_the_tokens_are_those_of_the_server(path: str, options: dict[str, Any]) -> None:
    engine = Engine(speed=SPEED)
    async with replaying(engine, slots=2) as daemon, raw_client(daemon.base_url) as client:
        for number in range(5):
            messages = [{"role": "user", "content": f"0.{number} hello"}]
            body = {"model": "replay", "stream": True, "messages": messages} | options
            got = await client.ask(post(path, json.dumps(body).encode()))
            events = sum(
                b'"content":"' in line and b'"content":""' not in line for line in got.body.split(b"\n")
            )
            state = await until(daemon, lambda s, n=number: s.counters.completed > n)  # type: ignore[misc]
            assert state.recent[-1].tokens == engine.journal[-1].tokens == events


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_the_tokens_so_far_are_those_that_were_sent(path: str) -> None:
    engine = Engine(speed=SPEED, answer_tokens=tabled({"0.9 endless": 100_000}))
    async with replaying(engine, slots=1) as daemon, raw_client(daemon.base_url) as client:
        body = {"model": "replay", "stream": True, "messages": [{"role": "user", "content": "0.9 endless"}]}
        client.send(post(path, json.dumps(body).encode()))
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens > 20)
        engine.freeze()
        await until(daemon, lambda s: s.running[0].tokens == engine.journal[-1].tokens > 20)
