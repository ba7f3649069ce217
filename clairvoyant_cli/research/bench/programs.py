"""Programs that go on asking one daemon, as on a developer's machine: alone, and many things at once."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from statistics import fmean

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.backends.adapters import OTHER, adapter_of
from clairvoyant_cli.backends.chat_probe import client_for
from clairvoyant_cli.research.bench.load import Asker, Call
from clairvoyant_cli.research.bench.plan import Pools
from predictor.record import LengthClass

CROWD = 10
CROWD_SHARE = 0.1
"""One time in ten a program asks so many things at once: an agent that fans out, a batch that begins."""


@dataclass(frozen=True, slots=True)
class Program:
    """One that asks: its share of all that is asked, and how much of that wants a long answer."""

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


@dataclass(frozen=True, slots=True)
class Habits:
    """How much is asked: `backlog` requests at once to begin with, then `load` of what the slots can do."""

    load: float
    backlog: int


def mean_tokens(pools: Pools) -> float:
    """Return the mean length of what the programs are answered."""
    long = sum(program.share * program.long_share for program in PROGRAMS)
    short_tokens, long_tokens = (
        fmean(question.tokens for question in pools[kind]) for kind in (LengthClass.SHORT, LengthClass.LONG)
    )
    return (1.0 - long) * short_tokens + long * long_tokens


async def go_on_asking(
    base_url: str, model: str, pools: Pools, habits: Habits, tokens_per_s: float, rng: Random
) -> None:
    """Ask until cancelled; `tokens_per_s` is what all slots of the backend write together."""
    mean_gap_s = 0.0
    if habits.load:
        at_once = 1.0 + CROWD_SHARE * (CROWD - 1)
        mean_gap_s = at_once * mean_tokens(pools) / (habits.load * tokens_per_s)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        clients = {program: await stack.enter_async_context(client_for(base_url)) for program in PROGRAMS}
        for program, client in clients.items():
            client.headers["X-Clairvoyant-Client"] = program.name

        def ask(count: int) -> None:
            program = rng.choices(PROGRAMS, [each.share for each in PROGRAMS])[0]
            for _ in range(count):
                kind = LengthClass.LONG if rng.random() < program.long_share else LengthClass.SHORT
                asker = Asker(model, program.adapter)
                group.create_task(asker.ask(clients[program], Call(rng.choice(pools[kind]))))

        for _ in range(habits.backlog):
            ask(1)
        while mean_gap_s:
            await asyncio.sleep(rng.expovariate(1.0 / mean_gap_s))
            ask(CROWD if rng.random() < CROWD_SHARE else 1)
