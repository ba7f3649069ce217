"""A replay backend that answers a calibration's questions at the lengths they ask for."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.client import Client
from clairvoyant_cli.calibrate.run import Outcome, calibrate
from clairvoyant_cli.calibrate.session import Plan, Session, Step, Tell
from tests.fakes.remembered import HOST
from tests.fakes.replay_backend import Engine, Replay, Speed

SMALL = Plan("small", shorts=12, singles=5, reading=400, cut_s=0.0)


def as_asked(prompt: str, rng: Random) -> int:
    """Answer short questions in 20 to 80 tokens and long ones in 850 to 1000."""
    asks_for_much = any(word in prompt for word in ("long", "detailed", "depth", "comprehensive"))
    return rng.randint(850, 1000) if asks_for_much else rng.randint(20, 80)


@asynccontextmanager
async def replay(
    slots: int = 1, decode: float = 4000.0, prefill: float = 20_000.0, stride: int = 1
) -> AsyncIterator[tuple[Engine, str]]:
    """Run a backend of known speed and yield its engine and its URL; in virtual time, tokens are best sent a
    `stride` at a time.
    """
    engine = Engine(slots=slots, speed=Speed(prefill, decode), stride=stride, answer_tokens=as_asked)
    async with serve_app(Replay(engine).app) as url:
        yield engine, url


async def measured(
    url: str,
    plan: Plan = SMALL,
    backend: str = "ollama",
    tell: Tell = lambda step: None,
) -> tuple[Outcome, list[Step]]:
    """Calibrate a server and return what came of it and what was told on the way, to `tell` as well."""
    told: list[Step] = []

    def note(step: Step) -> None:
        told.append(step)
        tell(step)

    async with Client(Found(adapter_of(backend), url), clock=asyncio.get_running_loop().time) as client:
        outcome = await calibrate(Session(client, plan, note), None, HOST, "test")
    return outcome, told


def sojourns(services_s: Sequence[float], in_flight: int, slots: int) -> list[float]:
    """Return the sojourn times of jobs served first come first served, `in_flight` at a time."""
    free_at = [0.0] * slots
    ended, times = list[float](), list[float]()
    for number, service_s in enumerate(services_s):
        sent = heapq.heappop(ended) if number >= in_flight else 0.0
        end = max(sent, free_at[0]) + service_s
        heapq.heapreplace(free_at, end)
        heapq.heappush(ended, end)
        times.append(end - sent)
    return times
