"""Where each waiting job stands, and why: the queue's own decision, told for all of them at one moment.

First stands what would start now, the rest in the order of the next starts were none to age.
Beside it stands the place that each would have under first-come-first-served, by the same predictions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from clairvoyant_cli.scheduler.entry import Entry
from clairvoyant_cli.scheduler.job import Reason
from clairvoyant_cli.scheduler.queue import Scheduler


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


def standings(scheduler: Scheduler, now: float, running_s: float, slots: int) -> Iterator[Standing]:
    """Yield the standing of each waiting job, the next to start first; held ones last.

    `running_s` is the predicted time until all that runs has ended, summed over so many slots.
    """
    order = list(scheduler.waiting(now))
    by_guard = _next_to_front(scheduler, order, now)
    fcfs = _by_arrival(order, running_s, slots)
    overdue = _overdue(scheduler, order, now)
    latest = sorted((late_s for late_s in overdue if late_s is not None and late_s > 0.0), reverse=True)
    more = {late_s: place for place, late_s in reversed(list(enumerate(latest)))}
    work_s, level, above = running_s, None, 0
    for place, (entry, late_s) in enumerate(zip(order, overdue, strict=True)):
        if entry is not by_guard and entry.rank != level:
            level, above = entry.rank, place
        cause = Cause.GUARD if entry is by_guard else _cause(scheduler, entry, late_s)
        rank_fcfs, start_fcfs_s = fcfs[entry.seq]
        yield Standing(
            entry,
            cause,
            place + 1,
            None if entry.held else work_s / slots,
            rank_fcfs,
            start_fcfs_s,
            above,
            place - above,
            late_s,
            more.get(late_s, 0) if late_s is not None else 0,
        )
        if not entry.held:
            work_s += entry.remaining_s


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


def _by_arrival(order: list[Entry], running_s: float, slots: int) -> dict[int, tuple[int, float]]:
    """Return each one's rank and predicted wait under first-come-first-served, which knows no hold."""
    places, work_s = {}, running_s
    for place, entry in enumerate(sorted(order, key=_arrival), 1):
        places[entry.seq] = (place, work_s / slots)
        work_s += entry.remaining_s
    return places


def _arrival(entry: Entry) -> tuple[float, int]:
    return entry.job.arrival_s, entry.seq


def _overdue(scheduler: Scheduler, order: list[Entry], now: float) -> list[float | None]:
    if not scheduler.policy.guarded:
        return [None] * len(order)
    tau_of: dict[str, float | None] = {}
    late: list[float | None] = []
    for entry in order:
        client = entry.job.client
        if client not in tau_of:
            tau_of[client] = scheduler.line.tau_of(client)
        tau_s = tau_of[client]
        exempt = entry.held or entry.job.stands_back > 0
        late.append(None if tau_s is None or exempt else now - entry.job.arrival_s - tau_s)
    return late
