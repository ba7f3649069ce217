"""Which running job makes way for the job that would start next.

Cutting v for w ends w earlier by what v has left and v later by what w needs, and whoever waits besides waits
longer by what resuming v costs. With the keys in seconds, n jobs waiting and `resume_s` the price of one cut,
the sojourns of all shrink by key(v) - key(w) - n resume_s. A cut is made when that is more than a margin.
"""

from collections.abc import Iterable

from clairvoyant_cli.scheduler.entry import Entry
from clairvoyant_cli.scheduler.policy import Policy


def may_be_cut(entry: Entry, policy: Policy) -> bool:
    """Say whether a running job may be cut at all: its shell allows it, and it was not cut too often."""
    return not entry.spared and (policy.max_cuts is None or entry.cuts < policy.max_cuts)


def gain_s(victim: Entry, waiting: Entry, policy: Policy, waiters: float) -> float:
    """Return the seconds of sojourn that all save together, less the margin; a cut is worth it above 0.

    `waiters` is the number of jobs that wait for each slot, the one that would start included. Between jobs of
    different priorities the keys do not count: the cut is worth it unless the victim ends as soon anyway.
    """
    price_s = victim.resume_s * waiters
    if waiting.rank != victim.rank:
        return victim.remaining_s - price_s if waiting.rank < victim.rank else -1.0
    return policy.key(victim) - policy.key(waiting) - price_s - policy.margin * waiting.remaining_s


def worst(
    running: Iterable[Entry], waiting: Entry, policy: Policy, waiters: float
) -> tuple[float, Entry] | None:
    """Return the victim by whose cut most is gained, and the seconds; None if none is worth it."""
    found = [(gain_s(e, waiting, policy, waiters), e) for e in running]
    best = max(found, key=lambda each: each[0], default=None)
    return best if best is not None and best[0] > 0.0 else None


def spent(running: Iterable[Entry], policy: Policy, quantum_tokens: float) -> list[Entry]:
    """Return the running jobs that have had their quantum, those first that yield first."""
    yields = policy.yields or policy.key
    done = [e for e in running if e.done_tokens - e.slice_start_tokens >= quantum_tokens]
    return sorted(done, key=lambda e: (e.rank, yields(e), e.seq), reverse=True)
