"""Hours over real sockets in a moment, exactly."""

import asyncio
import time

import httpx
import pytest
from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.virtual_time import run_virtually

from tests.fakes.replay_backend import Engine, Replay, Speed


def now() -> float:
    return asyncio.get_running_loop().time()


def test_an_hour_of_sleep_takes_no_time_and_other_clocks_run_as_before() -> None:
    async def sleep() -> tuple[float, float]:
        began_s = time.monotonic()
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time(), time.monotonic() - began_s

    virtual_s, real_s = run_virtually(sleep())
    assert virtual_s == 3600.0
    assert real_s < 3600.0


def test_strides_do_not_change_when_answers_end() -> None:
    """The last bytes of a streamed answer must not wait for an acknowledgement: the clock would not wait."""

    async def ask(stride: int) -> list[float]:
        speed = Speed(decode_tokens_per_s=50)
        engine = Engine(speed=speed, stride=stride, answer_tokens=lambda prompt, rng: 213)
        ends = []
        async with (
            serve_app(Replay(engine).app) as url,
            httpx.AsyncClient(base_url=url, timeout=3600, trust_env=False) as client,
        ):
            for _ in range(5):
                begun_s = now()
                body = {"model": "replay", "prompt": "hello"}
                async with client.stream("POST", "/api/generate", json=body) as response:
                    lines = [line async for line in response.aiter_lines()]
                assert len(lines) == 213 + 1
                ends.append(now() - begun_s)
        return ends

    assert run_virtually(ask(1)) == pytest.approx([213 / 50] * 5, abs=0.01)
    assert run_virtually(ask(100)) == pytest.approx([213 / 50] * 5, abs=0.01)
