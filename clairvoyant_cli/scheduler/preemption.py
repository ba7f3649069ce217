"""Which running job is preempted ("cut") for the job that would start next.

Cutting v for w ends w earlier and v later, and delays each other waiting job by the cost of resuming v. With
keys in seconds the gain is key(v) - key(w), at the pace of their server, minus that cost per waiting job; a
cut is made if the gain exceeds a margin. If the prompt of v is still being read, its server goes on to the
end of a batch: w waits for that, and what v has to read again is part of the cost.
"""

from collections.abc import Iterable, Mapping, Sequence

from clairvoyant_cli.scheduler.job import Job, Preempt, Reason
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.urgency import level_of

TOKENS_A_CUT = 500.0
"""One more cut is allowed for each this many tokens of an answer, or of a prompt that was read."""


def may_be_cut(job: Job, policy: Policy) -> bool:
    """Return whether a running job may be cut at all.

    Not if it is spared, was started by tau or the operator, or was cut as often as allowed. Background jobs
    that answer may always be cut, unless the operator started them. Under a policy that does not interrupt
    answers, only while its prompt is read.
    """
    reads = job.stops_s is not None
    if job.spared or job.reason is Reason.PROMOTED or not (reads or policy.preemptive):
        return False
    if not job.interactive and not reads:
        return True
    if job.reason is Reason.TAU and job.interactive:
        return False
    return job.cuts < most_cuts(policy.max_cuts, job.kept_tokens)


def most_cuts(max_cuts: int, done_tokens: float) -> int:
    """Return how often a job may be cut that keeps this many tokens. Longer answers may be cut more often:
    otherwise one without an end, once cut MAX_CUTS times, would block the slot.
    """
    return max_cuts + int(done_tokens / TOKENS_A_CUT)


def gain_s(victim: Job, waiting: Job, policy: Policy, waiters: float, excess_s: float = 0.0) -> float:
    """Return the seconds that a cut gains, minus its cost and margin; worth it above 0.

    `waiters` is the number of waiting jobs per slot, the one that would start included. Between different
    priorities the keys do not count: the cut is worth it unless the victim ends as soon anyway. For a more
    urgent job the other waiting jobs do not count. Resuming a background victim costs nothing; one promoted
    from the background is protected only up to its predicted length. `excess_s` is how much more service the
    victim's client had than that of the waiting job.
    """
    stops_s = victim.stops_s or 0.0
    once_s = victim.evicts_s + (victim.resume_s if victim.interactive else 0.0)
    price_s = once_s * waiters
    if not victim.interactive and waiting.interactive and victim.done_tokens > victim.tokens_q90 > 0.0:
        return victim.left_s() - stops_s - price_s
    if waiting.rank != victim.rank:
        return victim.left_s() - stops_s - price_s if waiting.rank < victim.rank else -1.0
    urgent = policy.by_level and level_of(waiting) < level_of(victim)
    if urgent:
        price_s = once_s
    if (urgent or victim.stops_s is not None) and victim.left_s() <= stops_s + price_s:
        return -1.0
    if waiting.client == victim.client and policy.key(victim) <= policy.key(waiting):
        return -1.0  # the victim would start again at once
    gains_s = (
        policy.seconds(victim) - policy.seconds(waiting) + excess_s - policy.margin * waiting.remaining_s
    )
    return victim.pace * gains_s - stops_s - price_s


def worthwhile(
    able: Iterable[tuple[Job, Sequence[Job]]],
    policy: Policy,
    waiters: float,
    had_s: Mapping[tuple[str, bool], float],
) -> list[Preempt]:
    """Return the cuts that are worth it, the best first, at most one per waiting job.

    `able` has for each server the job it would start next and the running jobs that may be cut for it;
    `had_s` is the service that clients had before others.
    """
    best: dict[str, tuple[float, Preempt]] = {}
    for waiting, victims in able:
        for victim in victims:
            more_s = had_s.get((victim.client, victim.interactive), 0.0)
            more_s -= min(victim.remaining_s, more_s) + had_s.get((waiting.client, waiting.interactive), 0.0)
            gained_s = gain_s(victim, waiting, policy, waiters, more_s)
            if gained_s > best.get(waiting.id, (0.0,))[0]:
                best[waiting.id] = gained_s, Preempt(victim.id, victim.server_id)
    return [preempt for _, preempt in sorted(best.values(), key=lambda each: -each[0])]
