"""When waiting jobs will start: those before them take the slots in turn, and newcomers pass them.

A job that would wait t0 seconds without newcomers waits t0 / (1 - rho), where rho is the load of those that
go before it. The guard limits that: past tau, few pass it. The spread follows from that of the lengths.
"""

from collections.abc import Sequence
from functools import cache
from heapq import heapreplace
from math import exp, inf, log1p, sqrt
from operator import attrgetter, itemgetter
from typing import NamedTuple

from clairvoyant_cli.scheduler.job import FIRST, Job
from clairvoyant_cli.scheduler.newcomers import spread_of
from clairvoyant_cli.scheduler.placement import ServerSlots
from clairvoyant_cli.scheduler.queue import Scheduler

STRETCH_SHARE = 0.5
"""A guard that lets those pass that waited 1/r as long is taken for one of r / 2: few of them have waited
just so long. With r waits are overestimated by a quarter, with 1 underestimated by as much."""

MIN_SIGMA, MAX_SIGMA = 0.15, 2.5  # limits of the spread of a wait, as the sigma of its logarithm


class Wait(NamedTuple):
    """A forecast of a start, in seconds from now."""

    mid_s: float  # the median
    sigma: float  # of its logarithm
    alone_s: float  # the median without newcomers
    ahead: float  # how many start before


class _Plan(NamedTuple):
    """The start of a job as planned: mean, variance and mean without newcomers in seconds, and its slot."""

    mean_s: float
    variance: float
    alone_s: float
    passed_by: float
    slot: int


class StartForecast:
    """Starts of waiting jobs, computed when asked for, in the policy's `order`."""

    def __init__(self, scheduler: Scheduler, order: Sequence[Job], now: float) -> None:
        self._scheduler, self._now = scheduler, now
        self._order = iter(order)
        guarded = [job for job in order if not (job.background_levels or job.held or job.parked)]
        self._oldest = iter(sorted(guarded, key=attrgetter("arrival_s", "seq")))
        self._longest: Job | None = None
        self._since = scheduler.guard.since
        self._slots, self._free_s = _slots(scheduler, now)
        self._delay = scheduler.newcomers.expected(scheduler.policy, now, len(self._slots))
        self._tau_of = cache(scheduler.clients.tau_of)
        self._takers: dict[tuple[str, frozenset[str]], list[ServerSlots]] = {}
        self._found: dict[Job, Wait] = {}
        self._client_ends: dict[str, list[float]] = {}
        self._work_s = self._squares = 0.0
        self._variance = (len(self._slots) * min(self._free_s, default=0.0)) ** 2
        self._guard = guard = scheduler.policy.guard
        self._stretch = 1.0 if guard is None else max(guard.stretch * STRETCH_SHARE, 1.0)
        self._guards = bool(self._slots)

    def takers(self, job: Job) -> list[ServerSlots]:
        """Return the servers that were up and may serve a waiting job; none if it is held or parked."""
        if job.held or job.parked:
            return []
        kind = job.pinned, job.able
        if kind not in self._takers:
            up, may_take = dict.fromkeys(self._slots), self._scheduler.fleet.may_take
            self._takers[kind] = [server for server in up if may_take(server.id, job)]
        return self._takers[kind]

    def wait_of(self, job: Job) -> Wait | None:
        """Return when a waiting job will start; None if no server that is up can take it, or it was held."""
        if job not in self._found and self.takers(job):
            for following in self._order:
                self._follow(following)
                if job in self._found:
                    break
        return self._found.get(job)

    def first(self, number: int) -> dict[Job, Wait]:
        """Return when at least this number of jobs start, of all that can."""
        for following in self._order if len(self._found) < number else ():
            self._follow(following)
            if len(self._found) >= number:
                break
        return self._found

    def _follow(self, job: Job) -> None:
        """Start a job if it can, and before it those that the guard would start first."""
        waits = job not in self._found and bool(self.takers(job))
        while waits:
            plan, age_s = self._plan(job), self._now - job.arrival_s
            overdue = None if job.rank == FIRST else self._overdue(job, plan.mean_s, age_s)
            self._since = 0 if overdue else self._since + 1
            self._start(*(overdue or (job, plan)))
            waits = overdue is not None

    def _overdue(self, job: Job, in_s: float, age_s: float) -> tuple[Job, _Plan] | None:
        """Return the job that the guard would start before another, which could start after a time."""
        while self._guards and (self._longest is None or self._longest in self._found):
            self._longest = next(filter(self.takers, self._oldest), None)
            self._guards = self._longest is not None
        longest, guard = self._longest, self._guard
        if not self._guards or longest is None or longest is job or guard is None:
            return None
        tau_s, waited_s = self._tau_of(longest.client, longest.model), self._now + in_s - longest.arrival_s
        if tau_s is None or waited_s <= tau_s or not guard.allows(waited_s, age_s + in_s, self._since):
            return None
        plan = self._plan(longest)
        return (longest, plan) if plan.mean_s <= in_s else None

    def _plan(self, job: Job) -> _Plan:
        slot, free_s = self._slot_for(job)
        number, stretch, age_s = len(self._slots), self._stretch, self._now - job.arrival_s
        mean_s, until_s, load, jobs, squares = self._delay(job, free_s)
        tau_s = None if self._guard is None or job.background_levels else self._tau_of(job.client, job.model)
        if tau_s is not None and age_s + mean_s > tau_s:
            guarded_s = (free_s - load * age_s / stretch) / (1.0 - load * (1.0 - 1.0 / stretch))
            mean_s = min(max(guarded_s, free_s + load * max(tau_s - age_s, 0.0)), mean_s)
            until_s = (mean_s - free_s) / load if load else 0.0
        grows = mean_s / free_s if free_s else 1.0
        started = len(self._found)
        if number > 1 and started and free_s:
            # Long jobs seldom are what ends first: more than half of a job is left in each other slot.
            left_s = (self._squares / self._work_s - self._work_s / started) / 2.0 if self._work_s else 0.0
            left_s *= (1.0 - 1.0 / number) * (1.0 - (1.0 - 1.0 / number) ** started)
            less = free_s / (free_s + max(left_s, 0.0))
            mean_s, free_s = mean_s * less, free_s * less
        variance = (self._variance + mean_s * squares) * (grows / number) ** 2
        return _Plan(mean_s, variance, free_s, jobs * until_s, slot)

    def _slot_for(self, job: Job) -> tuple[int, float]:
        """Return the slot that a job would take, and when."""
        free_s = self._free_s
        if job.pinned or job.able:
            takers = self.takers(job)
            able = [number for number, server in enumerate(self._slots) if server in takers]
            slot = min(able, key=free_s.__getitem__)
        else:
            slot = free_s.index(min(free_s))
        ends = self._ends_of(job.client)
        return slot, max(free_s[slot], ends[0]) if ends else free_s[slot]

    def _ends_of(self, client: str) -> list[float]:
        """Return when the jobs end whose slots a client at its limit waits for, as a heap; empty below it."""
        clients = self._scheduler.clients
        limit = clients.limits_of(client).max_running if clients.limits_slots else None
        if limit is None:
            return []
        if client not in self._client_ends:
            running = self._scheduler.running.values()
            ends = [run.left_s(self._now) for run in running if run.job.client == client]
            ends = sorted([*ends, *[0.0] * (limit - len(ends))])
            self._client_ends[client] = ends[max(len(ends) - limit, 0) :]
        return self._client_ends[client]

    def _start(self, job: Job, plan: _Plan) -> None:
        mean_s, number = max(plan.mean_s, 1e-3), len(self._slots)
        spread = log1p(plan.variance / mean_s**2)
        median = exp(-spread / 2.0)
        sigma = min(max(sqrt(spread), MIN_SIGMA), MAX_SIGMA)
        ahead = len(self._found) + plan.passed_by
        self._found[job] = Wait(plan.mean_s * median, sigma, plan.alone_s * median, ahead)
        server = self._slots[plan.slot]
        own_s = job.remaining_s if number == server.slots else self._scheduler.fleet.own_s(job, server)
        self._free_s[plan.slot] += own_s
        ends = self._ends_of(job.client)
        if ends:
            heapreplace(ends, plan.alone_s + own_s)
        square = own_s * own_s * spread_of(job.tokens, job.tokens_q90)
        self._work_s, self._squares = self._work_s + own_s, self._squares + square
        self._variance += square - own_s**2


