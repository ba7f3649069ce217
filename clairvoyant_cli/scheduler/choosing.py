"""What starts next: the choice of each free slot at one moment, and where the chosen job runs.

The first job by key starts, unless the guard promotes one that is past its starvation timeout (tau). Example:
an essay of 60 s has waited 130 s, tau is 120 s, and a question of 2 s that has waited 5 s is first by key.
Under `boost` the guard starts the essay if nine starts since its last promotion were by policy, and the essay
has waited twice as long as the question (`policy.Guard`). Without that ration, a burst in which every job is
past tau would run in order of arrival.

A slot stays idle beside a job that may use it in three cases only: each of the few waiting jobs is predicted
to end sooner on another server (`placement`; not if it is past tau or promoted); the model that it needs
would be loaded in place of one that answers, or that was loaded a moment ago (`open_to`); the first job does
not fit into the KV cache that the slots share.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from math import inf
from operator import attrgetter
from typing import NamedTuple

from clairvoyant_cli.scheduler.fairness import Clients, share_key
from clairvoyant_cli.scheduler.job import FIRST, Job, Reason
from clairvoyant_cli.scheduler.placement import MAX_PASSED, Fleet, Placement, ServerSlots
from clairvoyant_cli.scheduler.urgency import outranks
from clairvoyant_cli.scheduler.waiting import WaitingJobs

BY_KEY = attrgetter("rank", "key", "seq")


class Choice(NamedTuple):
    """A job that a server would start, and its order among the choices of others: rank, key, sequence."""

    order: tuple[float, float, int]
    job: Job
    reason: Reason


class StarvationGuard:
    """Starts jobs past their tau, as often as the policy's `Guard` allows."""

    def __init__(self, clients: Clients) -> None:
        self.firings = 0
        self.since = 1 << 30  # starts by policy since the last one by tau
        self.clients = clients

    def started(self, job: Job, reason: Reason, now: float) -> None:
        """Count a start."""
        self.since += 1
        if reason is Reason.TAU:
            self.firings += 1
            self.since = 0
            self.clients.turn_s[job.client] = now

    def longest_overdue(self, jobs: Iterable[Job], waiting: WaitingJobs, now: float) -> Job | None:
        """Return the job furthest past its tau, None if none is or the policy has no guard. Background jobs
        count where no others wait.

        Under `by_share` policies, a start by tau restarts its client's tau while several clients wait.
        """
        if waiting.policy.guard is None:
            return None
        oldest = dict[tuple[str, str], Job]()  # of each client and model
        for job in jobs:
            if not (job.background_levels and waiting.interactive):
                first = oldest.get((job.client, job.model))
                if first is None or (job.arrival_s, job.seq) < (first.arrival_s, first.seq):
                    oldest[job.client, job.model] = job
        several = waiting.policy.by_share and len({client for client, _ in oldest}) > 1
        longest, longest_s = None, (0.0, 0)
        for (client, model), job in oldest.items():
            tau_s = self.clients.tau_of(client, model)
            since_s = max(job.arrival_s, self.clients.turn_s.get(client, -inf)) if several else job.arrival_s
            late_s = -inf if tau_s is None else now - since_s - tau_s
            if late_s > 0.0 and (longest is None or (late_s, -job.seq) > longest_s):
                longest, longest_s = job, (late_s, -job.seq)
        return longest

    def allows(self, overdue: Job, other: Job, waiting: WaitingJobs, now: float) -> bool:
        """Return whether a job past tau starts before the job that the policy would start.

        The guard's ration does not apply between two jobs of one client if the other is first only by a claim
        of urgency: without keys, anyone may use that client's name.
        """
        policy, since = waiting.policy, self.since
        if policy.guard is None:
            return False
        client = other.client
        if policy.by_level and client == overdue.client != "" and outranks(other, overdue):
            since = policy.guard.every
        return policy.guard.allows(now - overdue.arrival_s, now - other.arrival_s, since)


