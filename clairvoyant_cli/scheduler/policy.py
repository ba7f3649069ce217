"""Ordering policies: a key for each job when it joins the queue; the lowest key runs first, ties by arrival.

A policy is a key function and a few flags. Keys are fixed when a job joins the queue. The guard may
overrule a key for the sake of jobs past tau.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import expm1, log, sqrt

from clairvoyant_cli.scheduler.causes import Cause
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.urgency import level_of

# The starvation timeout tau, and the guard that lets the longest-waiting job overrule the policy.
#
# Where tau comes from, in this order: a setting (0 turns the guard off), the profile (3 x mu_short, the mean
# sojourn time of short requests under load), a default. A `tau_s` of None means that there is no guard.
#
# What each form of the guard guarantees, for a job that has waited longer than tau:
# * The paper's guard (`stretch` 0, `every` 0): the longest-waiting job is next. Once the backlog exceeds tau,
#   every job is past it, so the queue runs in arrival order (Clairvoyant, section 3.4).
# * Rationed (`every` n): at most one promotion per n dispatches by policy, so the order survives overload.
# * Stretched (`stretch` r): the longest-waiting job goes first only once it has waited r times as long as the
#   job it would displace. A job past tau is then overtaken only by jobs that arrived within the first
#   (1 - 1/r) of its wait. With V seconds of work ahead on arrival and work arriving at no more than
#   sigma + rho * t, one slot and no priorities, its wait is at most
#   max(V + sigma + rho * tau, (V + sigma) / (1 - rho * (1 - 1/r))), plus or minus one job.

TAU_PER_MU_SHORT = 3.0  # tau = 3 x mu_short (Clairvoyant, section 3.4)

DEFAULT_TAU_S = 120.0  # without any measurement: the paper's value for an Apple M1 (Clairvoyant, section 3.4)


def tau_from_setting(seconds: float | None, default_s: float | None = DEFAULT_TAU_S) -> float | None:
    """Return the tau that a setting stands for: 0 means no guard, None the default."""
    return default_s if seconds is None else seconds or None


def mean_over_slots(by_slots: Iterable[tuple[int, float]]) -> float:
    """Return the mean of pairs (slots, mu_short or tau), weighted by slots: any slot may be free first."""
    pairs = list(by_slots)
    return sum(slots * value for slots, value in pairs) / sum(slots for slots, _ in pairs)


@dataclass(frozen=True, slots=True)
class Guard:
    """When a job past tau is promoted. The defaults are the paper's guard."""

    every: int = 0
    stretch: float = 0.0

    def allows(self, longest_s: float, displaced_s: float, since: int) -> bool:
        """Whether a job past tau goes first now.

        `longest_s` is its wait and `displaced_s` that of the job that the policy would start, in seconds;
        `since` counts the dispatches by policy since the last promotion.
        """
        return since >= self.every and longest_s > self.stretch * displaced_s


# The decay rate of the tail of waiting times, which sets how far a short job may go ahead (policy `boost`).
#
# With one slot and exponential service times of mean m, the chance of a sojourn beyond t decays as
# exp(-g t), g = (1 - rho) / m. Answers vary more, so that g is lower by half: with log-normal answers
# (sigma 1.1) 0.46 to 0.56 of that at loads of 0.4 to 0.9, as the root of lambda (E[exp(g S)] - 1) = g.

LATEST = 200  # arrivals and answers from which load and mean service time are taken
LEAST = 10  # before so many answers the usual rate is used

SHARE = 0.5
SPARE = 0.08, 0.36
"""Bounds on 1 - rho: in an overload short jobs still do not pass all others, and at low load the order of
arrival costs short jobs more than it saves long ones."""

USUAL_RATE = 0.02  # per second: the rate at a load of 0.7 with answers of 8 s
CHANGE = 0.2  # a smaller change of the rate does not move any job


class TailRate:
    """Learns the rate from arrivals and service times; `slots` of all servers work as one faster slot."""

    def __init__(self) -> None:
        """Start with the usual rate and one slot."""
        self.slots, self.rate = 1, USUAL_RATE
        self.arrivals_s: deque[float] = deque(maxlen=LATEST)
        self.served_s: deque[float] = deque(maxlen=LATEST)

    def served(self, service_s: float, slots: int, now: float) -> bool:
        """Note a service time in seconds; return whether `rate` or `slots` have changed."""
        self.served_s.append(service_s)
        if len(self.served_s) < LEAST:
            return False
        mean_s = max(sum(self.served_s) / len(self.served_s) / slots, 1e-3)
        over_s = max(now - self.arrivals_s[0], 1e-3) if self.arrivals_s else 1e-3
        spare = 1.0 - len(self.arrivals_s) * mean_s / over_s
        rate = SHARE * min(max(spare, SPARE[0]), SPARE[1]) / mean_s
        if slots == self.slots and abs(rate - self.rate) <= CHANGE * self.rate:
            return False
        self.rate, self.slots = rate, slots
        return True


GENTLE_AGING_RATE = 0.02
"""The aging coefficient of QUARTZ (Table 3): a job 1 s shorter may come up to 50 s later and pass."""

LEAST_DUE_S = 0.01

URGENCY_STEP_S = 1e6  # one level of urgency outweighs any remaining time: eleven days

PREEMPTION_MARGIN = 0.1
"""A preemption must gain this share of the waiting job's own time beyond its cost; otherwise jobs of similar
length would swap for nothing. 0.35 would cost 5 points of short P50 at 85 % accuracy."""

MAX_PREEMPTIONS = 4  # per job, so that its reader is not interrupted without end


