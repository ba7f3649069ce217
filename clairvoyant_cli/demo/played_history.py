"""Plays the minutes before the demo began: the daemon queues what programs asked then, without a server."""

import asyncio
import time
from collections.abc import Iterator
from copy import copy
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from clairvoyant_cli.demo.questions import Question
from clairvoyant_cli.demo.simulated_server import CHARACTERS_A_TOKEN, MODEL, PREFILL_PER_DECODE
from clairvoyant_cli.protocols.request_parsing import ParsedRequest, parse_request
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.observing.snapshots import RECORDED_ROWS
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import Asked, Exchange, OperatorCancelledError, Phase
from clairvoyant_cli.scheduler.job import Job

SPAN_S = 600.0  # some thousand requests: an hour of them would take seconds
RECORDED_EVERY_S = 15.0
TICK_S = 0.1


class Burst(NamedTuple):
    """What a program asks at once, `gap_s` after the burst before."""

    gap_s: float
    program: str
    questions: list[Question]


class PlayedHistory:
    """`clock` is the daemon's: it goes through the past in steps, and then with the time."""

    def __init__(self, tokens_per_s: float) -> None:
        self._tokens_per_s = tokens_per_s
        self._at_s: float | None = time.monotonic() - SPAN_S
        self._asked: dict[str, Question] = {}
        self._parsed: dict[str, ParsedRequest] = {}

    def clock(self) -> float:
        return time.monotonic() if self._at_s is None else self._at_s

    def _wall(self) -> float:
        return time.time() - time.monotonic() + self.clock()

    async def play(self, daemon: Daemon, bursts: Iterator[Burst]) -> None:
        """Have the daemon serve what is asked until now."""
        daemon.journal.wall = daemon.gain.clock = self._wall
        dispatcher, ends = daemon.dispatcher, list[tuple[float, str]]()
        burst, arrives_s, recorded_s, begun = next(bursts), self.clock(), 0.0, set[str]()
        while (at_s := min([arrives_s, *(each[0] for each in ends[:1])])) <= time.monotonic():
            self._at_s = at_s
            if at_s == arrives_s:
                for question in burst.questions:
                    exchange = await self._exchange(daemon, burst.program, question)
                    dispatcher.submit(exchange)
                    daemon.admitted(exchange)
                burst = next(bursts)
                arrives_s += burst.gap_s
            else:
                dispatcher.end(dispatcher.live[heappop(ends)[1]], Outcome.COMPLETED, 200)
            for job_id in dispatcher.scheduler.running.keys() - begun:
                begun.add(job_id)
                heappush(ends, (self._ends_s(dispatcher.live[job_id]), job_id))
            if at_s >= recorded_s + RECORDED_EVERY_S:
                recorded_s = at_s
                for job_id in dispatcher.scheduler.running:
                    self._goes_on(dispatcher.live[job_id])
                daemon.recorder.history.record(daemon.snapshots.snapshot(RECORDED_ROWS, explains=False))
        self._at_s = None
        daemon.learn_queue.clear()

    async def _exchange(self, daemon: Daemon, program: str, question: Question) -> Exchange:
        """Return a question as the daemon would have had it."""
        server, prompt, now = daemon.pool.first, question.prompt, self.clock()
        route = server.adapter.route_of(b"POST", "/api/chat")
        if prompt not in self._parsed:
            body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "stream": True}
            self._parsed[prompt] = await parse_request([msgspec.json.encode(body)], route, server.adapter)
        parsed = copy(self._parsed[prompt])
        prediction = daemon.admission.factory.predict(parsed)
        prompt_tokens = daemon.times.prompt_tokens(parsed)
        job = Job(
            id=f"demo-{len(self._asked) + 1}",
            arrival_s=now,
            **daemon.times.estimates(parsed, prediction, prompt_tokens),
            prompt_tokens=prompt_tokens,
            client=program,
            program=program,
            model=MODEL,
            able=daemon.pool.ids([server]),
        )
        self._asked[job.id] = question
        asked = Asked(route, parsed, prediction, prompt=prompt)
        return Exchange(job.id, job, asked, granted=asyncio.get_running_loop().create_future())

    def _ends_s(self, exchange: Exchange) -> float:
        """Note that a request has begun; return when it ends."""
        attempt, question = exchange.attempt, self._asked[exchange.id]
        assert attempt is not None  # noqa: S101 - it is running
        read_s = len(question.prompt) / CHARACTERS_A_TOKEN / (self._tokens_per_s * PREFILL_PER_DECODE)
        attempt.first_byte_s = attempt.granted_s + read_s
        decode_s = question.tokens / self._tokens_per_s
        attempt.totals = Totals(question.tokens, decode_s=decode_s, prefill_s=read_s, complete=True)
        return attempt.first_byte_s + decode_s

    def _goes_on(self, exchange: Exchange) -> None:
        attempt, now = exchange.attempt, self.clock()
        if attempt is not None and attempt.first_byte_s is not None:
            exchange.phase = Phase.PREFILL if now < attempt.first_byte_s else Phase.DECODING
            attempt.part_tokens = max(0, round((now - attempt.first_byte_s) * self._tokens_per_s))

    async def answer(self, daemon: Daemon, exchange: Exchange) -> None:
        """Answer what the history has left, once it has its slot."""
        try:
            await exchange.granted
            ends_s = self._ends_s(exchange)
            while (left_s := ends_s - self.clock()) > 0:
                self._goes_on(exchange)
                await asyncio.sleep(min(left_s, TICK_S))
            daemon.dispatcher.end(exchange, Outcome.COMPLETED, 200)
        except (OperatorCancelledError, asyncio.CancelledError):
            daemon.dispatcher.end(exchange, Outcome.OPERATOR_CANCELLED, 499)
