"""Where each waiting job stands, and why: the queue's own decision, told for all of them at one moment.

First stands what would start now, the rest in the order of the next starts were none to age.
Beside it stands the place that each would have under first-come-first-served, by the same predictions.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import overload

from clairvoyant_cli.scheduler.job import Reason
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.queued_job import Entry


class Cause(StrEnum):
    """What decides of a waiting job's place, the strongest first."""

    HELD = "held"
    CANNOT = "cannot"  # its worker is away, or its client has all the slots it may have
    PROMOTED = "promoted"
    GUARD = "guard"  # the guard starts it next
    OVERDUE = "overdue"  # past tau, but the guard lets others go first
    PRIORITY = "priority"  # another than most have
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Standing:
    """A waiting job's place. `rank` counts from 1, `start_s` is the predicted wait from now on in seconds,
    None while it is held; `rank_fcfs` and `start_fcfs_s` are those of arrival order.

    Before it stand `ahead_urgent` jobs of a better priority, sent to the top or picked by the guard, and
    `ahead_policy` of its own priority that the policy puts first. `overdue_s` is how long it is past its tau,
    negative before that, None where no guard looks; `overdue_more` counts those that are past theirs by more.
    """

    entry: Entry
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
    """The standing of each waiting job, the next to start first; held ones last. One is worked out when it is
    looked at: of thousands that wait, a screen shows some tens.

    `entries` are the jobs in this order, `work_s` the predicted seconds until all of it, and what runs, is
    done by one slot. What is changed in the queue afterwards is not heeded.
    """

    def __init__(self, scheduler: Scheduler, now: float, running_s: float, slots: int) -> None:
        """`running_s` is the predicted time until all that runs has ended, summed over so many slots. Costs
        O(n log n) in those who wait, some 2 microseconds for each.
        """
        self.entries = list(scheduler.waiting(now))
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
        """Predicted seconds of all that waits and runs."""
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
        """Return the predicted wait of what stands at a place, from 0; None while it is held."""
        return None if self.entries[place].held else self._before_s[place] / self._slots

    def rank_fcfs(self, place: int) -> int:
        """Return the rank under first-come-first-served, which knows no hold, of what stands at a place."""
        return self._place_fcfs[place] + 1

    def _levels(self) -> Iterator[int]:
        """Yield of each how many stand before it by a better priority, or as they are started first."""
        level, above = None, 0
        for place, entry in enumerate(self.entries):
            if entry.rank != level and entry is not self._by_guard:
                level, above = entry.rank, place
            yield above

    def _late_s(self, entry: Entry) -> float | None:
        """Return for how long a job is past its tau; None where no guard looks."""
        if entry.held or entry.job.stands_back or not self._scheduler.policy.guarded:
            return None
        client = entry.job.client
        if client not in self._tau_of:
            self._tau_of[client] = self._scheduler.line.tau_of(client)
        tau_s = self._tau_of[client]
        return None if tau_s is None else self._now - entry.job.arrival_s - tau_s

    def _later_than(self, late_s: float) -> int:
        """Return how many are past their tau by more."""
        if self._latest is None:
            found = map(self._late_s, self.entries)
            self._latest = sorted(late for late in found if late is not None and late > 0.0)
        return len(self._latest) - bisect_right(self._latest, late_s)


def _next_to_front(scheduler: Scheduler, order: list[Entry], now: float) -> Entry | None:
    """Move what would start now to the front, which is not always what stands there by its key: a model may
    have to be loaded for that, and the guard may take another. Return it if it is the guard that does.
    """
    choice = scheduler.line.next_up(now)
    if choice is None:
        return None
    order.remove(choice.entry)
    order.insert(0, choice.entry)
    return choice.entry if choice.reason is Reason.TAU else None


def _cause(scheduler: Scheduler, entry: Entry, late_s: float | None) -> Cause:
    if entry.held:
        return Cause.HELD
    if not scheduler.line.may_start(entry):
        return Cause.CANNOT
    if entry.promoted:
        return Cause.PROMOTED
    if late_s is not None and late_s > 0.0:
        return Cause.OVERDUE
    return Cause.PRIORITY if entry.rank else Cause.POLICY
