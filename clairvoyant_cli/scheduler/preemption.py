"""Which running job makes way for the job that would start next.

Cutting v for w ends w earlier and v later, and whoever waits besides waits longer by what resuming v costs:
one price each for all that wait for the slot. Where the keys are seconds, the cut gains key(v) - key(w) less
those prices, and is made where that is more than a margin.
"""

from collections.abc import Iterable, Sequence

from clairvoyant_cli.scheduler.job import Preempt, Reason
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queued_job import Entry
from clairvoyant_cli.scheduler.urgency import level_of

TOKENS_A_CUT = 500.0
"""Beyond the cuts that every answer may have, one for so many tokens that it has brought."""


def may_be_cut(entry: Entry, policy: Policy) -> bool:
    """Say whether a running job may be cut at all.

    Not if it is spared, nor if tau or the operator started it, nor if it was cut as often as may be; what
    nobody waits for is cut for whoever asks, unless the operator started it.
    """
    if entry.spared or entry.reason is Reason.PROMOTED:
        return False
    if not entry.waited_for:
        return True
    if entry.reason is Reason.TAU:
        return False
    return policy.max_cuts is None or entry.cuts < most_cuts(policy.max_cuts, entry.done_tokens)


def most_cuts(max_cuts: int, done_tokens: float) -> int:
    """Return how often an answer may be cut: the longer it goes on, the more often.

    Or one without an end, cut as often as may be, would hold everybody after all.
    """
    return max_cuts + int(done_tokens / TOKENS_A_CUT)


def gain_s(victim: Entry, waiting: Entry, policy: Policy, waiters: float) -> float:
    """Return the seconds that a cut gains, less its price and margin: worth it above 0.

    `waiters` is the number of jobs that wait for each slot, the one that would start included. Between jobs
    of different priorities the keys do not count: worth it unless the victim ends as soon anyway. Nor do
    those who wait besides keep one of a more urgent level from it. Where nobody waits for the victim nobody
    pays for its resuming; one of those that came forward goes on only for as long as it was predicted to.
    """
    once_s = victim.evicts_s + (victim.resume_s if victim.waited_for else 0.0)
    price_s = once_s * waiters
    if not victim.waited_for and waiting.waited_for and victim.done_tokens > victim.job.tokens_q90 > 0.0:
        return victim.remaining_s - price_s
    if waiting.rank != victim.rank:
        return victim.remaining_s - price_s if waiting.rank < victim.rank else -1.0
    if policy.by_level and level_of(waiting.job) < level_of(victim.job):
        price_s = once_s
        if victim.remaining_s <= price_s:
            return -1.0
    return policy.key(victim) - policy.key(waiting) - price_s - policy.margin * waiting.remaining_s


def worthwhile(
    able: Iterable[tuple[Entry, Sequence[Entry]]], policy: Policy, waiters: float
) -> list[Preempt]:
    """Return the cuts that are worth it, the best first: one at most for each job that waits.

    `able` has for each worker the job it would start next, and the running ones that may be cut for it.
    """
    best: dict[str, tuple[float, Preempt]] = {}
    for waiting, victims in able:
        for victim in victims:
            gained_s = gain_s(victim, waiting, policy, waiters)
            if gained_s > best.get(waiting.job.id, (0.0,))[0]:
                best[waiting.job.id] = gained_s, Preempt(victim.job.id, victim.worker)
    return [preempt for _, preempt in sorted(best.values(), key=lambda each: -each[0])]


def spent(running: Iterable[Entry], policy: Policy, quantum_tokens: float) -> list[Preempt]:
    """Return the cuts of those that have had their quantum, those first that yield first."""
    yields = policy.yields or policy.key
    done = [e for e in running if e.done_tokens - e.slice_start_tokens >= quantum_tokens]
    done.sort(key=lambda e: (e.rank, yields(e), e.seq), reverse=True)
    return [Preempt(e.job.id, e.worker) for e in done]
