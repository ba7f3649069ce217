"""Where a job runs: the server on which it is predicted to end first, counted from now; and what is loaded
there.

This need not be a free server: a fast one, or one that has the model loaded or the conversation in its KV
cache, may be sooner even after a wait. So a slot may stay free for a moment, where the waiting job gains more
than a margin (`queue`, rule 3).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from typing import NamedTuple, Protocol

from clairvoyant_cli.scheduler.job import Job, Thought
from clairvoyant_cli.scheduler.server_cache import ServerCache

# The models loaded on each server, and the cost of loading another.

SWAP_PATIENCE = 3.0
"""A freshly loaded model stays for this many times its load price while it has work: swapping then takes
at most a quarter of a busy server's time."""

MAX_TOGETHER = 64  # limit of affinities known to be loaded on one server; clients choose the runner's options


@dataclass(frozen=True, slots=True)
class _Loaded:
    affinities: frozenset[str] = frozenset()
    stays_until_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Start:
    """A running job that may have loaded its affinity; `believed` if that is assumed until it is known."""

    affinity: str
    at_s: float
    price_s: float
    believed: bool


@dataclass(slots=True)
class _Server:
    """What a server is known to have loaded, its running jobs that may change that, and what follows."""

    known: _Loaded = field(default_factory=_Loaded)
    starts: dict[str, _Start] = field(default_factory=dict)  # by job, in their order
    assumed: _Loaded = field(default_factory=_Loaded)
    room: int = 0  # how much it can have loaded; 0 if unknown

    def assume(self) -> None:
        self.assumed = self.after(self.starts.values())

    def after(self, starts: Iterable[_Start]) -> _Loaded:
        """Return what is loaded after these starts: each replaces everything else, unless there is room."""
        loaded = self.known
        for start in starts:
            if start.believed and start.affinity not in loaded.affinities:
                beside = loaded.affinities if len(loaded.affinities) < self.room else frozenset[str]()
                stays_until_s = start.at_s + (1.0 + SWAP_PATIENCE) * start.price_s
                loaded = _Loaded(beside | {start.affinity}, stays_until_s)
        return loaded


