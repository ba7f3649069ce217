"""Second predictions by an encoder: they come late, reorder the queue, and delay no request."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy import tasks
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.requests import encoder as second_opinion
from predictor.card import Calibration
from predictor.record import Prediction, PromptView, UrgencyPredictor
from predictor.semantic.opinion import EMBEDDED, EncoderEstimate
from tests.fakes.raw_http import chat, post, raw_client
from tests.fakes.replay_backend import Engine, Replay
from tests.fakes.serving import ByFirstWord, asked, until


class Believer(ByFirstWord):
    """Predicts by the prompt's first word, and by an opinion's score where there is one."""

    def predict(self, view: PromptView, opinion: EncoderEstimate | None = None) -> Prediction:
        first = super().predict(view)
        if opinion is None:
            return first
        return Prediction(0.5, 0.0, 0.5, 0.5, opinion.score, 2 * opinion.score, "encoder")


@dataclass
class Reader:
    """Says how long an answer is by the prompt's last word, once it is let."""

    let: threading.Event = field(default_factory=threading.Event)
    read: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def __call__(self, text: str, cut: int) -> EncoderEstimate:
        assert self.let.wait(10.0)
        self.read.append(text)
        self.threads.add(threading.current_thread().name)
        calibration = Calibration(0.0, 1.0, 1.0, 0.0, 1.28)
        return EncoderEstimate(float(text.split()[-1]), np.zeros(EMBEDDED, np.float32), 0.4, calibration)


@asynccontextmanager
async def reading(
    reader: Reader, urgency: UrgencyPredictor | None = None
) -> AsyncIterator[tuple[Daemon, Engine]]:
    engine = Engine()
    async with serve_app(Replay(engine).app) as url:
        named = None if urgency is None else "shipped"
        config = ServeConfig(backend=url, listen="127.0.0.1:0", urgency=named)
        async with running_daemon(config, Believer(), encode=reader, urgency=urgency) as daemon:
            daemon.stats.urgency_target_s = 0.05
            await until(daemon, lambda s: s.backends[0].state == "up")
            engine.freeze()
            yield daemon, engine
            reader.let.set()
            engine.thaw()


RUNS = chat("0.5 it runs 700")


async def test_waiting_requests_are_reordered_and_running_ones_are_not_read() -> None:
    reader = Reader()
    async with (
        reading(reader) as (daemon, _),
        asked(daemon, RUNS, chat("0.2 seems short and is long 900"), chat("0.8 seems long and is short 10")),
    ):
        state = await until(daemon, lambda s: len(s.queue) == 2)
        assert [each.predicted.expected_tokens for each in state.queue] == [250.0, 850.0]
        reader.let.set()
        state = await until(daemon, lambda s: all(r.predicted.source == "encoder" for r in s.queue))
        assert [each.predicted.expected_tokens for each in state.queue] == [10.0, 900.0]
        assert len(reader.read) == 2
        assert threading.main_thread().name not in reader.threads


async def test_the_result_of_a_tool_is_not_read() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "0.1 read it 10"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "0.2 what the file says 900"},
    ]
    body = {"model": "replay", "messages": messages, "stream": False}
    step = post("/v1/chat/completions", json.dumps(body).encode())
    reader = Reader()
    reader.let.set()
    async with reading(reader) as (daemon, _), asked(daemon, RUNS, step, chat("0.8 seems long 10")):
        state = await until(daemon, lambda s: any(r.predicted.source == "encoder" for r in s.queue))
        assert len(state.queue) == 2
        assert reader.read == ["0.8 seems long 10"]


class ByOpinion:
    """Thinks that all is of level 3, and knows better once an encoder has spoken."""

    name = "by-opinion"

    def level(self, view: PromptView, opinion: EncoderEstimate | None = None) -> int:
        return 3 if opinion is None else 0


