"""Runs a daemon before a simulated backend in this process, and the programs that ask it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from statistics import fmean

import predictor
from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.backends.adapters import OTHER, adapter_of
from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.daemon import Daemon, running_daemon
from clairvoyant_cli.research.bench.asgi_server import serve_app
from clairvoyant_cli.research.bench.client import Asker, Call
from clairvoyant_cli.research.bench.plan import Pools
from clairvoyant_cli.research.bench.prompts import load_prompts
from clairvoyant_cli.research.replay import DEFAULT_MODEL, Engine, Replay, Speed, tabled
from clairvoyant_cli.state.client import ControlClient
from predictor.record import LengthClass

PREFILL_PER_DECODE = 20.0  # prefill is about twenty times as fast as decode on the target machines
SLOTS = 4
TOKENS_PER_S = 120.0
STRIDE = 8  # tokens that the backend sends at a time; the screen is drawn ten times a second
CROWD = 10
CROWD_SHARE = 0.1  # one time in ten, a program asks `CROWD` questions at once, as an agent that fans out


@dataclass(frozen=True, slots=True)
class Scenario:
    """`backlog` requests at once to begin with, then `load` of the backend's capacity."""

    load: float
    backlog: int


SCENARIOS = {
    "busy": Scenario(load=0.9, backlog=20),
    "overloaded": Scenario(load=1.25, backlog=90),
    "empty": Scenario(load=0.0, backlog=0),
}


@dataclass(frozen=True, slots=True)
class Program:
    """A program that asks: its share of all questions, and the share of its questions that are long."""

    name: str
    share: float
    long_share: float
    adapter: Adapter


OLLAMA = adapter_of("ollama")
PROGRAMS = (
    Program("editor", 0.40, 0.05, OTHER),
    Program("chat", 0.30, 0.30, OLLAMA),
    Program("home", 0.15, 0.0, OLLAMA),
    Program("agent", 0.10, 0.50, OTHER),
    Program("reports", 0.05, 1.0, OLLAMA),
)


def speed_of(tokens_per_s: float) -> Speed:
    """Return the speed of a backend that decodes this fast."""
    return Speed(tokens_per_s * PREFILL_PER_DECODE, tokens_per_s)


@asynccontextmanager
async def asked_daemon(scenario: str, seed: int = 0) -> AsyncIterator[Daemon]:
    """Run a daemon that programs keep asking; its queue begins with the scenario's backlog."""
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)  # log lines would disturb the screen
    asked, pools = SCENARIOS[scenario], load_prompts()
    lengths = tabled({question.prompt: question.tokens for pool in pools.values() for question in pool})
    engine = Engine(SLOTS, speed_of(TOKENS_PER_S), STRIDE, answer_tokens=lengths)
    async with serve_app(Replay(engine).app) as url:
        config = ServeConfig(slots=SLOTS, backend=url, listen="127.0.0.1:0", show_prompts=True)
        async with running_daemon(config, predictor.load()) as daemon:
            rng = Random(seed)  # noqa: S311 - a demo, not a secret
            asking = asyncio.create_task(_keep_asking(daemon.base_url, pools, asked, rng))
            try:
                async with ControlClient(daemon.base_url) as control:
                    async for snapshot in control.stream():
                        if snapshot.counters.submitted >= asked.backlog:
                            break
                yield daemon
            finally:
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking


async def _keep_asking(base_url: str, pools: Pools, asked: Scenario, rng: Random) -> None:
    """Ask the backlog at once, then at random until cancelled."""
    long = sum(program.share * program.long_share for program in PROGRAMS)
    short_tokens, long_tokens = (
        fmean(question.tokens for question in pools[kind]) for kind in (LengthClass.SHORT, LengthClass.LONG)
    )
    mean_tokens = (1.0 - long) * short_tokens + long * long_tokens
    at_once = 1.0 + CROWD_SHARE * (CROWD - 1)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        clients = {program: await stack.enter_async_context(client_for(base_url)) for program in PROGRAMS}
        for program, client in clients.items():
            client.headers["X-Clairvoyant-Client"] = program.name

        def ask(count: int) -> None:
            program = rng.choices(PROGRAMS, [each.share for each in PROGRAMS])[0]
            for _ in range(count):
                kind = LengthClass.LONG if rng.random() < program.long_share else LengthClass.SHORT
                asker = Asker(DEFAULT_MODEL, program.adapter)
                group.create_task(asker.ask(clients[program], Call(rng.choice(pools[kind]))))

        for _ in range(asked.backlog):
            ask(1)
        while asked.load:
            mean_gap_s = at_once * mean_tokens / (asked.load * SLOTS * TOKENS_PER_S)
            await asyncio.sleep(rng.expovariate(1.0 / mean_gap_s))
            ask(CROWD if rng.random() < CROWD_SHARE else 1)