@dataclass(slots=True)
class Residency:
    """Which affinities are loaded on each server, and what loading another would cost.

    `load_s` maps an affinity to the seconds its loading takes; `unknown_s` is the price of one that is not
    in it, 0 where that is free to load. A job without an affinity needs nothing loaded. Servers that are
    `fixed` have what they have: nothing is ever loaded there.

    What a job needs counts as loaded from its start on, so that the next decision does not go back and
    forth; if it then turns out that the server did not run it, it is as though it had never started. A job
    whose affinity is not in `load_s` counts only once it was run: anybody may name a model that is not there.
    """

    load_s: dict[str, float] = field(default_factory=dict)
    unknown_s: float = 0.0
    fixed: set[str] = field(default_factory=set)
    _servers: dict[str, _Server] = field(default_factory=dict)

    @property
    def prices(self) -> bool:
        return self.unknown_s > 0.0 or bool(self.load_s)

    def price_s(self, server_id: str, affinity: str) -> float:
        """Return the seconds it takes to make `affinity` resident on the server, 0 if it is."""
        price_s = self._load_s_of(server_id, affinity)
        if price_s == 0.0:
            return 0.0
        there = self._servers.get(server_id)
        return 0.0 if there is not None and affinity in there.assumed.affinities else price_s

    def replaces(self, server_id: str, affinity: str) -> bool:
        """Return whether a server would load `affinity` in place of something else."""
        there = self._servers.get(server_id)
        return (
            there is not None and bool(there.assumed.affinities) and self.price_s(server_id, affinity) > 0.0
        )

    def view(self, server_id: str, now: float) -> tuple[object, ...]:
        """Return a key of what a server has loaded; empty if loading is free. One that waits before a swap
        has a key of its own: what it may start depends on its running jobs.
        """
        if not self.prices:
            return ()
        there = self._servers.get(server_id, _Server())
        if there.room:
            return (server_id,)
        stays = now < there.assumed.stays_until_s
        return server_id in self.fixed, there.assumed.affinities, stays

    def must_stay(self, server_id: str, now: float) -> bool:
        """Return whether the loaded model should stay while it has work, as it was loaded recently."""
        there = self._servers.get(server_id)
        return there is not None and now < there.assumed.stays_until_s

    def set_room(self, server_id: str, room: int) -> None:
        """Set how much a server can have loaded, if it waits for its running jobs before a swap; else 0."""
        self._servers.setdefault(server_id, _Server()).room = room

    def swapping_to(self, server_id: str) -> frozenset[str]:
        """Return what a server will have loaded that loads something for a running job, at once or when its
        others have ended, and then has no more room; empty if it does not. The jobs may name no real models.
        """
        there = self._servers.get(server_id)
        if there is None or not there.room:
            return frozenset()
        if all(each.affinity in there.known.affinities for each in there.starts.values()):
            return frozenset()
        loaded = there.after(replace(each, believed=True) for each in there.starts.values()).affinities
        return loaded if len(loaded) >= there.room else frozenset()

    def is_full(self, server_id: str) -> bool:
        """Return whether a server would first wait for its running jobs to load anything else."""
        there = self._servers.get(server_id)
        return there is not None and 0 < there.room <= len(there.assumed.affinities)

    def swaps(self, server_id: str, job_id: str, affinity: str) -> bool:
        """Return whether a server may be loading something for a running job, or would for `affinity`."""
        there = self._servers.get(server_id)
        return (there is not None and job_id in there.starts) or self.price_s(server_id, affinity) > 0.0

    def set(self, server_id: str, affinities: frozenset[str]) -> None:
        """Set what the server itself reports as loaded."""
        there = self._servers.setdefault(server_id, _Server())
        there.known = _Loaded(affinities, there.assumed.stays_until_s)
        there.starts.clear()
        there.assume()

    def dispatched(self, server_id: str, job_id: str, affinity: str, now: float) -> None:
        """Record the start of a job: its affinity is assumed to be loaded, in place of everything else."""
        price_s = self._load_s_of(server_id, affinity)
        if price_s == 0.0:
            return
        there = self._servers.setdefault(server_id, _Server())
        if there.starts or affinity not in there.known.affinities:
            there.starts[job_id] = _Start(affinity, now, price_s, affinity in self.load_s)
            there.assume()

    def loaded(self, server_id: str, job_id: str) -> None:
        """Record that a job ran: its affinity was loaded when it started."""
        there = self._servers.get(server_id)
        if there is None or job_id not in there.starts:
            return
        before = dict(takewhile(lambda each: each[0] != job_id, there.starts.items()))
        start = there.starts.pop(job_id)
        there.known = there.after((*before.values(), replace(start, believed=True)))
        for other, each in before.items():
            if each.believed:  # whether the others load anything is not known yet
                del there.starts[other]
        there.assume()

    def was_there(self, server_id: str, job_id: str) -> None:
        """Record that a job ran without a load: its affinity was loaded beside the others already."""
        there = self._servers.get(server_id)
        if there is None or next(iter(there.starts), None) != job_id:
            self.loaded(server_id, job_id)  # whether it was loaded before the other starts is not known
            return
        start = there.starts.pop(job_id)
        if len(there.known.affinities) < MAX_TOGETHER:
            there.known = replace(there.known, affinities=there.known.affinities | {start.affinity})
        there.assume()

    def not_loaded(self, server_id: str, job_id: str) -> None:
        """Record that a job did not run: nothing was loaded for it."""
        there = self._servers.get(server_id)
        if there is not None and there.starts.pop(job_id, None) is not None:
            there.assume()

    def _load_s_of(self, server_id: str, affinity: str) -> float:
        return (
            0.0 if server_id in self.fixed else self.load_s.get(affinity, self.unknown_s if affinity else 0.0)
        )


WAIT_MARGIN = 0.3
"""A job waits for another server if it gains this share of its time on the best free one: an idle slot costs
other jobs, and predictions are not exact. The best of 0.1 to 0.5 over one or two fast servers and one or
three that are 2, 4 or 10 times slower, at utilisations of 0.3, 0.6 and 0.85."""

MAX_PASSED = 3
"""Jobs that may be left waiting for a better server at one decision. If more wait, the free server takes the
one of them that loses least. A fourth gains nothing."""