def remaining_of_size(job: Job) -> float:
    """Order by predicted seconds still due, weighed by how long the whole answer is: sqrt(remaining x size).

    The geometric mean of the two is in seconds and orders as their product does: the policy RS of the class
    SMART, whose mean sojourn is near SRPT's and whose short jobs wait less (Wierman, Harchol-Balter and
    Osogami, SIGMETRICS 2005). By remaining time alone a long answer keeps its slot as soon as it has less
    left than a short one needs in total. Equals keep their order of arrival.
    """
    size_s = job.cost_s * max(job.done_tokens / job.tokens, 1.0) if job.tokens > 0.0 else job.cost_s
    return sqrt(max(job.remaining_s * size_s, 0.0)) + GENTLE_AGING_RATE * job.arrival_s


@dataclass(frozen=True, slots=True)
class Policy:
    """A named ordering. Where servers can stop and resume jobs, it may also say which are stopped."""

    name: str
    key: Callable[..., float]  # of a job, the lowest first
    summary: str = ""
    guard: Guard | None = None  # how tau may overrule the key
    in_seconds: bool = False  # the key is in seconds: the cost of loading a model is added
    cause: Cause = Cause.SIZE  # of the place of a job that nothing else decides
    seldom: bool = False  # it is for comparisons
    by_level: bool = False  # urgent jobs first, and clients' claims are limited to their share
    # Where there are several clients, the first job of each goes by `seconds` and its client's service.
    by_share: bool = False
    preemptive: bool = False  # a waiting job takes a running one's slot if that gains (see `preemption`)
    margin: float = 0.0  # what a preemption must gain beyond its cost, as a share of the waiting job's time
    max_preemptions: int = MAX_PREEMPTIONS  # per job
    # The seconds that a job is still to take, by which jobs of several clients are compared, and which a
    # preemption gains.
    seconds: Callable[..., float] = remaining_of_size
    boosts: bool = False  # the key depends on the load, and takes the seconds to load a model: see `boosted`

    @property
    def guarded(self) -> bool:
        return self.guard is not None


def arrival(job: Job) -> float:
    """Order by arrival, as local LLM servers do."""
    return job.arrival_s


def probability_long(job: Job) -> float:
    """Order by ascending P(Long) (Clairvoyant, section 3.4)."""
    return job.p_long


def boosted(rate: float = USUAL_RATE, slots: int = 1) -> Callable[..., float]:
    """Return the order by arrival less a boost, -ln(1 - exp(-rate s)) / rate, for s seconds still due.

    It is arrival order among long answers and shortest first among short ones, and a waiting job ages by
    itself. Loading its model counts as service. If `rate` is that of the tail of waiting times (`TailRate`),
    it minimises that tail for known lengths (Boost: Yu and Scully, SIGMETRICS 2024). Several slots count as
    one that is faster.
    """

    def key(job: Job, load_s: float = 0.0) -> float:
        due_s = (max(job.remaining_s, LEAST_DUE_S) + load_s) / slots
        return job.arrival_s + log(-expm1(-rate * due_s)) / rate

    return key


def tuned(policy: Policy, rate: float, slots: int) -> Policy:
    """Return a policy with its key for the present load, where that depends on it."""
    return replace(policy, key=boosted(rate, slots)) if policy.boosts else policy


def urgency_then_remaining(job: Job) -> float:
    """Order by urgency level, then by remaining time (semantic scheduling, section 3.3)."""
    return level_of(job) * URGENCY_STEP_S + job.remaining_s


DEFAULT_POLICY = "boost"
"""Chosen by the sum of the logs of short P50 and P95, long P95, P99 of all and the mean on log-normal answers
and on the paper's two classes, and judged on other seeds and loads (docs/bench/tail.md)."""

POLICIES = {
    policy.name: policy
    for policy in (
        Policy(
            "boost",
            boosted(),
            "Arrival order, with a longer head start for shorter predicted answers. Fair between clients. "
            "Preempts a running request if that gains more than it costs. At most one start in ten goes to a "
            "request that has waited longer than tau.",
            Guard(every=9, stretch=2.0),
            in_seconds=True,
            by_share=True,
            preemptive=True,
            margin=PREEMPTION_MARGIN,
            boosts=True,
        ),
        Policy(
            "sjf",
            probability_long,
            "The request that is least likely to have a long answer first, as in the Clairvoyant paper. Once "
            "a request has waited longer than tau, the oldest goes first.",
            Guard(),
            seldom=True,
        ),
        Policy(
            "urgency",
            urgency_then_remaining,
            "Most urgent level first, then shortest predicted remaining time. Preempts running requests. "
            "At most one start in five goes to one past tau.",
            Guard(every=4),
            in_seconds=True,
            preemptive=True,
            margin=PREEMPTION_MARGIN,
            by_level=True,
            seconds=urgency_then_remaining,
        ),
        Policy(
            "fcfs",
            arrival,
            "Arrival order, as the servers themselves do.",
            in_seconds=True,
            cause=Cause.ARRIVAL,
        ),
    )
}

URGENCY_POLICY = "urgency"  # the default with an urgency predictor

RETIRED = tuple("bounded srpt fair fair-srpt quartz rr rr-sjf sjf-rationed aging hrrn".split())
"""Policies of earlier versions. `serve` understands them as the default one until version 0.3."""


def unknown_policy(name: str) -> str:
    """Return what to say of a name that is none of `POLICIES`."""
    if name in RETIRED:
        return f"policy {name} was removed; use {DEFAULT_POLICY}"
    return f"no policy {name!r}; there are {', '.join(POLICIES)}"
