"""Where a job runs: the server on which it is predicted to end first, counted from now; and what is loaded
there.

This need not be a free server: a fast one, or one that has the model loaded or the conversation in its KV
cache, may be sooner even after a wait. So a slot may stay free for a moment, where the waiting job gains more
than a margin (`queue`, rule 3).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

from clairvoyant_cli.scheduler.job import Job, Reason, Run
from clairvoyant_cli.scheduler.residency import Residency
from clairvoyant_cli.scheduler.server_cache import Expected, ServerCache

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
    running: dict[str, Run] = field(default_factory=dict)
    shared_tokens: float = inf  # KV cache of all slots together: an overflow aborts all their answers
    lent: int = 0  # slots beside `slots` that another daemon still uses
    model_slots: int = 0  # slots that jobs of one affinity may have; 0: all

    def has_room(self, job: Job) -> bool:
        """Return whether a job's context fits beside those of the running jobs, as one alone always does, and
        its model has a slot.
        """
        if self.model_slots and job.affinity in self.full():
            return False
        if not self.running or self.shared_tokens == inf:
            return True
        jobs = [run.job for run in self.running.values()]
        most = sum(max(_most_tokens(other), other.prompt_tokens + other.done_tokens) for other in jobs)
        return most + _most_tokens(job) <= self.shared_tokens

    def unread_tokens(self, job: Job) -> float:
        """Return the tokens of a job's prompt that its KV cache should not have."""
        return max(job.prompt_tokens - self.cache.expected(job.prefix).tokens, 0.0)

    def full(self) -> frozenset[str]:
        """Return the affinities that have all the slots which they may have."""
        if not self.model_slots:
            return frozenset()
        taken = Counter(run.job.affinity for run in self.running.values())
        return frozenset(affinity for affinity, count in taken.items() if count >= self.model_slots)

    @property
    def load(self) -> float:
        """Its load per weight if it started one more job."""
        return (len(self.running) + 1) / (self.at_once * self.weight)

    def inside_s(self, own_s: float, now: float) -> float:
        """Return the expected wait of a job of `own_s` seconds inside this server's own queue."""
        if len(self.running) < self.at_once:
            return 0.0
        before_s = sum(run.left_s(now) for run in self.running.values() if run.expected_s <= own_s)
        return max(self.next_free_s(now), before_s / self.at_once)

    def next_free_s(self, now: float) -> float:
        """Return the expected seconds until one of its slots is free, where all are taken."""
        return min((run.left_s(now) for run in self.running.values()), default=0.0)


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
        self.changes = 0  # of the servers or their slots

    @property
    def slots(self) -> int:
        """The slots of all servers."""
        return sum(map(attrgetter("slots"), self.servers.values()))

    def set_slots(
        self, server_id: str, slots: int, *, last_resort: bool = False, weight: float = 1.0, at_once: int = 0
    ) -> None:
        """Set how many jobs a server may have, 0 if it is down; running jobs are not affected.

        `at_once` is how many of these it serves concurrently; the others wait in its own queue.
        """
        server = self.servers.setdefault(server_id, ServerSlots(server_id, slots, slots))
        server.slots, server.last_resort, server.weight = slots, last_resort, weight
        self.changes += 1
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
        self.changes += 1

    def may_take(self, server_id: str, job: Job) -> bool:
        """Return whether a server may serve a job, were it up."""
        able = job.able
        if job.pinned or (able and server_id not in able):
            return job.pinned == server_id
        server = self.servers.get(server_id)
        return not (server and server.last_resort) or not any(
            server.slots and not server.last_resort and (not able or server.id in able)
            for server in self.servers.values()
        )

    def started(self, job: Job, server_id: str, reason: Reason, now: float) -> Run:
        """Start a job on a server, and return its run."""
        server, load_s, remaining_s = self.servers[server_id], 0.0, job.remaining_s
        run = Run(job, server_id, reason, now, job.done_tokens)
        run.expected_cache = server.cache.started(job.id, job.prefix, job.prompt_tokens, job.session)
        if self.residency.prices:
            load_s = self.residency.price_s(server_id, job.affinity)
            self.residency.dispatched(server_id, job.id, job.affinity, now)
        run.expect(load_s + _run_s(job, server, remaining_s, run.expected_cache), now)
        if server.speed is not None and remaining_s:
            run.pace = (run.expected_s - load_s) / remaining_s
        job.run = server.running[job.id] = run
        return run

    def thought(self, run: Run, answer_tokens: float, now: float) -> None:
        """Expect the end of a run from now on by its answer, as the job has stopped thinking."""
        server, job = self.servers[run.server_id], run.job
        due_s = job.cost_s * answer_tokens / job.tokens if job.tokens else 0.0
        if not due_s:
            return
        if server.speed is not None:
            run.pace = server.speed.seconds(0.0, answer_tokens) / due_s
        run.expect(run.pace * due_s, now)

    def ended(self, run: Run, *, served: bool) -> None:
        """Record that a job has left its slot; `served` means that it ran."""
        server, job_id = self.servers[run.server_id], run.job.id
        del server.running[job_id]
        if not served:
            server.cache.dropped(job_id)
        if self.residency.prices:
            (self.residency.loaded if served else self.residency.not_loaded)(run.server_id, job_id)

    def free(self) -> list[ServerSlots]:
        """Return the servers with a free slot, the least loaded per weight first."""
        free = []
        for server in self.servers.values():
            if len(server.running) < server.slots:
                free.append(server)
        if len(free) > 1:
            free.sort(key=lambda server: server.load)
        return free

    def price(self, job: Job) -> None:
        """Leave the prefill that the best KV cache saves now out of a job's costs."""
        full_s = least_s = inf
        for server in self.servers.values() if job.prefix.hashes else ():
            if server.speed is not None and (not job.able or server.id in job.able):
                full_s = min(full_s, server.speed.seconds(job.prompt_tokens, job.tokens))
                least_s = min(least_s, server.speed.seconds(server.unread_tokens(job), job.tokens))
        saved_s = full_s - least_s if full_s < inf else 0.0
        if saved_s != job.saved_s:
            job.saves(saved_s - job.saved_s)

    def saves_s(self, server_id: str, job: Job) -> float:
        """Return how much less than its cost a job takes on a server whose KV cache has more of it now."""
        server = self.servers[server_id]
        if server.speed is None or (job.able and server_id not in job.able):
            return 0.0
        return max(job.cost_s - server.speed.seconds(server.unread_tokens(job), job.tokens), 0.0)

    def own_s(self, job: Job, server: ServerSlots) -> float:
        """Return the predicted seconds of a job on a server: loading, uncached prefill, remaining decode."""
        load_s = self.residency.price_s(server.id, job.affinity)
        return load_s + _run_s(job, server, job.remaining_s, server.cache.expected(job.prefix))

    def best(
        self, job: Job, now: float, free: Sequence[ServerSlots], ahead_s: Mapping[str, float]
    ) -> Placement:
        """Return where a job is predicted to end first. `free` are the servers that it could start on now,
        in order of preference; `ahead_s` is the work before it on each other server, in seconds.
        """
        if len(self.servers) == 1:
            return Placement(free[0], None, 0.0, 0.0)
        best, best_s = free[0], inf
        for server in free:
            own_s = self.own_s(job, server)
            if server.at_once < server.slots:
                own_s += server.inside_s(own_s, now)
            if own_s < best_s:
                best, best_s = server, own_s
        sooner_s, waits_for, takes_s = best_s * (1.0 - WAIT_MARGIN), None, 0.0
        for server in () if job.pinned else self.servers.values():
            full = 0 < server.slots <= len(server.running)
            if not full or not self.takes(server.id, job.able) or not self.open_to(job, server, now):
                continue
            own_s = self.own_s(job, server)
            end_s = server.next_free_s(now) + ahead_s.get(server.id, 0.0) / server.slots + own_s
            if end_s < sooner_s:
                sooner_s, waits_for, takes_s = end_s, server, own_s / server.slots
        return Placement(best, waits_for, best_s - sooner_s, takes_s)

    def read_s(self, job: Job, server: ServerSlots) -> float:
        """Return the seconds from a start on a server to the first token: loading and uncached prefill."""
        read_s = self.residency.price_s(server.id, job.affinity)
        if server.speed is not None:
            read_s += server.speed.seconds(server.unread_tokens(job), 0.0)
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


def _most_tokens(job: Job) -> float:
    return job.prompt_tokens + max(job.tokens, job.tokens_q90)


def _run_s(job: Job, server: ServerSlots, remaining_s: float, cached: Expected) -> float:
    """Return the seconds of a job on a server once its model is loaded, of which `remaining_s` are due by its
    cost.
    """
    if server.speed is None:
        return remaining_s
    run_s = server.speed.seconds(max(job.prompt_tokens - cached.tokens, 0.0), job.tokens)
    if (job.done_tokens or job.read_s) and job.cost_s:
        run_s *= remaining_s / job.cost_s
    return run_s
