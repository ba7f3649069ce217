"""When a running answer has stopped thinking, its end is forecast from the answer that follows."""

import asyncio
import json
from dataclasses import dataclass, field

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
        """Return the same prediction for all answers."""
        self.thought.append(thought_tokens)
        return Prediction(1.0, 0.0, 0.0, 0.0, 20.0, 30.0, self.name, memo="answer")


def piece(name: str, **more: object) -> bytes:
    line = json.dumps({"message": {"role": "assistant", "content": "", name: "hm"}, "done": False} | more)
    return f"{len(line) + 1:x}\r\n{line}\n\r\n".encode()


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
