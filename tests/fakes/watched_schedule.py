"""A random schedule that is watched: what the daemon publishes beside what servers and clients know.

Virtual time makes both exact. The servers' journals say what runs and how many tokens were sent; the clients
say when they asked and when their answer ended. Each look compares all of it with the state that `status
--json` prints.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heapreplace
from math import inf

from clairvoyant_lab.replay.engine import digest

from clairvoyant_cli.proxy.learning.persistence import Persistence
from clairvoyant_cli.proxy.observing.request_stats import STATS_EVERY_S
from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.state.encoding import decode, encode
from clairvoyant_cli.state.snapshot import GainState, QueuedRequest, RunningRequest, Snapshot
from predictor.record import LengthClass
from profiles.percentiles import percentile
from tests.fakes.chaos import Backend, Scene, Visitor, prove, scenery
from tests.fakes.replay_backend import Engine, Outcome, Service, Speed

DEEDS = ("pause", "hold", "cancel", "leave")
"""What happens meanwhile. A promotion is left out: it is a change of the order."""

SPEED = Speed(prefill_tokens_per_s=2_000.0, decode_tokens_per_s=50.0)
RESUME_S = 0.05
GRACE_S = 15.0
TAU_S = 20.0
LENGTHS = ((5, 60), (60, 199), (200, 700), (800, 1500))
CLOSE_S = 1e-3
"""Virtual time passes only between events, but a request has a handful of events."""


@dataclass(eq=False)
class Client(Visitor):
    """A request of the schedule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tokens = self.rng.randint(*self.rng.choice(LENGTHS))
        self.stream = self.rng.random() < 0.8
        guess = min(0.99, max(0.0, self.rng.gauss(self.tokens / 1200, 0.2)))
        self.prompt = f"{guess:.2f} number {self.number}"

    async def visit(self, url: str) -> None:
        """Ask; only the right text is an answer."""
        await super().visit(url)
        if self.became == "whole" and self.text != self.whole_text:
            self.became = "failed"


