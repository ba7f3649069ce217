"""Runs a daemon before a simulated backend in this process, and the programs that ask it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import httpx

import predictor
from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.demo.questions import Call, Question, ask, load_questions
from clairvoyant_cli.demo.simulated_server import SimulatedServer
from clairvoyant_cli.proxy.access.programs import Program as NamedProgram
from clairvoyant_cli.proxy.access.programs import Programs
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.listening_socket import listen, serving
from predictor.record import LengthClass

SLOTS = 4
TOKENS_PER_S = 120.0
STRIDE = 8  # tokens that the backend sends at a time; the screen is drawn ten times a second
LOAD = 0.9  # of the backend's capacity
MAX_CONNECTIONS = 1000
BURST, BURST_SHARE = 10, 0.1  # one time in ten, a program asks ten questions at once, as an agent does
AT_ONCE = 12  # bursts at the start, so that there is a queue to look at


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


class Burst(NamedTuple):
    """What a program asks at once, `gap_s` after the burst before."""

    gap_s: float
    program: str
    questions: list[Question]


@asynccontextmanager
async def simulated_daemon(
    questions: Sequence[Question],
    tokens_per_s: float,
    slots: int = 1,
    stride: int = 1,
    *,
    programs: Programs | None = None,
    **settings: Any,
) -> AsyncIterator[Daemon]:
    """Run a daemon before a simulated backend that answers `questions` with their lengths."""
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)  # log lines would disturb the screen
    lengths = {question.prompt: question.tokens for question in questions}
    server = SimulatedServer(lengths, tokens_per_s, slots, stride)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with serving(listener, server.routes, MAX_CONNECTIONS):
        config = ServeConfig(slots=slots, backend=url, listen="127.0.0.1:0", show_prompts=True, **settings)
        async with running_daemon(config, predictor.load(), programs=programs) as daemon:
            yield daemon


@asynccontextmanager
async def asked_daemon() -> AsyncIterator[Daemon]:
    """Run a daemon that programs keep asking."""
    pools = load_questions()
    questions = [question for pool in pools.values() for question in pool]
    ports = dict[int, NamedProgram]()  # who connects from them
    programs = Programs(lambda wanted: {ends: ports[ends[0][1]] for ends in wanted if ends[0][1] in ports})
    async with simulated_daemon(questions, TOKENS_PER_S, SLOTS, STRIDE, programs=programs) as daemon:
        bursts = _bursts(pools, Random(0))  # noqa: S311 - a demo, not a secret
        asking = asyncio.create_task(_keep_asking(daemon, bursts, ports))
        try:
            yield daemon
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


def _bursts(pools: dict[LengthClass, list[Question]], rng: Random) -> Iterator[Burst]:
    tokens = {kind: fmean(question.tokens for question in pool) for kind, pool in pools.items() if pool}
    long = sum(program.share * program.long_share for program in PROGRAMS)
    mean_tokens = (1.0 - long) * tokens[LengthClass.SHORT] + long * tokens[LengthClass.LONG]
    mean_gap_s = (1.0 + BURST_SHARE * (BURST - 1)) * mean_tokens / (LOAD * SLOTS * TOKENS_PER_S)
    while True:
        program = rng.choices(PROGRAMS, [each.share for each in PROGRAMS])[0]
        kinds = (
            LengthClass.LONG if rng.random() < program.long_share else LengthClass.SHORT
            for _ in range(BURST if rng.random() < BURST_SHARE else 1)
        )
        yield Burst(
            rng.expovariate(1.0 / mean_gap_s), program.name, [rng.choice(pools[kind]) for kind in kinds]
        )


async def _keep_asking(daemon: Daemon, bursts: Iterator[Burst], ports: dict[int, NamedProgram]) -> None:
    """Ask until cancelled. Note the `ports` of each program."""

    def as_program(name: str) -> Callable[[httpx.Request], Awaitable[None]]:
        async def connected(event: str, info: dict[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                ports[info["return_value"].get_extra_info("client_addr")[1]] = NamedProgram(name)

        async def hook(request: httpx.Request) -> None:
            request.extensions["trace"] = connected

        return hook

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        clients = {
            each.name: await stack.enter_async_context(client_for(daemon.base_url)) for each in PROGRAMS
        }
        for name, client in clients.items():
            client.event_hooks = {"request": [as_program(name)]}
        for number, (gap_s, name, questions) in enumerate(bursts):
            await asyncio.sleep(gap_s if number >= AT_ONCE else 0.0)
            for question in questions:
                group.create_task(ask(clients[name], Call(question)))
