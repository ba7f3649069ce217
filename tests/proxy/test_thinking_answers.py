"""When a running answer has stopped thinking, its end is forecast from the answer that follows."""

import asyncio
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.usage import UsageReader
from predictor.record import Prediction, PromptView
from tests.fakes.raw_http import post
from tests.fakes.scripted_upstream import Conversation
from tests.fakes.serving import ByFirstWord, between, until

THOUGHT, ANSWERED = 200, 20


@dataclass
class Thinks(ByFirstWord):
    """Expects 20 tokens after thinking, 1050 in all."""

    thought: list[int] = field(default_factory=list)

    def after_thinking(self, view: PromptView, thought_tokens: int) -> Prediction:
        self.thought.append(thought_tokens)
        return Prediction(1.0, 0.0, 0.0, 0.0, 20.0, 30.0, self.name, memo="answer")


class Fails(ByFirstWord):
    """Has a bug."""

    def after_thinking(self, view: PromptView, thought_tokens: int) -> Prediction:
        raise RuntimeError("a bug")


ASKED = post(
    "/api/chat", json.dumps({"model": "m", "messages": [{"role": "user", "content": "1 a"}]}).encode()
)


async def begun(upstream: Conversation) -> None:
    await upstream.request()
    upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n")
    upstream.send(b"Transfer-Encoding: chunked\r\n\r\n", piece("thinking"))


async def short(upstream: Conversation) -> None:
    await begun(upstream)
    upstream.send(piece("content"), LAST)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def piece(name: str, **more: object) -> bytes:
    line = json.dumps({"message": {"role": "assistant", "content": "", name: "hm"}, "done": False} | more)
    return f"{len(line) + 1:x}\r\n{line}\n\r\n".encode()


LAST = piece("x", done=True, eval_count=2, eval_duration=10**9) + b"0\r\n\r\n"


async def test_the_end_is_forecast_from_the_answer_after_the_thinking() -> None:
    thinks, goes_on, ends = Thinks(), asyncio.Event(), asyncio.Event()

    async def script(upstream: Conversation) -> None:
        await upstream.request()
        upstream.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n")
        upstream.send(b"Transfer-Encoding: chunked\r\n\r\n")
        for number in range(THOUGHT):
            upstream.send(piece("thinking"))
            if number == THOUGHT - 1:
                await goes_on.wait()
        upstream.send(piece("content"))
        await ends.wait()
        for _ in range(ANSWERED - 1):
            upstream.send(piece("content"))
        total = THOUGHT + ANSWERED
        upstream.send(piece("x", done=True, eval_count=total, eval_duration=10**9), b"0\r\n\r\n")

    async with between(script, thinks) as (daemon, client):
        body = {"model": "m", "messages": [{"role": "user", "content": "1.0 why"}]}
        client.send(post("/api/chat", json.dumps(body).encode()))
        thinking = await until(daemon, lambda s: bool(s.running) and s.running[0].tokens == THOUGHT)
        assert thinks.thought == []
        goes_on.set()
        answering = await until(daemon, lambda s: s.running[0].tokens == THOUGHT + 1)
        assert thinks.thought == [THOUGHT]
        before_s, after_s = thinking.running[0].eta_s, answering.running[0].eta_s
        assert before_s is not None
        assert after_s is not None
        assert after_s < before_s / 10
        ends.set()
        await until(daemon, lambda s: s.counters.completed == 1)
        daemon.learn_queue.flush()
        assert thinks.learned == [THOUGHT + ANSWERED, ANSWERED]


async def test_a_failing_predictor_does_not_break_an_answer() -> None:
    goes_on, ends = asyncio.Event(), asyncio.Event()

    async def script(upstream: Conversation) -> None:
        await begun(upstream)
        await goes_on.wait()
        upstream.send(piece("content"))
        await ends.wait()
        upstream.send(LAST)

    async with between(script, Fails(), faults_expected=True) as (daemon, client):
        client.send(ASKED)
        await until(daemon, lambda s: bool(s.running) and s.running[0].tokens == 1)
        goes_on.set()
        await until(daemon, lambda s: not s.running or s.running[0].tokens == 2)
        ends.set()
        assert b'"done": true' in (await client.response()).body


async def test_an_answer_is_freed_when_it_has_ended() -> None:
    async with between(short) as (daemon, client):
        with no_garbage_collection():
            client.send(ASKED)
            await client.response()
            await until(daemon, lambda s: s.counters.completed == 1 and not s.running)
            assert not [each for each in gc.get_objects() if type(each) is UsageReader]
