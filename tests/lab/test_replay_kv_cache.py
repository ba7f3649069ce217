"""What the simulated server keeps of earlier prompts, and what it reports of it."""

import asyncio
from typing import Any

import httpx
import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.replay.kv_cache import KvCache, shared_chars
from clairvoyant_lab.virtual_time import run_virtually
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.backends.chat_probe import client_for
from tests.fakes.replay_backend import DEFAULT_MODEL, Engine, Replay, Speed

A, B, C = "a" * 400, "b" * 400, "c" * 400


def ask(cache: KvCache, prompt: str) -> int:
    slot, shared = cache.take(prompt)
    cache.release(slot, prompt)
    return shared


@given(st.text("ab"), st.text("ab"), st.text("ab"))
def test_shared_characters_are_those_of_the_longest_common_prefix(begin: str, one: str, other: str) -> None:
    shared = shared_chars(begin + one, begin + other)
    assert shared >= len(begin)
    assert (begin + one)[:shared] == (begin + other)[:shared]
    assert (begin + one)[shared : shared + 1] != (begin + other)[shared : shared + 1] or shared == min(
        len(begin + one), len(begin + other)
    )


@pytest.mark.parametrize(
    ("slots", "host_tokens", "shared"),
    [
        (1, 0, [0, 0, 0, 0]),  # one slot forgets a prompt for the next
        (2, 0, [0, 0, 400, 400]),
        (1, 100, [0, 0, 400, 400]),  # the last one is restored as the other is saved
        (1, 1, [0, 0, 400, 400]),
    ],
)
def test_two_prompts_that_take_turns(slots: int, host_tokens: int, shared: list[int]) -> None:
    cache = KvCache(slots, host_tokens)
    assert [ask(cache, prompt) for prompt in (A, B, A, B)] == shared


def test_the_oldest_saved_prompt_is_evicted() -> None:
    cache = KvCache(1, host_tokens=150)
    assert [ask(cache, prompt) for prompt in (A, B, C)] == [0, 0, 0]
    assert cache.saved == [B]
    assert ask(cache, B + A) == 400  # restored: no longer in host memory
    assert (cache.saved, cache.texts) == ([C], [B + A])


def test_a_saved_prompt_replaces_its_beginning() -> None:
    cache = KvCache(1, host_tokens=1000)
    for prompt in (A, B, A + C, B):
        ask(cache, prompt)
    assert cache.saved == [A + C]
    ask(cache, A)  # too small a part of A + C to be chosen for the slot, large enough to be restored
    assert cache.saved == [B]


def test_a_server_reports_and_reads_only_what_is_not_cached() -> None:
    def body(stream: bool, *messages: str, **more: Any) -> dict[str, Any]:
        roles = ["user", "assistant"] * len(messages)
        said = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
        return {"model": DEFAULT_MODEL, "messages": said, "max_tokens": 3, "stream": stream} | more

    async def scene() -> tuple[list[dict[str, Any]], list[float], str]:
        engine = Engine(speed=Speed(10.0, 10.0), answer_tokens=lambda prompt, rng: 99, cache=KvCache())
        clock = asyncio.get_running_loop().time
        async with (
            serve_app(Replay(engine).app) as url,
            client_for(url) as client,
        ):

            async def post(asked: dict[str, Any]) -> tuple[httpx.Response, float]:
                begun_s = clock()
                return await client.post("/v1/chat/completions", json=asked), clock() - begun_s

            first, first_s = await post(body(False, "q" * 400))
            said = first.json()["choices"][0]["message"]["content"]
            second, second_s = await post(body(False, "q" * 400, said, "r" * 40))
            streamed, _ = await post(body(True, "q" * 400, stream_options={"include_usage": True}))
            return [first.json(), second.json()], [first_s, second_s], streamed.text

    (first, second), took_s, streamed = run_virtually(scene())
    # <|im_start|>user\n, the text, <|im_end|>\n, <|im_start|>assistant\n: 17 + 400 + 11 + 22 characters.
    timings = {"cache_n": 0, "prompt_n": 113, "prompt_ms": 11_300.0, "predicted_n": 3, "predicted_ms": 300.0}
    assert first["timings"] == timings
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    cached, read = second["timings"]["cache_n"], second["timings"]["prompt_n"]
    assert cached == (450 + len(first["choices"][0]["message"]["content"])) // 4
    assert second["usage"]["prompt_tokens"] == cached + read
    assert took_s == pytest.approx([11.6, read / 10 + 0.3])
    assert '"cache_n":112,"prompt_n":1' in streamed


def test_a_cancelled_prefill_leaves_what_was_read() -> None:
    async def scene() -> str:
        engine = Engine(speed=Speed(10.0), cache=KvCache())
        service = engine.arrive("/test", "p", 400, 0)

        async def serve() -> None:
            async with engine.slot(service, "p" * 400):
                await engine.prefill(service)

        serving = asyncio.create_task(serve())
        await asyncio.sleep(4.0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert engine.cache is not None
        return engine.cache.texts[0]

    assert run_virtually(scene()) == "p" * 160
