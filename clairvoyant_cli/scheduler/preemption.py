"""Which running job is preempted for the job that would start next.

Preempting v for w ends w earlier and v later, and delays each other waiting job by the cost of resuming v.
With keys in seconds the gain is key(v) - key(w), at the pace of their server, minus that cost per waiting
job; v is preempted if the gain exceeds a margin. Example under `boost`: v has 40 s left of 60 s, w takes 5 s
and arrived with it, resuming costs 0.1 s and three jobs wait for the slot. The gain is sqrt(40 * 60) -
sqrt(5 * 5) = 44 s, less 0.3 s and a margin of a tenth of 5 s: v is preempted. With 0.4 s left of v it is
sqrt(0.4 * 60) - 5 = -0.1 s, and w waits.

If the prompt of v is still being read, its server goes on to the end of a batch: w waits for that, and what v
has to read again is part of the cost.
"""

from clairvoyant_cli.scheduler.choosing import Decision
from clairvoyant_cli.scheduler.job import Job, Reason, Run
from clairvoyant_cli.scheduler.placement import ServerSlots
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.urgency import level_of

TOKENS_A_PREEMPTION = 500.0
"""One more preemption is allowed for each this many tokens of an answer, or of a prompt that was read."""


def may_be_preempted(run: Run, policy: Policy) -> bool:
    """Return whether a running job may be preempted at all.

    Not if it is spared, was started by tau or the operator, or was preempted as often as allowed. Background
    jobs that answer may always be preempted, unless the operator started them. Under a policy that does not
    interrupt answers, only while its prompt is read.
    """
    job, reads = run.job, run.stops_s is not None
    if run.spared or run.reason is Reason.PROMOTED or not (reads or policy.preemptive):
        return False
    if not job.interactive and not reads:
        return True
    if run.reason is Reason.TAU and job.interactive:
        return False
    return job.preemptions < most_preemptions(policy.max_preemptions, run.kept_tokens)


def most_preemptions(max_preemptions: int, done_tokens: float) -> int:
    """Return how often a job may be preempted that keeps this many tokens. Longer answers may be preempted
    more often: otherwise one without an end, after MAX_PREEMPTIONS, would block the slot.
    """
    return max_preemptions + int(done_tokens / TOKENS_A_PREEMPTION)


def gain_s(run: Run, waiting: Job, policy: Policy, waiters: float, excess_s: float = 0.0) -> float:
    """Return the seconds that a preemption gains, minus its cost and margin; worth it above 0.

    `waiters` is the number of waiting jobs per slot, the one that would start included. Between different
    priorities the keys do not count: the preemption is worth it unless the victim ends as soon anyway. For a
    more urgent job the other waiting jobs do not count. Resuming a background victim costs nothing; one
    promoted from the background is protected only up to its predicted length. `excess_s` is how much more
    service the victim's client had than that of the waiting job.
    """
    victim, stops_s = run.job, run.stops_s or 0.0
    once_s = run.evicts_s + (run.resume_s if victim.interactive else 0.0)
    price_s = once_s * waiters
    if not victim.interactive and waiting.interactive and victim.done_tokens > victim.tokens_q90 > 0.0:
        return run.left_s() - stops_s - price_s
    if waiting.rank != victim.rank:
        return run.left_s() - stops_s - price_s if waiting.rank < victim.rank else -1.0
    urgent = policy.by_level and level_of(waiting) < level_of(victim)
    if urgent:
        price_s = once_s
    if (urgent or run.stops_s is not None) and run.left_s() <= stops_s + price_s:
        return -1.0
    if waiting.client == victim.client and policy.key(victim) <= policy.key(waiting):
        return -1.0  # the victim would start again at once
    gains_s = (
        policy.seconds(victim) - policy.seconds(waiting) + excess_s - policy.margin * waiting.remaining_s
    )
    return run.pace * gains_s - stops_s - price_s


def preemptions(decision: Decision) -> list[Run]:
    """Return the runs worth preempting now, the best first, at most one per waiting job."""
    waiting, servers = decision.waiting, decision.fleet.servers.values()
    victims = dict[ServerSlots, list[Run]]()
    for server in servers:
        running = [run for run in server.running.values() if may_be_preempted(run, waiting.policy)]
        if running and len(server.running) == server.slots:
            victims[server] = running
    waiters = max(1, waiting.interactive) / max(1, sum(server.slots for server in servers))
    best: dict[str, tuple[float, Run]] = {}
    for server, choice in decision.choices(victims):
        job = choice.job
        if decision.now < job.not_before_s:
            continue
        for run in victims[server]:
            victim = run.job
            if _may_pass(decision, job, run):
                more_s = decision.excess_s.get((victim.client, victim.interactive), 0.0)
                less_s = decision.excess_s.get((job.client, job.interactive), 0.0)
                more_s -= min(victim.remaining_s, more_s) + less_s
                gained_s = gain_s(run, job, waiting.policy, waiters, more_s)
                if gained_s > best.get(job.id, (0.0,))[0]:
                    best[job.id] = gained_s, run
    return [run for _, run in sorted(best.values(), key=lambda found: -found[0])]


def _may_pass(decision: Decision, waiting: Job, run: Run) -> bool:
    """Return whether the guard would start `waiting` before a running job, were both waiting.

    Under `by_share` policies another client's running jobs can always be passed.
    """
    jobs, now, running = decision.waiting, decision.now, run.job
    loads = decision.fleet.residency.swaps(run.server_id, running.id, waiting.affinity)
    if run.stops_s is not None and (loads or jobs.goes_by_arrival(waiting, now)):
        return False
    tau_s = decision.clients.tau_of(running.client, running.model)
    if tau_s is None or waiting.promoted or not running.interactive:
        return True
    if jobs.policy.by_share and waiting.client != running.client:
        return True
    return now - running.arrival_s <= tau_s or not decision.guard.allows(running, waiting, jobs, now)
