"""A daemon before a simulated backend, in this process: what the shows are made of."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random

import predictor
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.daemon import Daemon, running_daemon
from clairvoyant_cli.research.bench.asgi_server import serve_app
from clairvoyant_cli.research.bench.programs import Habits, go_on_asking
from clairvoyant_cli.research.bench.prompts import load_prompts
from clairvoyant_cli.research.replay import DEFAULT_MODEL, Engine, Replay, Speed, tabled
from clairvoyant_cli.state.client import ControlClient

PREFILL_PER_DECODE = 20.0
"""A prompt token costs about a twentieth of an answer token on the machines this is for."""

SLOTS = 4
TOKENS_PER_S = 120.0
STRIDE = 8
"""Tokens that the backend sends at a time: the screen is drawn ten times a second."""

SCENARIOS = {
    "busy": Habits(load=0.9, backlog=20),
    "overloaded": Habits(load=1.25, backlog=90),
    "empty": Habits(load=0.0, backlog=0),
}


def speed_of(tokens_per_s: float) -> Speed:
    """Return the speed of a backend that writes so many tokens a second."""
    return Speed(tokens_per_s * PREFILL_PER_DECODE, tokens_per_s)


@asynccontextmanager
async def simulated_daemon(engine: Engine, config: ServeConfig) -> AsyncIterator[Daemon]:
    """Start the backend and a daemon before it, on free ports; it shows prompts and keeps nothing.

    Of `config`, all but the addresses holds. Only errors are logged: lines would run through the picture.
    """
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)
    async with serve_app(Replay(engine).app) as backend_url:
        here = replace(config, backend=backend_url, listen="127.0.0.1:0", show_prompts=True)
        async with running_daemon(here, predictor.load()) as daemon:
            yield daemon


@asynccontextmanager
async def asked_daemon(scenario: str, seed: int = 0) -> AsyncIterator[Daemon]:
    """Start a daemon that programs go on asking; its queue is what the scenario begins with."""
    habits, pools = SCENARIOS[scenario], load_prompts()
    lengths = tabled({question.prompt: question.tokens for pool in pools.values() for question in pool})
    engine = Engine(SLOTS, speed_of(TOKENS_PER_S), STRIDE, answer_tokens=lengths)
    async with simulated_daemon(engine, ServeConfig(slots=SLOTS)) as daemon:
        rng = Random(seed)  # noqa: S311 - a show, not a secret
        capacity = SLOTS * TOKENS_PER_S
        asking = asyncio.create_task(
            go_on_asking(daemon.base_url, DEFAULT_MODEL, pools, habits, capacity, rng)
        )
        try:
            await _begun(daemon, habits.backlog)
            yield daemon
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking


async def _begun(daemon: Daemon, requests: int) -> None:
    async with ControlClient(daemon.base_url) as control:
        async for snapshot in control.stream():
            if snapshot.counters.submitted >= requests:
                return