async def test_urgency_is_predicted_again_unless_stated_by_the_client() -> None:
    reader = Reader()
    async with (
        reading(reader, ByOpinion()) as (daemon, _),
        asked(daemon, RUNS, chat("0.2 waits 900"), chat("0.8 waits 10", "X-Clairvoyant-Urgency: 4")),
    ):
        state = await until(daemon, lambda s: len(s.queue) == 2)
        levels = [each.urgency for each in state.running] + [each.urgency for each in state.queue]
        assert levels == [3, 3, 4]
        reader.let.set()
        state = await until(daemon, lambda s: s.running[0].urgency == s.queue[0].urgency == 0)
        await until(daemon, lambda s: all(r.predicted.source == "encoder" for r in s.queue))
        assert [each.urgency_by for each in state.queue] == ["predictor", "client"]
        assert daemon.operation.policy == "urgency"
        state = await until(daemon, lambda s: s.urgency.late > 0)
        assert f"request {state.queue[0].id} of level 0 has waited" in state.log[-1].text


async def test_what_starts_before_its_turn_is_not_read() -> None:
    reader = Reader()
    async with (
        reading(reader) as (daemon, engine),
        asked(daemon, RUNS, chat("0.9 one that waits 900"), chat("0.1 one that starts 10")) as clients,
    ):
        engine.thaw()
        await asyncio.gather(*(each.response() for each in clients))
        reader.let.set()
        await until(daemon, lambda s: s.counters.completed == 3)
    assert len(reader.read) <= 1


async def test_where_the_reading_says_what_is_urgent_it_goes_by_arrival_and_does_not_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def rest(seconds: float) -> None:
        pytest.fail("rested")

    monkeypatch.setattr(second_opinion, "sleep", rest)
    monkeypatch.setattr(second_opinion, "AT_ONCE", 1)
    reader = Reader()
    prompts = [f"{share} number {number} 10" for number, share in enumerate((0.5, 0.9, 0.7, 0.3))]
    async with (
        reading(reader, ByOpinion()) as (daemon, _),
        asked(daemon, RUNS, *map(chat, prompts)),
    ):
        await until(daemon, lambda s: len(s.queue) == 4)
        arrived = [e.asked.parsed.view.prompt for e in daemon.dispatcher.live.values() if e.asked.parsed.view]
        reader.let.set()
        await until(daemon, lambda s: all(r.predicted.source == "encoder" for r in s.queue))
        assert [text for text in reader.read if text in prompts] == [t for t in arrived if t in prompts]


async def test_what_starts_first_is_read_first_and_behind_the_first_few_at_leisure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests_s: list[float] = []

    async def rest(seconds: float) -> None:
        rests_s.append(seconds)

    monkeypatch.setattr(second_opinion, "sleep", rest)
    monkeypatch.setattr(second_opinion, "AT_ONCE", 1)
    reader = Reader()
    prompts = [f"{share} number {number} 10" for number, share in enumerate((0.5, 0.9, 0.7, 0.3))]
    async with reading(reader) as (daemon, _), asked(daemon, RUNS, *map(chat, prompts)):
        await until(daemon, lambda s: len(s.queue) == 4)
        reader.let.set()
        await until(daemon, lambda s: all(r.predicted.source == "encoder" for r in s.queue))
    assert reader.read == [prompts[at] for at in (0, 3, 2, 1)]  # the first of all is read as it comes
    assert len(rests_s) == 2
    assert min(rests_s) > 0.0


async def test_an_encoder_that_fails_costs_nobody_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AFTER_FAULT_S", 0.0)
    read = list[str]()

    def broken(text: str, cut: int) -> EncoderEstimate:
        read.append(text)
        raise RuntimeError("no such model")

    engine = Engine()
    async with serve_app(Replay(engine).app) as url:
        config = ServeConfig(backend=url, listen="127.0.0.1:0")
        async with (
            running_daemon(config, Believer(), encode=broken) as daemon,
            raw_client(daemon.base_url) as a,
            raw_client(daemon.base_url) as b,
            raw_client(daemon.base_url) as c,
        ):
            await until(daemon, lambda s: s.backends[0].state == "up")
            engine.freeze()
            a.send(chat("0.5 a 1"))
            await until(daemon, lambda s: len(s.running) == 1)
            b.send(chat("0.5 b 1"))
            await until(daemon, lambda s: len(s.queue) == 1)
            opinions = daemon.second_opinions
            assert opinions is not None
            await until(daemon, lambda s: not opinions._unread)
            c.send(chat("0.5 c 1"))
            await until(daemon, lambda s: len(s.queue) == 2)
            await until(daemon, lambda s: len(read) == 2)
            engine.thaw()
            assert {(await each.response()).status for each in (a, b, c)} == {200}