class Decision:
    """What each server would start at one moment. `may_claim` decides whether a job may start by the urgency
    that its client claims, and drops the claim if not; without it, claims are accepted.
    """

    def __init__(
        self,
        waiting: WaitingJobs,
        fleet: Fleet,
        guard: StarvationGuard,
        now: float,
        may_claim: Callable[[Job, float], bool] | None = None,
    ) -> None:
        self.waiting, self.fleet, self.guard, self.now = waiting, fleet, guard, now
        self.deferring = False  # a slot stays free: waiting jobs wait for a better one, or a time
        self.excess_s = waiting.excess_s(now)
        self.clients = guard.clients
        self._may_claim, self._prices = may_claim, fleet.residency.prices
        self._apart = len(fleet.servers) > 1 and any(job.pinned or job.able for job in waiting.jobs.values())

    def choose(self, free: list[ServerSlots]) -> tuple[Job, str, Reason] | None:
        """Return the job to start now, its server and the reason; None if nothing can start on the `free`
        servers.

        Takes the first job in order and finds the server where it is predicted to end first; a job that
        should wait for a busy server is passed over. A server whose KV cache has no room for the first job
        starts none after it, so that each has its turn.
        """
        fleet, now, passed = self.fleet, self.now, dict[str, tuple[Job, Placement]]()
        ahead_s = self.waiting.pinned_s() if len(fleet.servers) > 1 else {}
        while (first := self.first(free, passed)) is not None:
            server, (_, job, reason) = first
            able = free
            if len(free) > 1:
                able = [
                    each
                    for each in free
                    if each is server or (fleet.may_take(each.id, job) and fleet.open_to(job, each, now))
                ]
            roomy = [other for other in able if other.has_room(job)]
            if not roomy:
                free = [other for other in free if other not in able]
                continue
            verdict = fleet.best(job, now, roomy, ahead_s)
            there = verdict.waits_for
            if reason is Reason.POLICY and now < job.not_before_s:
                passed[job.id] = job, verdict._replace(gain_s=inf)
            elif there is None or reason is not Reason.POLICY or self.is_overdue(job):
                return job, verdict.server.id, reason
            else:
                passed[job.id] = job, verdict
                ahead_s[there.id] = ahead_s.get(there.id, 0.0) + verdict.takes_s
            if len(passed) == MAX_PASSED < len(self.waiting.jobs):
                job, verdict = min(passed.values(), key=lambda given_up: given_up[1].gain_s)
                return job, verdict.server.id, Reason.POLICY
        self.deferring = bool(passed) or any(fleet.answers_fresh(server, now) for server in free)
        return None

    def is_overdue(self, job: Job) -> bool:
        """Return whether a waiting job is past its tau; background jobs are not while others wait."""
        if self.waiting.policy.guard is None or (job.background_levels and self.waiting.interactive):
            return False
        tau_s = self.clients.tau_of(job.client, job.model)
        return tau_s is not None and self.now - job.arrival_s > tau_s

    def next_up(self) -> Choice | None:
        """Return what would start now if each server had a free slot, None if nothing may."""
        first = self.first([server for server in self.fleet.servers.values() if server.slots])
        return None if first is None else first[1]

    def first(
        self, servers: Iterable[ServerSlots], passed: Collection[str] = ()
    ) -> tuple[ServerSlots, Choice] | None:
        """Return the first choice over all servers, without the jobs passed over, and its server."""
        best = None
        for found in self.choices(servers, passed):
            if best is None or found[1].order < best[1].order:
                best = found
        return best

    def choices(
        self, servers: Iterable[ServerSlots], passed: Collection[str] = ()
    ) -> list[tuple[ServerSlots, Choice]]:
        """Return each server that would start a job now, and its choice."""
        choices = list[tuple[ServerSlots, Choice]]()
        found = dict[tuple[object, ...], Choice | None]()
        for server in servers:
            alone = server.id if self._apart or server.last_resort or server.model_slots else ""
            view: tuple[object, ...] = (alone,)
            if self._prices:
                view = (alone, *self.fleet.residency.view(server.id, self.now))
            if view not in found:  # equal servers make the same choice
                found[view] = self.choice(server, passed)
            if (choice := found[view]) is not None:
                choices.append((server, choice))
        return choices

    def choice(self, server: ServerSlots, passed: Collection[str] = ()) -> Choice | None:
        """Return what a slot would start now: promoted, by tau or by policy."""
        while jobs := self.open_to(server):
            others = [job for job in jobs if job.id not in passed] if passed else jobs
            choice = self._first_of(others, server.id)
            if choice is None:
                return None
            job = choice.job
            if self._may_claim is None or self._may_claim(job, self.now):
                break
        else:
            return None
        if job.promoted or len(jobs) == 1:
            return choice
        guard = self.guard
        overdue = guard.longest_overdue(jobs, self.waiting, self.now)
        if overdue is None or overdue is job or not guard.allows(overdue, job, self.waiting, self.now):
            return choice
        price_s = self.fleet.residency.price_s(server.id, overdue.affinity)
        return Choice((FIRST, price_s, overdue.seq), overdue, Reason.TAU)

    def _first_of(self, jobs: list[Job], server_id: str) -> Choice | None:
        """Return the first of waiting jobs by policy. Loading a model counts. Of several clients, that is the
        first by `share_key` of each one's first.
        """
        policy, excess_s, price_s = self.waiting.policy, self.excess_s, _free
        order: Callable[[Job], tuple[float, float, int]] = BY_KEY
        if policy.in_seconds and self._prices:
            price_s = cache(partial(self.fleet.residency.price_s, server_id))

            def with_load(job: Job) -> tuple[float, float, int]:
                load_s = price_s(job.affinity)
                if load_s and policy.boosts and not job.promoted:
                    return job.rank, policy.key(job, load_s), job.seq
                return job.rank, job.key + load_s, job.seq

            order = with_load

        def between_clients(job: Job) -> tuple[float, float, int]:
            return job.rank, share_key(job, excess_s) + price_s(job.affinity), job.seq

        if excess_s:
            clients = defaultdict[tuple[str, bool], list[Job]](list)
            for job in jobs:
                clients[job.client, job.interactive].append(job)
            jobs, order = [min(own, key=order) for own in clients.values()], between_clients
        if not jobs:
            return None
        job = min(jobs, key=order)
        return Choice(order(job), job, Reason.PROMOTED if job.promoted else Reason.POLICY)

    def open_to(self, server: ServerSlots) -> list[Job]:
        """Return the waiting jobs that a slot may serve.

        While the loaded model must stay, only jobs that need no other; promoted jobs are exempt. While a
        server waits to swap, only jobs that need what it will load: others would prolong the wait.
        """
        server_id, shares, may_take = server.id, not server.last_resort, self.fleet.may_take
        clients, residency = self.clients, self.fleet.residency
        limited = clients.limited() if clients.limits_slots else ()
        full = server.full() if server.model_slots else ()
        jobs = [
            job
            for job in self.waiting.jobs.values()
            if not job.held
            and not job.parked
            and job.client not in limited
            and job.affinity not in full
            and ((shares and not (job.pinned or job.able)) or may_take(server_id, job))
        ]
        if not self._prices:
            return jobs
        if there := residency.swapping_to(server_id):
            return [job for job in jobs if not job.affinity or job.affinity in there]
        if residency.must_stay(server_id, self.now):
            price_s = cache(partial(residency.price_s, server_id))
            keep = [job for job in jobs if job.promoted or not price_s(job.affinity)]
            return keep if self.fleet.answers_fresh(server, self.now) else keep or jobs
        return jobs


def _free(affinity: str) -> float:
    return 0.0