def start_of(scheduler: Scheduler, job: Job, now: float) -> tuple[float, float]:
    """Return the seconds until a job would start (inf: no server that is up can take it), and those until its
    first token then. It may be waiting, or it would join the queue now.
    """
    order, mine = scheduler.waiting_with(job, now)
    forecast = StartForecast(scheduler, order, now)
    wait = forecast.wait_of(mine)
    if wait is None:
        return inf, 0.0
    return wait.mid_s, min(scheduler.fleet.read_s(mine, server) for server in forecast.takers(mine))


def _slots(scheduler: Scheduler, now: float) -> tuple[list[ServerSlots], list[float]]:
    """Return the server of each slot, and in how many seconds it falls free.

    The first of several falls free sooner than the one with least left: each may end at any time. Their ends
    are taken to be exponentially distributed, with the same sum.
    """
    left: list[tuple[float, ServerSlots]] = []
    for server in scheduler.fleet.servers.values():
        if server.slots:
            ends_s = [0.0] * server.at_once
            for run in server.running.values():  # more than that wait inside
                heapreplace(ends_s, ends_s[0] + run.left_s(now))
            left += [(left_s, server) for left_s in ends_s]
    left.sort(key=itemgetter(0))
    rates = [1.0 / max(left_s, 1e-6) for left_s, _ in left]
    at_s, rate, free_s = 0.0, sum(rates), list[float]()
    for (left_s, _), own in zip(left, rates, strict=True):
        at_s += 1.0 / rate if left_s else 0.0
        rate = max(rate - own, 1e-9)
        free_s.append(at_s)
    return [server for _, server in left], free_s
