"""The place of each waiting job and the reason, from the scheduler's own decision at one moment.

The job that would start now is first, the others follow in the order of their predicted starts. Each has its
place under first-come-first-served beside it, by the same predictions.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from math import inf
from typing import overload

from clairvoyant_cli.scheduler.forecast_ranges import ForecastRanges, Range
from clairvoyant_cli.scheduler.job import Job, Reason
from clairvoyant_cli.scheduler.policy import arrival
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.start_forecast import StartForecast


class Cause(StrEnum):
    """What decides the place of a waiting job, the strongest first."""

    HELD = "held"
    SESSION = "session"  # its session waits for its turn
    DOWN = "down"  # no server that can take it is up
    LIMIT = "limit"  # its client is at its slot limit
    PROMOTED = "promoted"
    GUARD = "guard"  # the guard starts it next, or it is past tau and others go first
    CHORE = "chore"  # a background job
    SWAP = "swap"  # each server that can take it has to load its model in place of another
    URGENT = "urgent"  # a level of urgency, or a priority
    SHARE = "share"  # its client had more service than others
    ARRIVAL = "arrival"  # the policy goes by arrival
    SIZE = "size"  # the order of the policy is by predicted size


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a waiting job."""

    job: Job
    cause: Cause
    rank: int  # from 1
    by_guard: bool  # the guard starts it next
    start: Range | None  # in seconds from now; None while it cannot start
    ahead: float | None  # how many start before it, newcomers included; None likewise
    rank_fcfs: int  # in arrival order
    start_fcfs_s: float
    tau_s: float | None = None  # its starvation timeout, None if the guard does not apply to it
    overdue_s: float | None = None  # the time past it, negative before
    overdue_more: int = 0  # jobs that are past theirs by more


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
        """`running_s` is the predicted work left of running jobs, over `slots`. O(n log n), 2 us a job."""
        self.jobs = scheduler.waiting(now)
        self._scheduler = scheduler
        self._now = now
        self._slots = slots
        self._excess_s = scheduler.queue.excess_s(now)
        # What would start now is not always the first by key: its model may not be loaded, or the guard acts.
        if (choice := scheduler.next_up(now)) is not None:
            self.jobs.remove(choice.job)
            self.jobs.insert(0, choice.job)
        self._by_guard = choice.job if choice and choice.reason is Reason.TAU else None
        left_s = [job.remaining_s for job in self.jobs]
        self._before_s = list(accumulate(left_s, initial=running_s))
        self._latest: list[float] | None = None
        orders = [(job.arrival_s, job.seq) for job in self.jobs]
        by_arrival = sorted(range(len(orders)), key=orders.__getitem__)
        self._before_fcfs_s = list(accumulate(map(left_s.__getitem__, by_arrival), initial=running_s))
        self._place_fcfs = [0] * len(orders)
        for place_fcfs, place in enumerate(by_arrival):
            self._place_fcfs[place] = place_fcfs
        self._starts = StartForecast(scheduler, self.jobs, now)
        self._by_start: list[tuple[int, Job]] = []  # the place of each job in `jobs`, in order of the starts
        self._known = 0  # how many of them are
        self._ranges = ranges or ForecastRanges()
        self._ranges.look(scheduler, now)

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
            starts = self._starts.first(number)
            places = list(enumerate(self.jobs))
            if self.jobs[0] in starts:
                starts[self.jobs[0]] = 0.0  # the scheduler has chosen it
            places.sort(key=lambda each: starts.get(each[1], inf))
            self._by_start, self._known = places, number

    def _standing(self, number: int) -> Standing:
        place, job = self._by_start[number]
        tau_s = self._tau_s(job)
        late_s = None if tau_s is None else self._now - job.arrival_s - tau_s
        wait = None if self._scheduler.paused else self._starts.of(job)
        start = None if wait is None else self._ranges.of_wait(job, wait)
        start_fcfs_s = self._before_fcfs_s[self._place_fcfs[place]] / self._slots
        if wait is not None and start is not None and wait.mid_s and self._before_s[place]:
            alone_s = start.mid_s * wait.alone_s / wait.mid_s
            start_fcfs_s *= self._slots * alone_s / self._before_s[place]
        return Standing(
            job,
            self._cause(job, late_s if place else None),
            number + 1,
            job is self._by_guard,
            start,
            None if wait is None else wait.ahead,
            self._place_fcfs[place] + 1,
            start_fcfs_s,
            tau_s,
            late_s,
            0 if late_s is None or late_s <= 0.0 else self._later_than(late_s),
        )

    def _tau_s(self, job: Job) -> float | None:
        """Return after how long the guard starts a job, None if it never does."""
        if job.held or job.background_levels or not self._scheduler.policy.guarded:
            return None
        return self._scheduler.clients.tau_of(job.client)

    @property
    def late(self) -> int:
        """How many are past their tau."""
        return self._later_than(0.0)

    def _later_than(self, late_s: float) -> int:
        if self._latest is None:
            found = ((job, self._tau_s(job)) for job in self.jobs)
            late = (self._now - job.arrival_s - tau_s for job, tau_s in found if tau_s is not None)
            self._latest = sorted(each for each in late if each > 0.0)
        return len(self._latest) - bisect_right(self._latest, late_s)

    def _cause(self, job: Job, late_s: float | None) -> Cause:
        scheduler, policy = self._scheduler, self._scheduler.policy
        if job.held or job.parked:
            return Cause.HELD if job.held else Cause.SESSION
        takers = scheduler.takers(job)
        if not takers or scheduler.clients.is_limited(job.client):
            return Cause.LIMIT if takers else Cause.DOWN
        if job.promoted:
            return Cause.PROMOTED
        if self._by_guard is not None and (job is self._by_guard or (late_s or 0.0) > 0.0):
            return Cause.GUARD  # where the guard starts none, a job past tau has its place by the policy
        if job.background_levels:
            return Cause.CHORE
        if all(scheduler.residency.replaces(taker.id, job.affinity) for taker in takers):
            return Cause.SWAP
        if job.rank or (policy.by_level and job.urgency is not None):
            return Cause.URGENT
        if self._excess_s.get((job.client, job.interactive)):
            return Cause.SHARE
        return Cause.ARRIVAL if policy.key is arrival else Cause.SIZE