class ServerSpeed(Protocol):
    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        """Return the predicted seconds of prefill and decoding."""
        ...


@dataclass(slots=True, eq=False)
class ServerSlots:
    """A server as the scheduler sees it: its slots and its jobs."""

    id: str
    slots: int
    at_once: int  # fewer than `slots` if it orders its own queue: the others wait inside, the shorter first
    speed: ServerSpeed | None = None  # without one, a job takes its predicted cost
    cache: ServerCache = field(default_factory=ServerCache)
    last_resort: bool = False  # it starts only jobs pinned to it, or that no other available server can run
    weight: float = 1.0  # its share among equally good servers
    running: dict[str, Job] = field(default_factory=dict)
    shared_tokens: float = inf  # KV cache of all slots together: an overflow aborts all their answers
    model_slots: int = 0  # slots that jobs of one affinity may have; 0: all

    def has_room(self, job: Job) -> bool:
        """Return whether a job's context fits beside those of the running jobs, as one alone always does, and
        its model has a slot.
        """
        if job.affinity in self.full():
            return False
        most = sum(
            max(_most_tokens(each), each.prompt_tokens + each.done_tokens) for each in self.running.values()
        )
        return not self.running or most + _most_tokens(job) <= self.shared_tokens

    def full(self) -> frozenset[str]:
        """Return the affinities that have all the slots which they may have."""
        if not self.model_slots:
            return frozenset()
        taken = Counter(each.affinity for each in self.running.values())
        return frozenset(each for each, count in taken.items() if count >= self.model_slots)

    @property
    def load(self) -> float:
        """Its load per weight if it started one more job."""
        return (len(self.running) + 1) / (self.at_once * self.weight)

    def inside_s(self, own_s: float, now: float) -> float:
        """Return the expected wait of a job of `own_s` seconds inside this server's own queue."""
        if len(self.running) < self.at_once:
            return 0.0
        before_s = sum(each.left_s(now) for each in self.running.values() if each.expected_s <= own_s)
        return max(self.next_free_s(now), before_s / self.at_once)

    def next_free_s(self, now: float) -> float:
        """Return the expected seconds until one of its slots is free, where all are taken."""
        return min((job.left_s(now) for job in self.running.values()), default=0.0)

    def left_s(self, now: float) -> float:
        """Return the expected seconds of work left in its slots."""
        return sum(job.left_s(now) for job in self.running.values())


class Placement(NamedTuple):
    """The best free server for a job, and the busy one that it should wait for instead, if any."""

    server: ServerSlots
    waits_for: ServerSlots | None = None
    gain_s: float = 0.0  # how much sooner it would end there
    takes_s: float = 0.0  # how long it would occupy that server


