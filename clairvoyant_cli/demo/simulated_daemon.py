"""Runs a daemon before a simulated backend in this process, and the programs that ask it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

import predictor
from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.demo.questions import Call, Question, ask, load_questions
from clairvoyant_cli.demo.simulated_server import SimulatedServer
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.listening_socket import listen, serving
from clairvoyant_cli.state.client import ControlClient
from predictor.record import LengthClass

SLOTS = 4
TOKENS_PER_S = 120.0
STRIDE = 8  # tokens that the backend sends at a time; the screen is drawn ten times a second
LOAD = 0.9  # of the backend's capacity
MAX_CONNECTIONS = 1000
BACKLOG = 20  # requests at once to begin with
BURST, BURST_SHARE = 10, 0.1  # one time in ten, a program asks ten questions at once, as an agent does


@dataclass(frozen=True, slots=True)
class Program:
    """A program that asks: its share of all questions, and the share of its questions that are long."""

    name: str
    share: float
    long_share: float


PROGRAMS = (
    Program("editor", 0.40, 0.05),
    Program("chat", 0.30, 0.30),
    Program("home", 0.15, 0.0),
    Program("agent", 0.10, 0.50),
    Program("reports", 0.05, 1.0),
)


@asynccontextmanager
async def simulated_daemon(
    questions: Sequence[Question], tokens_per_s: float, slots: int = 1, stride: int = 1, **settings: Any
) -> AsyncIterator[Daemon]:
    """Run a daemon before a simulated backend that answers `questions` with their lengths."""
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)  # log lines would disturb the screen
    lengths = {question.prompt: question.tokens for question in questions}
    server = SimulatedServer(lengths, tokens_per_s, slots, stride)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with serving(listener, server.routes, MAX_CONNECTIONS):
        config = ServeConfig(slots=slots, backend=url, listen="127.0.0.1:0", show_prompts=True, **settings)
        async with running_daemon(config, predictor.load()) as daemon:
            yield daemon


@asynccontextmanager
async def asked_daemon(seed: int = 0) -> AsyncIterator[Daemon]:
    """Run a daemon that programs keep asking; its queue begins with a backlog."""
    pools, rng = load_questions(), Random(seed)  # noqa: S311 - a demo, not a secret
    questions = [question for pool in pools.values() for question in pool]
    async with simulated_daemon(questions, TOKENS_PER_S, SLOTS, STRIDE) as daemon:

        def draw(program: Program) -> Question:
            long = rng.random() < program.long_share
            return rng.choice(pools[LengthClass.LONG if long else LengthClass.SHORT])

        tokens = {kind: fmean(question.tokens for question in pool) for kind, pool in pools.items() if pool}
        long = sum(program.share * program.long_share for program in PROGRAMS)
        mean_tokens = (1.0 - long) * tokens[LengthClass.SHORT] + long * tokens[LengthClass.LONG]
        asking = asyncio.create_task(_keep_asking(daemon.base_url, draw, mean_tokens, rng))
        try:
            async with ControlClient(daemon.base_url) as control:
                async for snapshot in control.stream():
                    if snapshot.counters.submitted >= BACKLOG:
                        break
            yield daemon
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


async def _keep_asking(
    base_url: str, draw: Callable[[Program], Question], mean_tokens: float, rng: Random
) -> None:
    """Ask the backlog at once, then at random until cancelled."""
    mean_gap_s = (1.0 + BURST_SHARE * (BURST - 1)) * mean_tokens / (LOAD * SLOTS * TOKENS_PER_S)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        clients = {program: await stack.enter_async_context(client_for(base_url)) for program in PROGRAMS}
        for program, client in clients.items():
            client.headers["X-Clairvoyant-Client"] = program.name

        def ask_at_once(count: int) -> None:
            program = rng.choices(PROGRAMS, [each.share for each in PROGRAMS])[0]
            for _ in range(count):
                group.create_task(ask(clients[program], Call(draw(program))))

        for _ in range(BACKLOG):
            ask_at_once(1)
        while True:
            await asyncio.sleep(rng.expovariate(1.0 / mean_gap_s))
            ask_at_once(BURST if rng.random() < BURST_SHARE else 1)
