"""The place of each waiting job and the reason, from the scheduler's own decision at one moment.

The job that would start now is first, the others follow in the order of their starts, were none to age. Each
has its place under first-come-first-served beside it, by the same predictions.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import overload

from clairvoyant_cli.scheduler.job import Reason
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.queued_job import QueuedJob


class Cause(StrEnum):
    """What decides the place of a waiting job, the strongest first."""

    HELD = "held"
    SESSION = "session"  # its session waits for its turn
    CANNOT = "cannot"  # its worker is down, or its client is at its slot limit
    PROMOTED = "promoted"
    GUARD = "guard"  # the guard starts it next
    OVERDUE = "overdue"  # past tau, but the guard starts others first
    PRIORITY = "priority"  # not the default priority
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a waiting job. `rank` counts from 1; `start_s` is the predicted wait from now in seconds,
    None while it is held; `rank_fcfs` and `start_fcfs_s` are those of arrival order.

    Before it are `ahead_urgent` jobs of a better priority, promoted or started by the guard, and
    `ahead_policy` jobs of its priority that the policy puts first. `overdue_s` is the time past its tau,
    negative before, None without a guard; `overdue_more` counts jobs that are past theirs by more.
    """

    entry: QueuedJob
    cause: Cause
    rank: int
    start_s: float | None
    rank_fcfs: int
    start_fcfs_s: float
    ahead_urgent: int
    ahead_policy: int
    overdue_s: float | None = None
    overdue_more: int = 0


class Standings(Sequence[Standing]):
    """The standings of the waiting jobs, the next to start first; held ones last. Each is computed on access:
    a screen shows few of thousands.

    `entries` are the jobs in this order; `work_s` is the predicted work of waiting and running jobs in
    seconds. Later changes of the queue are not reflected.
    """

    def __init__(self, scheduler: Scheduler, now: float, running_s: float, slots: int) -> None:
        """`running_s` is the predicted work left of running jobs, summed over `slots`. Costs O(n log n) in
        the waiting jobs, some 2 microseconds each.
        """
        self.entries = scheduler.waiting()
        self._scheduler = scheduler
        self._now = now
        self._slots = slots
        self._by_guard = _next_to_front(scheduler, self.entries, now)
        left_s = [entry.remaining_s for entry in self.entries]
        self._before_s = list(accumulate(left_s, initial=running_s))
        self._above = list(self._levels())
        self._tau_of: dict[str, float | None] = {}
        self._latest: list[float] | None = None
        seqs = [entry.seq for entry in self.entries]
        arrivals = [entry.job.arrival_s for entry in self.entries]
        by_arrival = sorted(range(len(seqs)), key=seqs.__getitem__)
        by_arrival.sort(key=arrivals.__getitem__)
        self._before_fcfs_s = list(accumulate(map(left_s.__getitem__, by_arrival), initial=running_s))
        self._place_fcfs = [0] * len(seqs)
        for place_fcfs, place in enumerate(by_arrival):
            self._place_fcfs[place] = place_fcfs

    @property
    def work_s(self) -> float:
        """Predicted work of all waiting and running jobs, in seconds."""
        return self._before_s[-1]

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, at: int) -> Standing: ...
    @overload
    def __getitem__(self, at: slice) -> "list[Standing]": ...
    def __getitem__(self, at: int | slice) -> "Standing | list[Standing]":
        if isinstance(at, slice):
            return [self[place] for place in range(*at.indices(len(self)))]
        entry = self.entries[at]
        place = at % len(self.entries)
        late_s = self._late_s(entry)
        return Standing(
            entry,
            Cause.GUARD if entry is self._by_guard else _cause(self._scheduler, entry, late_s),
            place + 1,
            self.start_s(place),
            self.rank_fcfs(place),
            self._before_fcfs_s[self._place_fcfs[place]] / self._slots,
            self._above[place],
            place - self._above[place],
            late_s,
            0 if late_s is None or late_s <= 0.0 else self._later_than(late_s),
        )

    def start_s(self, place: int) -> float | None:
        """Return the predicted wait of the job at a place, from 0; None while it is held."""
        return None if self.entries[place].held else self._before_s[place] / self._slots

    def rank_fcfs(self, place: int) -> int:
        """Return the rank in arrival order of the job at a place; holds do not count."""
        return self._place_fcfs[place] + 1

    def _levels(self) -> Iterator[int]:
        """Yield for each job how many are before it by priority or promotion."""
        level, above = None, 0
        for place, entry in enumerate(self.entries):
            if entry.rank != level and entry is not self._by_guard:
                level, above = entry.rank, place
            yield above

    def _late_s(self, entry: QueuedJob) -> float | None:
        """Return the time since a job passed its tau; None without a guard."""
        if entry.held or entry.job.stands_back or not self._scheduler.policy.guarded:
            return None
        client = entry.job.client
        if client not in self._tau_of:
            self._tau_of[client] = self._scheduler.line.tau_of(client)
        tau_s = self._tau_of[client]
        return None if tau_s is None else self._now - entry.job.arrival_s - tau_s

    def _later_than(self, late_s: float) -> int:
        """Return how many jobs are past their tau by more."""
        if self._latest is None:
            found = map(self._late_s, self.entries)
            self._latest = sorted(late for late in found if late is not None and late > 0.0)
        return len(self._latest) - bisect_right(self._latest, late_s)


def _next_to_front(scheduler: Scheduler, order: list[QueuedJob], now: float) -> QueuedJob | None:
    """Move the job that would start now to the front; return it if the guard starts it.

    It is not always the first by key: its model may not be loaded, or the guard may start another.
    """
    choice = scheduler.line.next_up(now)
    if choice is None:
        return None
    order.remove(choice.entry)
    order.insert(0, choice.entry)
    return choice.entry if choice.reason is Reason.TAU else None


def _cause(scheduler: Scheduler, entry: QueuedJob, late_s: float | None) -> Cause:
    if entry.held:
        return Cause.HELD
    if entry.parked:
        return Cause.SESSION
    if not scheduler.line.may_start(entry):
        return Cause.CANNOT
    if entry.promoted:
        return Cause.PROMOTED
    if late_s is not None and late_s > 0.0:
        return Cause.OVERDUE
    return Cause.PRIORITY if entry.rank else Cause.POLICY
