"""The place of each waiting job and the reason, from the scheduler's own decision at one moment.

The job that would start now is first, the others follow in the order of their predicted starts. Each has its
place under first-come-first-served beside it, by the same predictions.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from math import inf
from typing import NamedTuple, overload

from clairvoyant_cli.scheduler.causes import Cause
from clairvoyant_cli.scheduler.forecast_ranges import ForecastRanges, Range
from clairvoyant_cli.scheduler.job import FIRST, Job, Reason
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import StartForecast


class Standing(NamedTuple):
    """The place of a waiting job."""

    job: Job
    cause: Cause
    rank: int  # from 1
    by_guard: bool  # the guard starts it next
    start: Range | None  # in seconds from now; None while it cannot start
    ahead: float | None  # how many start before it, newcomers included; None likewise
    rank_fcfs: int  # in arrival order
    start_fcfs_s: float
    left_s: float  # how long it is predicted to take once it starts
    tau_s: float | None = None  # its starvation timeout, None if the guard does not apply to it
    overdue_s: float | None = None  # the time past it, negative before


class Standings(Sequence[Standing]):
    """The standings of the waiting jobs, the next to start first; held ones last. Each is computed on access:
    a screen shows few of thousands.

    `jobs` are the jobs in the order of the policy; `work_s` is the predicted work of waiting and running
    jobs in seconds. Later changes of the queue are not reflected.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        now: float,
        running_s: float,
        slots: int,
        ranges: ForecastRanges | None = None,
    ) -> None:
        """`running_s` is the predicted work left of running jobs, over `slots`."""
        self.jobs = scheduler.waiting(now)
        self._scheduler, self._policy = scheduler, scheduler.policy
        self._now = now
        self._slots = slots
        self._guarded, self._tau_of = scheduler.policy.guarded, cache(scheduler.clients.tau_of)
        self._excess_s = scheduler.queue.excess_s(now)
        # What would start now is not always the first by key: its model may not be loaded, or the guard acts.
        if (choice := scheduler.next_up(now)) is not None:
            self.jobs.remove(choice.job)
            self.jobs.insert(0, choice.job)
        self._by_guard = choice.job if choice and choice.reason is Reason.TAU else None
        self._left_s = [job.remaining_s for job in self.jobs]
        self._before_s = list(accumulate(self._left_s, initial=running_s))
        self._before_fcfs_s: list[float] = []
        self._place_fcfs: list[int] = []
        self._starts = StartForecast(scheduler, self.jobs, now)
        self._by_start: list[int] = []  # the places of the jobs, in the order of their starts
        self._known = 0  # how many of them are
        self._ranges = ranges or ForecastRanges()
        self._ranges.learn_outcomes(scheduler, now)

    @property
    def work_s(self) -> float:
        """Predicted work of all waiting and running jobs, in seconds."""
        return self._before_s[-1]

    def __len__(self) -> int:
        return len(self.jobs)

    @overload
    def __getitem__(self, at: int) -> Standing: ...
    @overload
    def __getitem__(self, at: slice) -> "list[Standing]": ...
    def __getitem__(self, at: int | slice) -> "Standing | list[Standing]":
        if isinstance(at, slice):
            numbers = range(*at.indices(len(self)))
            self.order(max(numbers, default=-1) + 1)
            return [self._standing(number) for number in numbers]
        self.order(len(self))
        return self._standing(range(len(self))[at])

    def forecast(self, number: int) -> None:
        """Compute when this number of jobs start, so that their standings are there sooner."""
        self._starts.first(number)

    def order(self, number: int) -> None:
        """Order the jobs by their starts, as far as this number of the first."""
        if self._known < min(number, len(self)):
            starts = {job: wait.mid_s for job, wait in self._starts.first(number).items()}
            if self.jobs[0] in starts and len(self._scheduler.fleet.servers) == 1:
                starts[self.jobs[0]] = 0.0  # the scheduler has chosen it; another server may be free sooner
            in_s = [starts.get(job, inf) for job in self.jobs]
            self._by_start, self._known = sorted(range(len(in_s)), key=in_s.__getitem__), number
        if len(self._place_fcfs) < len(self):
            orders = [(job.arrival_s, job.seq) for job in self.jobs]
            by_arrival = sorted(range(len(orders)), key=orders.__getitem__)
            left_s = map(self._left_s.__getitem__, by_arrival)
            self._before_fcfs_s = list(accumulate(left_s, initial=self._before_s[0]))
            self._place_fcfs = sorted(range(len(orders)), key=by_arrival.__getitem__)

    def _standing(self, number: int) -> Standing:
        place = self._by_start[number]
        job = self.jobs[place]
        tau_s = self._tau_s(job)
        late_s = None if tau_s is None else self._now - job.arrival_s - tau_s
        wait = None if self._scheduler.paused else self._starts.wait_of(job)
        start = None if wait is None else self._ranges.of_wait(job, wait)
        place_fcfs, before_s = self._place_fcfs[place], self._before_s[place]
        start_fcfs_s = self._before_fcfs_s[place_fcfs] / self._slots
        if wait is not None and start is not None and wait.mid_s and before_s:
            alone_s = start.mid_s * wait.alone_s / wait.mid_s
            start_fcfs_s *= self._slots * alone_s / before_s
        return Standing(
            job,
            self._cause(job, late_s if place else None),
            number + 1,
            job is self._by_guard,
            start,
            None if wait is None else wait.ahead,
            place_fcfs + 1,
            start_fcfs_s,
            self._left_s[place],
            tau_s,
            late_s,
        )

    def _tau_s(self, job: Job) -> float | None:
        """Return after how long the guard starts a job, None if it never does."""
        is_guarded = self._guarded and not (job.held or job.background_levels)
        return self._tau_of(job.client, job.model) if is_guarded else None

    @property
    def late(self) -> int:
        """How many are past their tau."""
        found = [(job.arrival_s, self._tau_s(job)) for job in self.jobs]
        return sum([tau_s is not None and self._now - arrival_s > tau_s for arrival_s, tau_s in found])

    def _cause(self, job: Job, late_s: float | None) -> Cause:
        if job.held or job.parked:
            return Cause.HELD if job.held else Cause.SESSION
        scheduler, takers = self._scheduler, self._starts.takers(job)
        if not takers and not any(server.lent for server in scheduler.fleet.servers.values()):
            return Cause.DOWN
        if scheduler.clients.is_limited(job.client):
            return Cause.LIMIT
        if job.rank == FIRST:
            return Cause.PROMOTED
        if self._by_guard is not None and (job is self._by_guard or (late_s or 0.0) > 0.0):
            return Cause.GUARD  # where the guard starts none, a job past tau has its place by the policy
        if job.background_levels:
            return Cause.CHORE
        residency, policy = scheduler.fleet.residency, self._policy
        if residency.prices and {residency.replaces(each.id, job.affinity) for each in takers} == {True}:
            return Cause.SWAP
        if job.rank or (policy.by_level and job.urgency is not None):
            return Cause.URGENT
        if self._excess_s and self._excess_s.get((job.client, job.interactive)):
            return Cause.SHARE
        return policy.cause


