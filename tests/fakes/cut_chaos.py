"""Many clients before servers whose answers are cut and continued, with faults meanwhile.

All in one process and in virtual time: hours in a minute, and every request's whole answer is known.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.proof import proven

import tests.fakes.replay_dialects  # noqa: F401 - adds routes
from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.demo.replay.engine import digest, words_of
from clairvoyant_cli.proxy.daemon import Daemon
from clairvoyant_cli.proxy.queue.exchange import Exchange
from profiles.records import Served
from tests.fakes.raw_http import RawClient, post, raw_client, read_message
from tests.fakes.replay_backend import Engine, Replay, Speed
from tests.fakes.serving import believe, serving, until

SPEED = Speed(prefill_tokens_per_s=20_000.0, decode_tokens_per_s=200.0)
RESUME_S = 0.005
GRACE_S = 15.0
AT_ONCE = 8
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
        self.url = await self._alive.enter_async_context(serve_app(Replay(self.engine).app, port))
        self.up = True

    async def kill(self) -> None:
        self.up = False
        await self._alive.aclose()


@dataclass(eq=False)
class Visitor:
    """One request, who sent it, and what came of it."""

    number: int
    rng: random.Random
    became: str = ""
    text: str = ""
    left_s: float | None = None
    client: RawClient | None = None

    def __post_init__(self) -> None:
        rng = self.rng
        self.route = rng.choice(list(ROUTES))
        self.tokens = rng.choice((rng.randint(1, 15), rng.randint(40, 120), rng.randint(120, 320)))
        self.stream = rng.random() < 0.7
        guess = min(0.9, max(0.0, rng.gauss(self.tokens / 320, 0.15)))
        self.prompt = f"{guess:.2f} number {self.number}"

    @property
    def raw(self) -> bytes:
        """Its request."""
        body: dict[str, Any] = {"model": "replay", "stream": self.stream}
        chat = "chat" in self.route
        body |= {"messages": [{"role": "user", "content": self.prompt}]} if chat else {"prompt": self.prompt}
        native = self.route.startswith("/api/")
        body |= {"options": {"num_predict": self.tokens}} if native else {"max_tokens": self.tokens}
        if self.rng.random() < 0.1:
            body["tools" if chat else "suffix"] = []
        return post(self.route, json.dumps(body).encode())

    @property
    def whole_text(self) -> str:
        """What the server writes if nobody cuts it."""
        return "".join(islice(words_of(f"0:{digest(self.prompt)}:words"), self.tokens))

    async def visit(self, url: str) -> None:
        """Ask, and note what came."""
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
        """Go at once."""
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


@dataclass(eq=False)
class Chaos:
    """The scene: servers, a daemon, the crowd, and what was seen of it."""

    daemon: Daemon
    backends: Sequence[Backend]
    policies: Sequence[str]
    rng: random.Random
    visitors: dict[str, Visitor] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    _over: bool = False
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def _until(self, holds: Callable[[], object]) -> None:
        """Return at the first change after which it holds."""
        while not holds():
            self._moved.clear()
            await self._moved.wait()

    async def run(self, requests: int) -> None:
        """Let them come, make trouble, and drain the daemon under the last of them."""
        numbers = iter(range(requests))

        async def one_after_another() -> None:
            for number in numbers:
                visitor = Visitor(number, random.Random(f"{self.rng.random()}"))
                self.visitors[visitor.prompt] = visitor
                self._moved.set()
                await visitor.visit(self.daemon.base_url)
                refused = visitor.became == "503"  # then it is told to come back later
                await asyncio.sleep(self.rng.expovariate(0.1 if refused else 2.0))

        trouble = asyncio.gather(self._trouble(), *(self._outages(each) for each in self.backends))
        crowd = asyncio.gather(*(one_after_another() for _ in range(AT_ONCE * len(self.backends))))
        last = requests - AT_ONCE // 2
        async with asyncio.timeout(PATIENCE_S + 10.0 * requests):
            await self._until(lambda: len(self.visitors) >= last)
            self.daemon.drain()
            await crowd
            self._over = True
            self._moved.set()
            await trouble
            await self.daemon.run_until_stopped()

    # -- trouble ---------------------------------------------------------------------------------------

    async def _trouble(self) -> None:
        """Do something to somebody, again and again."""
        deeds: list[tuple[Callable[[], None], int]] = [
            (self._somebody_leaves, 6),
            (self._operator_cancels, 2),
            (self._operator_holds, 2),
            (self._operator_releases, 2),
            (self._policy_changes, 1),
        ]
        while not self._over:
            await asyncio.sleep(self.rng.expovariate(3.0))
            (deed,) = self.rng.choices([deed for deed, _ in deeds], [often for _, often in deeds])
            deed()
        self._release_all()

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
        found = self._anybody()
        if found is not None:
            place, exchange = found
            view = exchange.asked.parsed.view
            assert view is not None
            self.visitors[view.prompt].leave(asyncio.get_running_loop().time())
            self.done[f"left while {place}"] += 1

    def _operator_cancels(self) -> None:
        found = self._anybody()
        if found is not None and self.daemon.dispatcher.cancel(found[1].id):
            self.done[f"cancelled while {found[0]}"] += 1

    def _operator_holds(self) -> None:
        found = self._anybody()
        if found is not None and self.daemon.dispatcher.scheduler.hold(found[1].id, self._now()):
            self.done[f"held while {found[0]}"] += 1

    def _operator_releases(self) -> None:
        held = [entry.job.id for entry in self.daemon.dispatcher.scheduler.waiting() if entry.held]
        if held:
            self.daemon.dispatcher.scheduler.release(self.rng.choice(held), self._now())
            self.daemon.dispatcher.moved()

    def _release_all(self) -> None:
        for entry in list(self.daemon.dispatcher.scheduler.waiting()):
            self.daemon.dispatcher.scheduler.release(entry.job.id, self._now())
        self.daemon.dispatcher.moved()

    def _policy_changes(self) -> None:
        self.daemon.operation.choose_policy(self.rng.choice(self.policies))
        self.daemon.dispatcher.moved()
        self.done["policy changes"] += 1

    async def _outages(self, backend: Backend) -> None:
        """Kill a server while somebody waits to go on there; start it again, mostly soon enough."""
        while not self._over:
            await asyncio.sleep(self.rng.expovariate(1 / 30.0))
            await self._until(lambda: self._over or self._suspended_on(backend))
            self.done[f"killed with {self._suspended_on(backend)} suspended"] += 1
            await backend.kill()
            await asyncio.sleep(self.rng.choice((0.5, 3.0, 6.0, GRACE_S + 5.0)))
            await backend.start()

    def _suspended_on(self, backend: Backend) -> int:
        """Return how many wait to go on there."""
        suspended = (each for each in self.daemon.dispatcher.live.values() if each.is_suspended)
        return sum(self.backends[int(each.cuts[-1].worker[1:])] is backend for each in suspended)

    def _now(self) -> float:
        return self.daemon.stats.journal.clock()

    # -- what must hold --------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """Return what is wrong, a line each."""
        found: list[str] = []
        dispatcher, counts = self.daemon.dispatcher, self.daemon.stats
        scheduler = dispatcher.scheduler
        if dispatcher.live or scheduler.running or len(scheduler):
            found.append(f"not all are gone: {dispatcher.live}, {scheduler!r}")
        taken = [station.name for station in scheduler.fleet.stations.values() if station.running]
        if taken:
            found.append(f"slots are taken: {taken}")
        found += [f"{each!r} is still at work" for each in self.engines if each.running or each.waiting]
        found += [f"{name} ended {times} times" for name, times in self.ended.items() if times != 1]
        kept = [station.cache.waiting for station in scheduler.fleet.stations.values()]
        if any(kept):
            found.append(f"contexts are kept for nobody: {kept}")
        if counts.resumes > counts.cuts:
            found.append(f"{counts.resumes} went on after {counts.cuts} cuts")
        asked = {service.digest: service.arrived_s for each in self.engines for service in each.journal}
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

    @property
    def engines(self) -> list[Engine]:
        """What the servers answer with."""
        return [each.engine for each in self.backends]

    @property
    def told(self) -> str:
        """Say what happened, in lines."""
        counts = self.daemon.stats
        became = Counter(each.became for each in self.visitors.values())
        lines = [
            f"{len(self.visitors)} requests, {counts.cuts} cuts, {counts.resumes} resumes",
            "seen: " + ", ".join(f"{n} {what}" for what, n in sorted(became.items())),
            "done: " + ", ".join(f"{n} {what}" for what, n in sorted(self.done.items())),
        ]
        return "\n".join(lines)


def _place(exchange: Exchange) -> str:
    if exchange.attempt is None:
        return "suspended" if exchange.is_suspended else "waiting"
    if exchange.attempt.is_cutting:
        return "being cut"
    return "going on" if exchange.cuts else exchange.phase.value


@asynccontextmanager
async def chaos(
    policies: Sequence[str], *, workers: int = 1, slots: int = 1, seed: int = 1
) -> AsyncIterator[Chaos]:
    """Set the scene, in the virtual time of the running loop; a fault that the daemon logs is an error."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        backends = []
        for _ in range(workers):
            engine = Engine(slots, SPEED, answer_tokens=lambda prompt, rng: 1000, resume_s=RESUME_S)
            backends.append(backend := Backend(engine))
            stack.push_async_callback(backend.kill)
            await backend.start()
        named = tuple(BackendConfig(f"w{i}", each.url, slots=slots) for i, each in enumerate(backends))
        settings: dict[str, Any] = {"policy": policies[0], "outage_grace": GRACE_S, "tau": 30.0}
        daemon = await stack.enter_async_context(serving(None, backends=named, clock=loop.time, **settings))
        await until(daemon, lambda s: all(each.state == "up" for each in s.backends))
        for worker in daemon.pool:
            adapter = worker.adapter
            offered = await adapter.offered_models(worker.ask) or ()
            served = Served(adapter.name, "replay", version=worker.version, digest=offered[0].digest)
            await believe(worker, proven(served, RESUME_S, slots))
            worker.speeds.decode_tokens_per_s = SPEED.decode_tokens_per_s
        scene = Chaos(daemon, backends, policies, random.Random(seed))
        daemon.dispatcher.changed.append(scene._moved.set)
        daemon.dispatcher.ended.append(lambda exchange, end: scene.ended.update((exchange.id,)))
        yield scene
