"""Crowds before servers that fail meanwhile: scenes in one process and in virtual time.

Hours pass in a minute, and every request's whole answer is known.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.proof import proven
from clairvoyant_lab.replay.engine import answer_words, digest

import tests.fakes.replay_dialects  # noqa: F401 - adds routes
from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.state.client import ControlClient
from profiles.records import Served
from tests.fakes.raw_http import RawClient, post, raw_client, read_message
from tests.fakes.replay_backend import Engine, Replay, Speed
from tests.fakes.serving import believe, serving, until

PATIENCE_S = 3600.0
"""Virtual seconds; nothing waits for them but a test that fails."""

ROUTES: dict[str, Callable[[dict[str, Any]], str]] = {
    "/api/chat": lambda event: event["message"]["content"],
    "/api/generate": lambda event: event["response"],
    "/v1/chat/completions": lambda event: _openai(event, "content"),
    "/v1/completions": lambda event: _openai(event, "text"),
}
"""The routes that are asked, and how the text of an event is read."""


def _openai(event: dict[str, Any], name: str) -> str:
    choice: dict[str, Any] = (event["choices"] or [{}])[0]
    held = choice if name == "text" else choice.get("delta", choice.get("message", {}))
    return str(held.get(name) or "")


@dataclass(eq=False)
class Backend:
    """A simulated server that can be killed and started again on its port."""

    engine: Engine
    url: str = ""
    up: bool = False
    _alive: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def start(self) -> None:
        port = urlsplit(self.url).port or 0
        app = Replay(self.engine, models=("replay:latest", LONG_NAME)).app
        self.url = await self._alive.enter_async_context(serve_app(app, port))
        self.up = True

    async def kill(self) -> None:
        self.up = False
        await self._alive.aclose()


LONG_NAME = "hf.co/bartowski/Qwen2.5-Coder-32B-Instruct-GGUF:Q4_K_M"


@dataclass(eq=False)
class Visitor:
    """One request, who sent it, and what came of it."""

    number: int
    rng: random.Random
    became: str = ""
    text: str = ""
    model: str = "replay"
    left_s: float | None = None
    client: RawClient | None = None
    sent_s: float = 0.0
    ended_s: float | None = None

    def __post_init__(self) -> None:
        rng = self.rng
        self.route = rng.choice(list(ROUTES))
        self.tokens = rng.choice((rng.randint(1, 15), rng.randint(40, 120), rng.randint(120, 320)))
        self.stream = rng.random() < 0.7
        guess = min(0.9, max(0.0, rng.gauss(self.tokens / 320, 0.15)))
        self.prompt = f"{guess:.2f} number {self.number}"

    @property
    def raw(self) -> bytes:
        body: dict[str, Any] = {"model": self.model, "stream": self.stream}
        chat = "chat" in self.route
        body |= {"messages": [{"role": "user", "content": self.prompt}]} if chat else {"prompt": self.prompt}
        native = self.route.startswith("/api/")
        body |= {"options": {"num_predict": self.tokens}} if native else {"max_tokens": self.tokens}
        if self.rng.random() < 0.1:
            body["tools" if chat else "suffix"] = []
        return post(self.route, json.dumps(body).encode())

    @property
    def whole_text(self) -> str:
        return "".join(islice(answer_words(f"0:{digest(self.prompt)}:words"), self.tokens))

    async def visit(self, url: str) -> None:
        self.sent_s = asyncio.get_running_loop().time()
        await self._ask(url)
        self.ended_s = asyncio.get_running_loop().time()

    async def _ask(self, url: str) -> None:
        try:
            async with raw_client(url) as client:
                self.client = client
                client.send(self.raw)
                got = await read_message(client.reader, method=b"POST")
        except (ConnectionError, asyncio.IncompleteReadError):
            self.became = "left" if self.left_s is not None else "closed"
            return
        self.text = self._read(got.body) if got.status == 200 else ""
        self.became = (
            "whole" if got.whole and got.status == 200 else str(got.status) if got.whole else "broken"
        )
        if self.left_s is not None:
            self.became = "left"

    def leave(self, now: float) -> None:
        if self.client is not None and not self.became and self.left_s is None:
            self.left_s = now
            self.client.leave()

    def _read(self, body: bytes) -> str:
        if not self.stream:
            event = json.loads(body) if body.strip() else {"error": "it broke off"}  # after line feeds
            return "" if "error" in event else ROUTES[self.route](event)
        lines = [line.removeprefix(b"data: ") for line in body.split(b"\n")[:-1]]
        events = [json.loads(line) for line in lines if line.strip() and line != b"[DONE]"]
        return "".join(ROUTES[self.route](event) for event in events if "error" not in event)


V = TypeVar("V", bound=Visitor)


@dataclass(eq=False)
class Scene(Generic[V]):
    """Servers by name, a daemon, the crowd, and what was done to them."""

    daemon: Daemon
    backends: dict[str, Backend]
    rng: random.Random
    visitors: dict[str, V] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    ends_of: Counter[str] = field(default_factory=Counter)
    over: bool = False

    def __post_init__(self) -> None:
        self.daemon.keepers.functions.append(self.ended)
        self.daemon.changed.functions.append(self.changed)

    def changed(self) -> None: ...

    def ended(self, of: Ended) -> None:
        self.ends_of[of.id] += 1

    async def comes(self, visitor: V) -> None:
        self.visitors[visitor.prompt] = visitor
        await visitor.visit(self.daemon.base_url)

    async def outage(self, backend: Backend, *down_s: float) -> None:
        await backend.kill()
        await asyncio.sleep(self.rng.choice(down_s))
        await backend.start()

    def release_all(self) -> None:
        for entry in list(self.daemon.dispatcher.scheduler.waiting()):
            self.daemon.dispatcher.scheduler.release(entry.id, self.now())
        self.daemon.dispatcher.moved()

    def now(self) -> float:
        return self.daemon.journal.clock()

    def left_behind(self) -> Iterator[str]:
        """Yield what is there after all have gone, and who did not end once."""
        scheduler = self.daemon.dispatcher.scheduler
        if self.daemon.dispatcher.live or scheduler.running or len(scheduler):
            yield f"not all are gone: {self.daemon.dispatcher.live}, {scheduler!r}"
        taken = [server.id for server in scheduler.fleet.servers.values() if server.running]
        if taken:
            yield f"slots are taken: {taken}"
        yield from (f"{name} ended {times} times" for name, times in self.ends_of.items() if times != 1)

    @property
    def told(self) -> str:
        became = Counter(each.became for each in self.visitors.values())
        lines = [f"{len(self.visitors)} requests, {self.daemon.journal.counts['cuts']} cuts"]
        for what, counted in (("seen", became), ("done", self.done)):
            lines.append(f"{what}: " + ", ".join(f"{n} {each}" for each, n in sorted(counted.items())))
        return "\n".join(lines)


@asynccontextmanager
async def scenery(
    engines: dict[str, Engine], **settings: Any
) -> AsyncIterator[tuple[Daemon, dict[str, Backend], AsyncExitStack]]:
    """Start servers and a daemon before them, in the virtual time of the running loop, all of them up."""
    async with AsyncExitStack() as stack:
        backends = {name: Backend(engine) for name, engine in engines.items()}
        for backend in backends.values():
            stack.push_async_callback(backend.kill)
            await backend.start()
        named = tuple(BackendConfig(n, each.url, slots=each.engine.slots) for n, each in backends.items())
        clock = asyncio.get_running_loop().time
        daemon = await stack.enter_async_context(serving(None, backends=named, clock=clock, **settings))
        await until(daemon, lambda s: all(each.state == "up" for each in s.backends))
        yield daemon, backends, stack


async def prove(daemon: Daemon, resume_s: float) -> None:
    """Have each server go on with answers, at the price of some seconds."""
    for server in daemon.pool:
        offered = await server.adapter.offered_models(server.ask) or ()
        served = Served(
            server.adapter.name, "replay", version=server.status.version, digest=offered[0].digest
        )
        await believe(server, proven(served, resume_s, server.slots))


# -- answers that are cut -----------------------------------------------------------------------------------

SPEED = Speed(prefill_tokens_per_s=20_000.0, decode_tokens_per_s=200.0)
GRACE_S = 15.0
AT_ONCE = 8


@dataclass(eq=False)
class CutChaos(Scene[Visitor]):
    """Many clients before servers whose answers are cut and continued, with faults meanwhile."""

    policies: Sequence[str] = ()
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self) -> None:
        self._moved.set()

    async def _until(self, holds: Callable[[], object]) -> None:
        while not holds():
            self._moved.clear()
            await self._moved.wait()

    async def run(self, requests: int) -> None:
        """Let them come, make trouble, and drain the daemon under the last of them."""
        numbers = iter(range(requests))

        async def one_after_another() -> None:
            for number in numbers:
                visitor = Visitor(number, random.Random(f"{self.rng.random()}"))
                self._moved.set()
                await self.comes(visitor)
                refused = visitor.became == "503"  # then it is told to come back later
                await asyncio.sleep(self.rng.expovariate(0.1 if refused else 2.0))

        trouble = asyncio.gather(self._trouble(), *map(self._outages, self.backends.values()))
        crowd = asyncio.gather(*(one_after_another() for _ in range(AT_ONCE * len(self.backends))))
        last = requests - AT_ONCE // 2
        async with asyncio.timeout(PATIENCE_S + 10.0 * requests):
            await self._until(lambda: len(self.visitors) >= last)
            self.daemon.drain()
            await crowd
            self.over = True
            self._moved.set()
            await trouble
            await self.daemon.run_until_stopped()

    async def _trouble(self) -> None:
        deeds = {
            self._somebody_leaves: 6,
            self._operator_cancels: 2,
            self._operator_holds: 2,
            self._operator_releases: 2,
            self._policy_changes: 1,
        }
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(3.0))
            (deed,) = self.rng.choices(list(deeds), list(deeds.values()))
            deed()
        self.release_all()

    def _anybody(self) -> tuple[str, Exchange] | None:
        """Return somebody in any of the places where one can be, each place as likely as the others."""
        places: dict[str, list[Exchange]] = {}
        for exchange in self.daemon.dispatcher.live.values():
            if exchange.end is None:
                places.setdefault(_place(exchange), []).append(exchange)
        if not places:
            return None
        place = self.rng.choice(sorted(places))
        return place, self.rng.choice(places[place])

    def _somebody_leaves(self) -> None:
        if found := self._anybody():
            place, exchange = found
            view = exchange.asked.parsed.view
            assert view is not None
            self.visitors[view.prompt].leave(asyncio.get_running_loop().time())
            self.done[f"left while {place}"] += 1

    def _operator_cancels(self) -> None:
        if (found := self._anybody()) and self.daemon.dispatcher.cancel(found[1].id):
            self.done[f"cancelled while {found[0]}"] += 1

    def _operator_holds(self) -> None:
        scheduler = self.daemon.dispatcher.scheduler
        if (found := self._anybody()) and scheduler.hold(found[1].id, self.now()):
            self.done[f"held while {found[0]}"] += 1

    def _operator_releases(self) -> None:
        held = [entry.id for entry in self.daemon.dispatcher.scheduler.waiting() if entry.held]
        if held:
            self.daemon.dispatcher.scheduler.release(self.rng.choice(held), self.now())
            self.daemon.dispatcher.moved()

    def _policy_changes(self) -> None:
        self.daemon.operation.choose_policy(self.rng.choice(self.policies))
        self.daemon.dispatcher.moved()
        self.done["policy changes"] += 1

    async def _outages(self, backend: Backend) -> None:
        """Kill a server while somebody waits to go on there; start it again, mostly soon enough."""
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(1 / 30.0))
            await self._until(lambda: self.over or self._suspended_on(backend))
            self.done[f"killed with {self._suspended_on(backend)} suspended"] += 1
            await self.outage(backend, 0.5, 3.0, 6.0, GRACE_S + 5.0)

    def _suspended_on(self, backend: Backend) -> int:
        suspended = (each for each in self.daemon.dispatcher.live.values() if each.is_suspended)
        return sum(
            self.backends[self.daemon.pool.name_of(each.preempted[-1].run.server_id)] is backend
            for each in suspended
        )

    def faults(self) -> list[str]:
        found, counts = list(self.left_behind()), self.daemon.journal.counts
        engines = [each.engine for each in self.backends.values()]
        found += [f"{each!r} is still at work" for each in engines if each.running or each.waiting]
        servers = self.daemon.dispatcher.scheduler.fleet.servers.values()
        kept = [server.cache.waiting for server in servers]
        if any(kept):
            found.append(f"contexts are kept for nobody: {kept}")
        if counts["resumes"] > counts["cuts"]:
            found.append(f"{counts['resumes']} went on after {counts['cuts']} cuts")
        asked = {service.digest: service.arrived_s for each in engines for service in each.journal}
        for visitor in self.visitors.values():
            whole = visitor.whole_text
            if visitor.became == "whole" and visitor.text != whole:
                found.append(f"{visitor.prompt} on {visitor.route}: {visitor.text!r} is not {whole!r}")
            if not whole.startswith(visitor.text):
                found.append(f"{visitor.prompt} {visitor.became}: {visitor.text!r} begins not as {whole!r}")
            last_s = asked.get(digest(visitor.prompt), 0.0)
            if visitor.left_s is not None and last_s > visitor.left_s + 0.05:
                found.append(f"{visitor.prompt} left at {visitor.left_s}, and was asked for at {last_s}")
        return found


def _place(exchange: Exchange) -> str:
    if exchange.attempt is None:
        return "suspended" if exchange.is_suspended else "waiting"
    if exchange.attempt.is_being_preempted:
        return "being cut"
    return "going on" if exchange.preempted else exchange.attempt.phase.value


@asynccontextmanager
async def cut_chaos(
    policies: Sequence[str], *, servers: int = 1, slots: int = 1, seed: int = 1
) -> AsyncIterator[CutChaos]:
    """Set the scene; a fault that the daemon logs is an error."""
    engines = {
        f"w{number}": Engine(slots, SPEED, answer_tokens=lambda prompt, rng: 1000, resume_s=0.005)
        for number in range(servers)
    }
    async with scenery(engines, policy=policies[0], outage_grace=GRACE_S, tau=30.0) as (daemon, backends, _):
        await prove(daemon, 0.005)
        for server in daemon.pool:
            server.speeds.decode_tokens_per_s = SPEED.decode_tokens_per_s
        yield CutChaos(daemon, backends, random.Random(seed), policies=policies)


# -- servers that come and go -------------------------------------------------------------------------------

SPEEDS = (12.0, 25.0, 50.0, 100.0)
"""Tokens a second, of one server each: they are unlike."""

POOL_GRACE_S = 20.0
POOL_AT_ONCE = 40


@dataclass(eq=False)
class PoolChaos(Scene[Visitor]):
    """A crowd before several servers that die, come back, are drained, removed and added meanwhile.

    Nothing is cut here, so a server is asked for each request once at most, and the journals of all servers
    tell which.
    """

    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

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
                await self.comes(visitor)
                await asyncio.sleep(self.rng.expovariate(1.0))

        trouble = [asyncio.create_task(self._outages(name)) for name in self.backends]
        trouble.append(asyncio.create_task(self._operator()))
        crowd = asyncio.gather(*(one_after_another() for _ in range(POOL_AT_ONCE)))
        async with (
            asyncio.timeout(PATIENCE_S + 10.0 * requests),
            ControlClient(self.daemon.base_url, self.daemon.access.run_token) as control,
        ):
            await reached[requests // 3].wait()
            await control.act("backend", {"do": "remove", "name": "w0"})
            await reached[2 * requests // 3].wait()
            backend = self.backends["w4"] = Backend(unlike(4))
            self.stack.push_async_callback(backend.kill)
            await backend.start()
            await control.act("backend", {"do": "add", "name": "w4", "url": backend.url})
            await crowd
            self.over = True
            await asyncio.gather(*trouble)

    async def _outages(self, name: str) -> None:
        """Kill a server now and then, with what it is answering; start it again before the grace is over."""
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(1 / 8.0))
            self.done[f"{name} killed"] += 1
            await self.outage(self.backends[name], 0.5, 3.0, 6.0, POOL_GRACE_S / 2)

    async def _operator(self) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(1 / 20.0))
            pool, lifecycle = self.daemon.pool, self.daemon.lifecycle
            server = self.rng.choice([each for each in pool if each.health.withdrawn != "leaving"])
            lifecycle.withdraw(server, "draining")
            self.done["drained"] += 1
            await asyncio.sleep(self.rng.expovariate(1 / 5.0))
            if server in list(pool) and server.health.withdrawn != "leaving":
                lifecycle.bring_up(server)

    def faults(self) -> list[str]:
        found = list(self.left_behind())
        names = {server.name for server in self.daemon.pool}
        if names != {"w1", "w2", "w3", "w4"}:
            found.append(f"there are {sorted(names)}")
        services = [each for backend in self.backends.values() for each in backend.engine.journal]
        asked = Counter(each.digest for each in services)
        died = {each.digest for each in services if each.ended_s is None or each.outcome.value != "completed"}
        for visitor in self.visitors.values():
            times, became = asked[digest(visitor.prompt)], visitor.became
            if times > 1:
                found.append(f"{visitor.prompt} was asked for {times} times")
            if became == "whole" and visitor.text != visitor.whole_text:
                found.append(f"{visitor.prompt}: {visitor.text!r} is not {visitor.whole_text!r}")
            if became != "whole" and digest(visitor.prompt) not in died:
                found.append(f"{visitor.prompt} became {became}, and no server died of it")
        return found


def unlike(number: int) -> Engine:
    speed = Speed(20_000.0, SPEEDS[number % len(SPEEDS)])
    return Engine(2, speed, answer_tokens=lambda prompt, rng: 1000)


@asynccontextmanager
async def pool_chaos(seed: int = 1) -> AsyncIterator[PoolChaos]:
    """Set the scene; a fault that the daemon logs is an error."""
    engines = {f"w{number}": unlike(number) for number in range(4)}
    async with scenery(engines, policy="boost", outage_grace=POOL_GRACE_S) as (daemon, backends, stack):
        yield PoolChaos(daemon, backends, random.Random(seed), stack=stack)
