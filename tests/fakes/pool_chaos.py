"""A crowd before several servers that die, come back, are drained, removed and added meanwhile.

All in one process and in virtual time. Nothing is cut here, so a server is asked for each request once at
most, and the journals of all servers tell which.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.demo.replay.engine import digest
from clairvoyant_cli.proxy.daemon import Daemon
from clairvoyant_cli.state.client import ControlClient
from tests.fakes.cut_chaos import Backend, Visitor
from tests.fakes.replay_backend import Engine, Speed
from tests.fakes.serving import serving, until

WORKERS = 4
SLOTS = 2
SPEEDS = (12.0, 25.0, 50.0, 100.0)
"""Tokens a second, of one server each: they are unlike."""

GRACE_S = 20.0
AT_ONCE = 40
PATIENCE_S = 3600.0


@dataclass(eq=False)
class PoolChaos:
    """The scene: servers by name, a daemon, the crowd, and what was seen of it."""

    daemon: Daemon
    backends: dict[str, Backend]
    stack: AsyncExitStack
    rng: random.Random
    visitors: dict[str, Visitor] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    _over: bool = False

    async def run(self, requests: int) -> None:
        """Let them come, make trouble, remove one server at a third of them and add one at two thirds."""
        numbers = iter(range(requests))
        reached = {requests // 3: asyncio.Event(), 2 * requests // 3: asyncio.Event()}

        async def one_after_another() -> None:
            for number in numbers:
                if number in reached:
                    reached[number].set()
                visitor = Visitor(number, random.Random(f"{self.rng.random()}"))
                visitor.tokens = 1 + visitor.tokens // 8  # thousands come, and each token takes time
                self.visitors[visitor.prompt] = visitor
                await visitor.visit(self.daemon.base_url)
                await asyncio.sleep(self.rng.expovariate(1.0))

        trouble = [asyncio.create_task(self._outages(name)) for name in self.backends]
        trouble.append(asyncio.create_task(self._operator()))
        crowd = asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
        async with (
            asyncio.timeout(PATIENCE_S + 10.0 * requests),
            ControlClient(self.daemon.base_url, self.daemon.access.run_token) as control,
        ):
            await reached[requests // 3].wait()
            await control.act("backend", {"do": "remove", "name": "w0"})
            await reached[2 * requests // 3].wait()
            await control.act("backend", {"do": "add", "name": "w4", "url": await self._started("w4")})
            await crowd
            self._over = True
            await asyncio.gather(*trouble)

    async def _started(self, name: str) -> str:
        self.backends[name] = backend = started(name)
        self.stack.push_async_callback(backend.kill)
        await backend.start()
        return backend.url

    async def _outages(self, name: str) -> None:
        """Kill a server now and then, with what it is answering; start it again before the grace is over."""
        backend = self.backends[name]
        while not self._over:
            await asyncio.sleep(self.rng.expovariate(1 / 8.0))
            self.done[f"{name} killed"] += 1
            await backend.kill()
            await asyncio.sleep(self.rng.choice((0.5, 3.0, 6.0, GRACE_S / 2)))
            await backend.start()

    async def _operator(self) -> None:
        """Drain one now and then, and bring it up again."""
        while not self._over:
            await asyncio.sleep(self.rng.expovariate(1 / 20.0))
            name = self.rng.choice([worker.name for worker in self.daemon.pool if not worker.leaving])
            self.daemon.lifecycle.drain(name)
            self.done["drained"] += 1
            await asyncio.sleep(self.rng.expovariate(1 / 5.0))
            if any(worker.name == name and not worker.leaving for worker in self.daemon.pool):
                self.daemon.lifecycle.bring_up(name)

    def faults(self) -> list[str]:
        """Return what is wrong, a line each."""
        found: list[str] = []
        dispatcher = self.daemon.dispatcher
        if dispatcher.live or dispatcher.scheduler.running or len(dispatcher.scheduler):
            found.append(f"not all are gone: {dispatcher.live}, {dispatcher.scheduler!r}")
        if any(dispatcher.attempts_on(worker.name) for worker in self.daemon.pool):
            found.append("slots are taken")
        found += [f"{name} ended {times} times" for name, times in self.ended.items() if times != 1]
        names = {worker.name for worker in self.daemon.pool}
        if names != {"w1", "w2", "w3", "w4"}:
            found.append(f"there are {sorted(names)}")
        asked = Counter(each.digest for backend in self.backends.values() for each in backend.engine.journal)
        died = self._died()
        for visitor in self.visitors.values():
            times, became = asked[digest(visitor.prompt)], visitor.became
            if times > 1:
                found.append(f"{visitor.prompt} was asked for {times} times")
            if became == "whole" and visitor.text != visitor.whole_text:
                found.append(f"{visitor.prompt}: {visitor.text!r} is not {visitor.whole_text!r}")
            if became != "whole" and digest(visitor.prompt) not in died:
                found.append(f"{visitor.prompt} became {became}, and no server died of it")
        return found

    def _died(self) -> set[str]:
        """Return the digests of what a server was asked for and did not answer, for it was killed."""
        return {
            each.digest
            for backend in self.backends.values()
            for each in backend.engine.journal
            if each.ended_s is None or each.outcome.value != "completed"
        }

    @property
    def told(self) -> str:
        """Say what happened, in lines."""
        became = Counter(each.became for each in self.visitors.values())
        served = {name: len(backend.engine.journal) for name, backend in self.backends.items()}
        return "\n".join(
            (
                f"{len(self.visitors)} requests; each server was asked for {served}",
                "seen: " + ", ".join(f"{n} {what}" for what, n in sorted(became.items())),
                "done: " + ", ".join(f"{n} {what}" for what, n in sorted(self.done.items())),
            )
        )


def started(name: str) -> Backend:
    """Return a server of its own speed, which has yet to be started."""
    speed = Speed(20_000.0, SPEEDS[int(name[1:]) % len(SPEEDS)])
    return Backend(Engine(SLOTS, speed, answer_tokens=lambda prompt, rng: 1000))


@asynccontextmanager
async def pool_chaos(seed: int = 1) -> AsyncIterator[PoolChaos]:
    """Set the scene, in the virtual time of the running loop; a fault that the daemon logs is an error."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        backends = {}
        for number in range(WORKERS):
            backends[f"w{number}"] = backend = started(f"w{number}")
            stack.push_async_callback(backend.kill)
            await backend.start()
        named = tuple(BackendConfig(name, each.url, slots=SLOTS) for name, each in backends.items())
        daemon = await stack.enter_async_context(
            serving(None, backends=named, clock=loop.time, policy="bounded", outage_grace=GRACE_S)
        )
        await until(daemon, lambda s: all(each.state == "up" for each in s.backends))
        scene = PoolChaos(daemon, backends, stack, random.Random(seed))
        daemon.dispatcher.ended.append(lambda exchange, end: scene.ended.update((exchange.id,)))
        yield scene