class Fleet:
    """All servers, with the state that decides how long a job takes on each."""

    def __init__(self, slots: Mapping[str, int], load_s: Mapping[str, float]) -> None:
        self.servers = {name: ServerSlots(name, count, count) for name, count in slots.items()}
        self.residency = Residency(dict(load_s))

    def copied(self) -> "Fleet":
        """Return an independent copy in which nothing runs, without the contents of the KV caches."""
        fleet = Fleet({}, {})
        fleet.servers = {
            name: replace(each, running={}, cache=each.cache.emptied()) for name, each in self.servers.items()
        }
        fleet.residency = deepcopy(self.residency)
        return fleet

    def set(self, server_id: str, slots: int, *, last_resort: bool, weight: float, at_once: int) -> None:
        """Set the limits of a server, 0 slots if it is down; running jobs are not affected."""
        server = self.servers.setdefault(server_id, ServerSlots(server_id, slots, slots))
        server.slots, server.last_resort, server.weight = slots, last_resort, weight
        server.at_once = min(at_once, slots) or slots
        if not slots:
            server.cache = server.cache.emptied()
        server.cache.slots = max(server.at_once, 1)

    def remove(self, server_id: str) -> None:
        """Forget a server; ValueError while it runs anything."""
        server = self.servers.get(server_id)
        if server is not None and server.running:
            raise ValueError(f"{server_id} still runs {len(server.running)}")
        self.servers.pop(server_id, None)

    def may_take(self, server_id: str, job: Job) -> bool:
        """Return whether a server may serve a job, were it up."""
        able, pinned_to = job.able, job.pinned or job.routed
        if pinned_to or (able and server_id not in able):
            return pinned_to == server_id
        server = self.servers.get(server_id)
        return not (server and server.last_resort) or not any(
            each.slots and not each.last_resort and (not able or each.id in able)
            for each in self.servers.values()
        )

    def started(self, job: Job, server_id: str, now: float) -> None:
        server = self.servers[server_id]
        job.server_id = server_id
        job.started_s = now
        job.expect(self.own_s(job, server), now)
        if server.speed is not None and job.remaining_s:
            load_s = self.residency.price_s(server_id, job.affinity)
            job.pace = (job.expected_s - load_s) / job.remaining_s
        server.running[job.id] = job
        if self.residency.prices:
            self.residency.dispatched(server_id, job.id, job.affinity, now)
        job.expected = server.cache.expected(job.prefix)
        server.cache.started(job.id, job.prefix, job.prompt_tokens, job.session)

    def thought(self, job: Job, thought: Thought, now: float) -> None:
        """Expect the end of a running job from now on by its answer, as it has stopped thinking."""
        server = self.servers[job.server_id]
        due_s = job.cost_s * thought.answer_tokens / job.tokens if job.tokens else 0.0
        if not due_s:
            return
        if server.speed is not None:
            job.pace = server.speed.seconds(0.0, thought.answer_tokens) / due_s
        job.expect(job.pace * due_s, now)

    def ended(self, job: Job, *, served: bool) -> None:
        """Record that a job has left its slot; `served` means that it ran."""
        server = self.servers[job.server_id]
        del server.running[job.id]
        if served:
            self.residency.loaded(job.server_id, job.id)
        else:
            server.cache.dropped(job.id)
            self.residency.not_loaded(job.server_id, job.id)

    def free(self) -> list[ServerSlots]:
        """Return the servers with a free slot, the least loaded per weight first."""
        free = [each for each in self.servers.values() if len(each.running) < each.slots]
        if len(free) > 1:
            free.sort(key=lambda server: server.load)
        return free

    def cached(self, job: Job) -> dict[str, float]:
        """Return the tokens of a job's prompt that each server has cached, if it has any."""
        servers = self.servers.values() if job.prefix else ()
        return {each.id: tokens for each in servers if (tokens := each.cache.cached_tokens(job.prefix))}

    def price(self, job: Job) -> None:
        """Leave the prefill that the best KV cache saves now out of a job's costs."""
        cached = self.cached(job)
        if not cached and not job.saved_s:
            return
        able = [s for s in self.servers.values() if s.speed and (not job.able or s.id in job.able)]
        full_s = min((_seconds(s, job, 0.0) for s in able), default=0.0)
        saved_s = full_s - min((_seconds(s, job, cached.get(s.id, 0.0)) for s in able), default=0.0)
        job.saves(saved_s - job.saved_s)

    def saves_s(self, server_id: str, job: Job) -> float:
        """Return how much less than its cost a job takes on a server whose KV cache has more of it now."""
        server = self.servers[server_id]
        if server.speed is None or (job.able and server_id not in job.able):
            return 0.0
        return max(job.cost_s - _seconds(server, job, server.cache.cached_tokens(job.prefix)), 0.0)

    def own_s(self, job: Job, server: ServerSlots, cached: Mapping[str, float] | None = None) -> float:
        """Return the predicted seconds of a job on a server: loading, uncached prefill, remaining decode."""
        price_s = self.residency.price_s(server.id, job.affinity)
        if server.speed is None:
            return price_s + job.remaining_s
        cached = self.cached(job) if cached is None else cached
        prompt_tokens = job.prompt_tokens - cached.get(server.id, 0.0) if cached else job.prompt_tokens
        own_s = server.speed.seconds(max(prompt_tokens, 0.0), job.tokens)
        if (job.done_tokens or job.read_s) and job.cost_s:
            own_s *= job.remaining_s / job.cost_s
        return price_s + own_s

    def best(
        self, job: Job, now: float, free: Sequence[ServerSlots], ahead_s: Mapping[str, float]
    ) -> Placement:
        """Return where a job is predicted to end first. `free` are the servers that it could start on now,
        in order of preference; `ahead_s` is the work before it on each other server, in seconds.
        """
        if len(self.servers) == 1:
            return Placement(free[0], None, 0.0, 0.0)
        cached = self.cached(job)
        best, best_s = free[0], inf
        for server in free:
            own_s = self.own_s(job, server, cached)
            if server.at_once < server.slots:
                own_s += server.inside_s(own_s, now)
            if own_s < best_s:
                best, best_s = server, own_s
        sooner_s, waits_for, takes_s = best_s * (1.0 - WAIT_MARGIN), None, 0.0
        for server in () if job.pinned or job.routed else self.servers.values():
            full = 0 < server.slots <= len(server.running)
            if not full or not self.takes(server.id, job.able) or not self.open_to(job, server, now):
                continue
            own_s = self.own_s(job, server, cached)
            end_s = server.next_free_s(now) + ahead_s.get(server.id, 0.0) / server.slots + own_s
            if end_s < sooner_s:
                sooner_s, waits_for, takes_s = end_s, server, own_s / server.slots
        return Placement(best, waits_for, best_s - sooner_s, takes_s)

    def read_s(self, job: Job, server: ServerSlots) -> float:
        """Return the seconds from a start on a server to the first token: loading and uncached prefill."""
        read_s = self.residency.price_s(server.id, job.affinity)
        if server.speed is not None:
            left = job.prompt_tokens - server.cache.cached_tokens(job.prefix)
            read_s += server.speed.seconds(max(left, 0.0), 0.0)
        return read_s

    def open_to(self, job: Job, server: ServerSlots, now: float) -> bool:
        """Return whether a server may load the model of a job, if it is not loaded."""
        residency = self.residency
        keeps = residency.must_stay(server.id, now) or bool(residency.swapping_to(server.id))
        return not keeps or not residency.price_s(server.id, job.affinity)

    def answers_fresh(self, server: ServerSlots, now: float) -> bool:
        """Return whether a model that must stay answers. A job that needs another would wait in the server,
        and close it to those that need what it has.
        """
        residency = self.residency
        return bool(server.running) and residency.is_full(server.id) and residency.must_stay(server.id, now)

    def takes(self, server_id: str, able: frozenset[str]) -> bool:
        """Return whether a server is available for a job that `able` can run."""
        server = self.servers.get(server_id)
        return bool(server and server.slots and not server.last_resort and (not able or server_id in able))

    def route(self, job: Job, among: int, now: float, waiting_s: Mapping[str, float]) -> str:
        """Return the server that a job should wait for: of `among` servers drawn by its number, the one with
        the soonest cautious completion (QUARTZ, Algorithm 1); "" if none can run it.

        `waiting_s` has the seconds of work that wait for each server.
        """
        able = [s for s in self.servers.values() if s.slots and (not job.able or s.id in job.able)]
        able = [s for s in able if not s.last_resort] or able
        cached, cautious = self.cached(job), job.cost_high_s / job.cost_s if job.cost_s else 1.0

        def ends_s(server: ServerSlots) -> float:
            # Means add, so only the job's own time is a quantile (QUARTZ, Eq. 4).
            backlog_s = (waiting_s.get(server.id, 0.0) + server.left_s(now)) / server.at_once
            price_s = self.residency.price_s(server.id, job.affinity)
            return backlog_s + (self.own_s(job, server, cached) - price_s) * cautious + price_s

        best = min(_drawn(able, among, job.seq), key=ends_s, default=None)
        return "" if best is None else best.id


def _seconds(server: ServerSlots, job: Job, cached_tokens: float) -> float:
    assert server.speed is not None  # noqa: S101 - the caller asks only servers that have one
    return server.speed.seconds(max(job.prompt_tokens - cached_tokens, 0.0), job.tokens)


def _most_tokens(job: Job) -> float:
    return job.prompt_tokens + max(job.tokens, job.tokens_q90)


def _drawn(able: list[ServerSlots], count: int, number: int) -> list[ServerSlots]:
    """Return `count` of the servers, drawn by a hash of `number`; all of them if there are no more."""
    if count >= len(able):
        return able
    left, drawn = list(able), []
    for _ in range(count):
        number = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF  # splitmix64's steps
        number ^= number >> 31
        drawn.append(left.pop(number % len(left)))
    return drawn
