"""Two servers side by side behind one queue."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.config import BackendConfig
from tests.fakes.raw_http import post, raw_client
from tests.fakes.replay_backend import Engine, Replay, Speed
from tests.fakes.scripted_upstream import Conversation, answer, scripted
from tests.fakes.serving import asked, serving, until

SLOW = Speed(decode_tokens_per_s=20.0)


def chat(prompt: str, tokens: int = 400, model: str = "replay") -> bytes:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": model, "messages": messages, "options": {"num_predict": tokens}, "stream": False}
    return post("/api/chat", json.dumps(body).encode())


async def test_both_work_and_a_third_request_waits() -> None:
    engines = [Engine(speed=SLOW), Engine(speed=SLOW)]
    async with (
        serve_app(Replay(engines[0]).app) as one,
        serve_app(Replay(engines[1]).app) as two,
        serving(None, backends=(BackendConfig("one", one), BackendConfig("two", two))) as daemon,
        raw_client(daemon.base_url) as a,
        raw_client(daemon.base_url) as b,
        raw_client(daemon.base_url) as c,
    ):
        for number, client in enumerate((a, b, c)):
            client.send(chat(f"0.5 number {number}"))
        state = await until(daemon, lambda s: len(s.running) == 2 and len(s.queue) == 1)
        assert {each.backend for each in state.running} == {"one", "two"}
        assert [(each.name, each.busy) for each in state.backends] == [("one", 1), ("two", 1)]
        await asyncio.gather(*(each.wait_until(lambda counts: counts.arrived == 1) for each in engines))


async def test_of_two_servers_one_is_down_that_alone_has_the_model() -> None:
    async with (
        serve_app(Replay(Engine(), ("here",)).app) as here,
        AsyncExitStack() as away,
        AsyncExitStack() as stack,
    ):
        gone = await away.enter_async_context(serve_app(Replay(Engine(), ("there",)).app))
        backends = (BackendConfig("here", here), BackendConfig("there", gone))
        daemon = await stack.enter_async_context(serving(None, backends=backends))
        await until(daemon, lambda s: all(each.offered for each in s.backends))
        await away.aclose()
        daemon.pool.named("there").look_now()
        state = await until(daemon, lambda s: s.backends[1].state == "down")
        assert state.verdict.text == "there is down: other servers take what they can"
        assert state.slots == (0, state.backends[0].slots)
        async with asked(daemon, chat("0.1 x", model="there"), chat("0.1 x", model="there")):
            state = daemon.snapshot()
            assert state.verdict.text.startswith("there is down: 2 waiting need it, refused in ")
            assert (state.waiting.stranded, state.backends[1].waiting, state.running) == (2, 2, ())


async def test_one_that_goes_leaves_the_work_to_the_other() -> None:
    engine = Engine()
    async with serve_app(Replay(engine).app) as stays:
        async with serve_app(Replay(Engine()).app) as goes:
            backends = (BackendConfig("goes", goes), BackendConfig("stays", stays))
            context = serving(None, backends=backends)
            daemon = await context.__aenter__()
            await until(daemon, lambda s: all(each.state == "up" for each in s.backends))
        try:
            for _ in range(4):
                async with raw_client(daemon.base_url) as client:
                    assert (await client.ask(chat("0.1 hello", tokens=2))).status == 200
            state = await until(daemon, lambda s: s.backends[0].state == "down")
            assert [(each.name, each.state) for each in state.backends] == [("goes", "down"), ("stays", "up")]
            assert state.counters.completed == 4
        finally:
            await context.__aexit__(None, None, None)


async def test_each_server_gets_its_own_key(tmp_path: Path) -> None:
    seen: dict[str, bytes | None] = {}
    for name in ("one", "two"):
        key = tmp_path / name
        key.write_text(f"key-of-{name}")
        key.chmod(0o600)

    def script(name: str) -> Callable[[Conversation], Awaitable[None]]:
        async def take(it: Conversation) -> None:
            while True:
                request = await it.request()
                seen[name] = request.value("authorization")
                it.send(answer())

        return take

    async with scripted(script("one")) as one, scripted(script("two")) as two:
        backends = tuple(
            BackendConfig(name, upstream.base_url, key_file=str(tmp_path / name))
            for name, upstream in (("one", one), ("two", two))
        )
        async with serving(None, backends=backends) as daemon:
            while set(seen) != {"one", "two"}:
                async with raw_client(daemon.base_url) as a, raw_client(daemon.base_url) as b:
                    await asyncio.gather(a.ask(chat("0.5 a")), b.ask(chat("0.5 b")))
    assert seen == {"one": b"Bearer key-of-one", "two": b"Bearer key-of-two"}