# -- in words ---------------------------------------------------------------------------------------------

NameOf = Callable[[str], str]
"""Returns the name of a server."""


def why(standing: Standing, scheduler: Scheduler, name_of: NameOf) -> str:
    """Explain the place of a waiting job in a sentence or two."""
    text = _WORDS.get(standing.cause, _in_order)(standing, scheduler, name_of)
    if standing.cause is Cause.HELD:
        return text
    if standing.job.background_levels and not standing.job.promoted:
        text += " Background request: runs after interactive ones, or in one of four starts once past tau."
    return f"Dispatching is paused. {text}" if scheduler.paused else text


def _session(standing: Standing, scheduler: Scheduler, name_of: NameOf) -> str:
    if not standing.job.session:
        return "Waits for a session to rest whose conversation it would evict from the KV cache."
    turns = _plural(scheduler.sessions.turns, "session")
    return f"Waits for its session's turn: the KV cache holds the {turns} being served, and no more."


def _down(standing: Standing, scheduler: Scheduler, name_of: NameOf) -> str:
    job = standing.job
    there = " and ".join(sorted(map(name_of, [job.pinned] if job.pinned else job.able)))
    if job.preemptions and job.pinned:
        return f"Its answer continues on {there}, which is not up."
    return f"Only {there} can take it, and is not up." if there else "No server is up."


def _limit(standing: Standing, scheduler: Scheduler, name_of: NameOf) -> str:
    limit = scheduler.clients.limits_of(standing.job.client).max_running
    return f"Its client has all the slots it may have ({limit})."


def _in_order(standing: Standing, scheduler: Scheduler, name_of: NameOf) -> str:
    over_s, before = standing.overdue_s or 0.0, _before(standing)
    if standing.by_guard:
        return f"Past tau by {over_s:.0f} s: the starvation guard starts it next."
    if standing.rank > 1 and over_s > 0.0:
        return f"Past tau by {over_s:.0f} s: the starvation guard starts such requests now and then. {before}"
    text = "Its model has to be loaded in place of another. " * (standing.cause is Cause.SWAP) + before
    if standing.overdue_s is not None and standing.rank > 1:
        text += f" Past tau in {-standing.overdue_s:.0f} s."
    return text


_WORDS: dict[Cause, Callable[[Standing, Scheduler, NameOf], str]] = {
    Cause.HELD: lambda *_: "Held until an operator releases it.",
    Cause.SESSION: _session,
    Cause.DOWN: _down,
    Cause.LIMIT: _limit,
    Cause.PROMOTED: lambda standing, *_: f"Moved to the front by an operator. {_before(standing)}",
}


def _before(standing: Standing) -> str:
    before, ahead = standing.rank - 1, round(standing.ahead or 0.0)
    newer = f"; about {_plural(ahead - before, 'newer request')} may overtake" if ahead > before else ""
    if before:
        return f"{before} ahead{newer}."
    return f"First in the queue{newer or ': takes the next free slot'}."


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