@dataclass(eq=False)
class Watched(Scene[Client]):
    """The schedule: servers, a daemon, clients, and the differences that were seen."""

    deeds: tuple[str, ...] = ()
    looks: list[Snapshot] = field(default_factory=list)
    looked_s: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    ends: dict[str, Ended] = field(default_factory=dict)
    _jobs: dict[str, Job] = field(default_factory=dict)
    _prompts: dict[str, str] = field(default_factory=dict)
    _before: dict[str, int] = field(default_factory=dict)
    """The answers of each class that the daemon remembers of the one before it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._before = {each.length_class: each.sojourn.n for each in self.daemon.snapshot().stats}
        self.daemon.admitted.functions.append(self.admitted)

    async def run(
        self, requests: int, rho: float, *, burst: bool = False, lost: str = "", model: str = "replay"
    ) -> None:
        """Have clients ask a model, at a utilisation or in one burst, make trouble, and look at random
        moments. The server `lost` fails from time to time.
        """
        trouble = [self._operator(), *map(self._outages, self.backends.values())] if self.deeds else []
        trouble += [self._outages(self.backends[lost])] if lost else []
        others = asyncio.gather(self._watch(), *trouble)
        tokens = sum(sum(each) / 2 for each in LENGTHS) / len(LENGTHS)
        slots = sum(each.engine.slots for each in self.backends.values())
        rate = rho * slots * SPEED.decode_tokens_per_s / tokens
        visits = []
        async with asyncio.timeout(24 * 3600.0):
            for number in range(requests):
                client = Client(number, random.Random(f"{self.rng.random()}"))
                client.model = model
                self.visitors[client.prompt] = client
                visits.append(asyncio.create_task(self.comes(client)))
                await asyncio.sleep(
                    0.0 if burst else self.rng.expovariate(rate) * self.rng.choice((0.1, 1.9))
                )
            await asyncio.gather(*visits)
            self.over = True
            await others
            await asyncio.sleep(200.0)  # until all is compared, or predicted
            self.look()

    # -- trouble ----------------------------------------------------------------------------------------

    async def _operator(self) -> None:
        """Pause, hold and cancel; and let clients leave."""
        daemon, rng = self.daemon, self.rng
        scheduler = daemon.dispatcher.scheduler
        while not self.over:
            await asyncio.sleep(rng.expovariate(1 / 15.0))
            live = [each for each in daemon.dispatcher.live.values() if each.end is None]
            deed = rng.choice(self.deeds)
            self.done[deed] += 1
            if deed == "pause":
                scheduler.pause()
                await asyncio.sleep(rng.uniform(0.5, 20.0))
                daemon.operation.resume()
            elif not live:
                continue
            elif deed == "hold":
                held = rng.choice(live).id
                scheduler.hold(held, self.now())
                await asyncio.sleep(rng.uniform(0.5, 10.0))
                scheduler.release(held, self.now())
                daemon.dispatcher.moved()
            elif deed == "cancel":
                daemon.dispatcher.cancel(rng.choice(live).id)
            elif (client := self._client(rng.choice(live))) is not None:
                client.leave(asyncio.get_running_loop().time())
        self.release_all()

    async def _outages(self, backend: Backend) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(1 / 60.0))
            self.done["killed"] += 1
            await self.outage(backend, 0.5, 3.0, 6.0, GRACE_S + 5.0)

    # -- looking ----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.expovariate(1 / 4.0))
            self.look()

    def look(self) -> None:
        """Compare the state as it is printed with what servers and clients know."""
        published = decode(encode(self.daemon.snapshot()))
        self.looks.append(published)
        now = asyncio.get_running_loop().time()
        self.looked_s.append(now)
        self.faults += [f"at {now:.3f} s: {fault}" for fault in self._differences(published, now)]

    def _differences(self, state: Snapshot, now: float) -> Iterator[str]:
        known = {client.prompt: client for client in self.visitors.values()}
        if state.counters.submitted != len(known):
            yield f"{state.counters.submitted} submitted, {len(known)} were sent"
        yield from self._slots(state)
        rows: tuple[QueuedRequest | RunningRequest, ...] = (*state.queue, *state.running)
        for row in rows:
            exchange = self.daemon.dispatcher.live[row.id]
            client = self._client(exchange)
            if client is not None:
                yield from self._live(row, exchange, client, now)
        yield from self._totals(state)
        yield from self._ended(state, now)

    def _slots(self, state: Snapshot) -> Iterator[str]:
        for server in state.backends:
            backend = self.backends[server.name]
            here = [row for row in state.running if row.backend == server.name]
            if server.busy != len(here):
                yield f"{server.name}: {server.busy} busy, {len(here)} running"
            if len(here) > server.slots and not self._was_killed:
                yield f"{server.name}: {len(here)} running on {server.slots} slots"
            working = [each for each in backend.engine.journal if each.outcome is Outcome.RUNNING]
            served = [row for row in here if row.state in ("prefill", "decoding")]
            if backend.up and len(working) != len(here) and all(row in served for row in here):
                yield f"{server.name} works on {len(working)}, published as running: {len(here)}"
        is_up = any(each.is_there for each in state.backends)
        if is_up and state.mode == "paused" and "Paused" not in state.verdict.text:
            yield f"paused, and the sentence is {state.verdict.text!r}"
        if "All well" in state.verdict.text and all(each.state == "down" for each in state.backends):
            yield "all well without a server"
        if state.verdict.level == "good" and any(row.tau_s and row.age_s > row.tau_s for row in state.queue):
            yield f"a request is past tau, and the sentence is {state.verdict.text!r}"

    @property
    def _was_killed(self) -> bool:
        return bool(self.done["killed"])

    def _live(
        self, row: QueuedRequest | RunningRequest, exchange: Exchange, client: Client, now: float
    ) -> Iterator[str]:
        here_s = row.age_s if isinstance(row, QueuedRequest) else row.waited_s + row.elapsed_s
        whole = isinstance(row, QueuedRequest) or not exchange.parts
        if whole and abs(here_s - (now - client.sent_s)) > CLOSE_S:
            yield f"{row.id} is here for {here_s:.3f} s, sent {now - client.sent_s:.3f} s ago"
        if isinstance(row, RunningRequest) and not row.estimated and row.state == "decoding":
            services = self._services(client)
            sent = services[-1].said_tokens + services[-1].tokens if services else 0
            if client.stream and row.tokens != sent:
                yield f"{row.id} has {row.tokens} tokens, {sent} were sent on {client.route}"
        if row.eta_s is not None and row.eta_s < 0:
            yield f"{row.id}: {row.eta_s} s left"

    def _totals(self, state: Snapshot) -> Iterator[str]:
        waiting, counters = state.waiting, state.counters
        if not len(state.queue) == waiting.total == waiting.short + waiting.medium + waiting.long:
            yield f"{len(state.queue)} rows, {waiting}"
        ended = counters.completed + counters.client_cancelled + counters.upstream_error
        ended += counters.rejected + counters.timeout + getattr(counters, "operator_cancelled", 0)
        if counters.submitted != ended + waiting.total + len(state.running):
            yield f"{counters} beside {waiting.total} waiting and {len(state.running)} running"
        fired = sum(each.last.reason == "tau" for each in self.ends.values())
        fired += sum(row.dispatched_by == "tau" for row in state.running)
        if state.tau.firings_total < fired:
            yield f"{state.tau.firings_total} firings of tau, {fired} requests started by it"

    def _ended(self, state: Snapshot, now: float) -> Iterator[str]:
        answered: dict[str, list[tuple[float, float]]] = {each.value: [] for each in LengthClass}
        for each in self.visitors.values():
            if each.became == "whole":
                ended_s = each.ended_s or 0.0
                answered[LengthClass.of(each.tokens).value].append((ended_s, ended_s - each.sent_s))
        for stats in state.stats:
            known = sorted(answered[stats.length_class])
            least = sum(ended_s < now - STATS_EVERY_S for ended_s, _ in known)
            before = self._before[stats.length_class]
            took = sorted(each for _, each in known[: stats.sojourn.n])
            if not least <= stats.sojourn.n - before <= len(known):
                yield f"{stats.sojourn.n} of class {stats.length_class}, {len(known)} were answered"
            elif took and not before and abs((stats.sojourn.p50 or 0.0) - percentile(took, 0.5)) > CLOSE_S:
                yield f"median of {stats.length_class} {stats.sojourn.p50}, really {percentile(took, 0.5)}"
        by_prompt = {client.prompt: client for client in self.visitors.values()}
        for row in state.recent:
            client = by_prompt.get(self._prompts.get(row.id, ""))
            if row.id not in self.ends or client is None or client.ended_s is None:
                continue
            took_s = client.ended_s - client.sent_s
            if client.became == "whole" and abs(row.sojourn_s - took_s) > CLOSE_S:
                yield f"{row.id} took {row.sojourn_s:.3f} s, really {took_s:.3f} s"
            if client.became == "whole" and (row.tokens, row.outcome) != (client.tokens, "completed"):
                told = f"{row.outcome}, {row.tokens} tokens on {client.route}"
                yield f"{row.id}: {told}, really {client.tokens}"
            if client.became != "whole" and row.outcome == "completed":
                yield f"{row.id}: completed, and its client had {client.became}"

    # -- what is known ----------------------------------------------------------------------------------

    def ended(self, of: Ended) -> None:
        super().ended(of)
        self.ends[of.id] = of

    def admitted(self, exchange: Exchange) -> None:
        view = exchange.asked.parsed.view
        self._jobs[exchange.id] = exchange.job
        self._prompts[exchange.id] = view.prompt if view is not None else ""

    def _client(self, exchange: Exchange) -> Client | None:
        return self.visitors.get(self._prompts.get(exchange.id, ""))

    def _services(self, client: Client) -> list[Service]:
        every = [each for backend in self.backends.values() for each in backend.engine.journal]
        return [each for each in every if each.digest == digest(client.prompt)]

    @property
    def gain(self) -> GainState:
        return self.looks[-1].gain

    def next_starts(self) -> Iterator[tuple[str, str, bool]]:
        """Yield of each look the request with rank 1, the one that started next, if it waited then, and
        whether the order changed in between: the policy gave it another key, or tau started it.
        """
        starts = sorted(
            ((part.granted_s, ident) for ident, each in self.ends.items() for part in each.uses),
        )
        for at_s, look in zip(self.looked_s, self.looks, strict=True):
            ident = next((ident for granted_s, ident in starts if granted_s > at_s), "")
            row = next((row for row in look.queue if row.id == ident), None)
            if row is not None:
                changed = self._jobs[ident].key != row.key or self.ends[ident].last.reason == "tau"
                yield look.queue[0].id, ident, changed

    def saved_s(self, until_s: float = inf) -> float:
        """Return what the real order saved over order of arrival, of the answers that ended until then, from
        the clients' times and the journals alone. Only of one server without trouble.
        """
        (backend,) = self.backends.values()
        free = [0.0] * backend.engine.slots
        saved_s = 0.0
        for client in sorted(self.visitors.values(), key=lambda each: each.sent_s):
            (service,) = self._services(client)
            start_s = max(client.sent_s, free[0])
            heapreplace(free, start_s + (service.ended_s or 0.0) - (service.started_s or 0.0))
            if (service.ended_s or 0.0) <= until_s:
                saved_s += start_s - (service.started_s or 0.0)
        return saved_s


@asynccontextmanager
async def watched(
    policy: str,
    seed: int,
    *,
    servers: int = 1,
    slots: int = 1,
    deeds: tuple[str, ...] = (),
    cuts: bool = False,
    persistence: Persistence | None = None,
    began_at: float = 0.0,
) -> AsyncIterator[Watched]:
    """Set the scene. `deeds` are the trouble, beside outages; none without any. `cuts` with proven
    continuations. `began_at` is the virtual wall clock at the start, 0 for the real one.
    """
    long = {"answer_tokens": lambda prompt, rng: 100_000, "resume_s": RESUME_S, "stride": 8}
    engines = {f"w{number}": Engine(slots, SPEED, **long) for number in range(servers)}  # type: ignore[arg-type]
    settings = {"policy": policy, "outage_grace": GRACE_S, "tau": TAU_S, "persistence": persistence}
    async with scenery(engines, **settings) as (daemon, backends, _):
        if began_at:
            daemon.journal.wall = daemon.tally.clock = lambda: began_at + asyncio.get_running_loop().time()
        await asyncio.sleep(1.0)  # at 0, a time is false
        for server in daemon.pool:
            server.speeds.decode_tokens_per_s = SPEED.decode_tokens_per_s
        if cuts:
            await prove(daemon, RESUME_S)
        yield Watched(daemon, backends, random.Random(f"{policy} {seed}"), deeds=deeds)
