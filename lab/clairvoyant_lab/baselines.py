"""Policies that the product does not have, to compare it with."""

from collections.abc import Callable
from dataclasses import dataclass

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import (
    GENTLE_AGING_RATE,
    POLICIES,
    PREEMPTION_MARGIN,
    Guard,
    Policy,
    remaining_of_size,
)

TAIL_WEIGHT = 0.5  # in `tail_inflated`, chosen on log-normal answers (docs/bench/tail.md)


@dataclass(slots=True, eq=False, repr=False)
class SimulatedJob(Job):
    """A job with what only these policies order by."""

    cost_high_s: float = 0.0  # the upper quantile of its service time
    served_share: float = 0.0  # the rate at which its client was served on arrival, in slots per weight


def cost(job: Job) -> float:
    return job.cost_s


def gently_aged_cost(job: Job) -> float:
    """Order by predicted service time, slightly aged: equals keep their order of arrival."""
    return job.cost_s + GENTLE_AGING_RATE * job.arrival_s


def tail_inflated(key: Callable[[Job], float]) -> Callable[[SimulatedJob], float]:
    """Return the order by a key in seconds plus what the tail adds (TIE, arXiv 2604.00499).

    That is a share of what the upper quantile of the service time is above the mean.
    """
    return lambda job: key(job) + TAIL_WEIGHT * (job.cost_high_s - job.cost_s)


ALL_POLICIES = POLICIES | {
    policy.name: policy
    for policy in (
        Policy("oracle", cost, "Shortest real service time first.", in_seconds=True),
        Policy(
            "bounded",
            gently_aged_cost,
            "Shortest predicted service time first. A request that has waited longer than tau, and five "
            "times as long as the one it would displace, goes before it.",
            Guard(stretch=5.0),
            in_seconds=True,
        ),
        Policy(
            "srpt",
            remaining_of_size,
            "Shortest predicted remaining time first, weighted by the total, with preemption. At most one "
            "start in three goes to a request past tau.",
            Guard(every=2),
            in_seconds=True,
            preemptive=True,
            margin=PREEMPTION_MARGIN,
        ),
        Policy(
            "tie",
            tail_inflated(gently_aged_cost),
            "Shortest predicted service time plus a share of its tail first; the rest as in `bounded`.",
            Guard(stretch=5.0),
            in_seconds=True,
        ),
        Policy(
            "tie-srpt",
            tail_inflated(remaining_of_size),
            "Shortest predicted remaining time plus a share of its tail first; the rest as in `srpt`.",
            Guard(every=2),
            in_seconds=True,
            preemptive=True,
            margin=PREEMPTION_MARGIN,
            seconds=tail_inflated(remaining_of_size),
        ),
    )
}
