"""Ordering policies: a key for each job when it joins the queue; the lowest key runs first, ties by arrival.

A policy is a key function and a few flags. Keys are fixed when a job joins the queue.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import expm1, log, sqrt

from clairvoyant_cli.scheduler.fairness import SERVICE_MEMORY_S
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.starvation import Guard
from clairvoyant_cli.scheduler.tail_rate import USUAL_RATE
from clairvoyant_cli.scheduler.urgency import level_of

GENTLE_AGING_RATE = 0.02
"""The aging coefficient of QUARTZ (Table 3): a job 1 s shorter may come up to 50 s later and pass."""

QUARTZ_FAIRNESS = 0.10
"""Seconds of disadvantage per second of the client's service rate (beta: QUARTZ, Table 3)."""

QUARTZ_CANDIDATES = 2  # servers among which a job is routed: the power of two choices (K of QUARTZ, Table 3)

LEAST_DUE_S = 0.01

URGENCY_STEP_S = 1e6  # one level of urgency outweighs any remaining time: eleven days

TIE_S_PER_TOKEN = 1e-6
"""Waiting times closer than a microsecond a token are a tie, broken by predicted length."""

QUANTUM_TOKENS = 100.0
"""Tokens a job may produce before it can be preempted. RR-SJF (section 3.4) has 5, inside the engine. From
outside, a cut costs 10 to 150 ms: at 50 ms and 40 tokens/s, a hundred tokens keep it to 2 % of the time."""

CUT_MARGIN = 0.1
"""A cut must gain this share of the waiting job's own time beyond its cost; otherwise jobs of similar length
would swap for nothing. 0.35 would cost 5 points of short P50 at 85 % accuracy."""

MAX_CUTS = 4  # cuts per job, so that its reader is not interrupted without end


@dataclass(frozen=True, slots=True)
class Policy:
    """A named ordering. Where servers can stop and resume jobs, it may also say which are stopped."""

    name: str
    key: Callable[..., float]  # of a job, the lowest first
    summary: str = ""
    guard: Guard | None = None  # how tau may overrule the key
    in_seconds: bool = False  # the key is in seconds: the cost of loading a model is added
    by_level: bool = False  # urgent jobs first, and clients' claims are limited to their share
    # Where there are several clients, the first job of each goes by `size_key` and its client's service.
    by_share: bool = False
    # A job waits for one server from its arrival, the best of this many drawn (QUARTZ, Algorithm 1). None: it
    # waits for the server where it is predicted to end first when a slot falls free.
    candidates: int | None = None
    preemptive: bool = False  # a waiting job takes a running one's slot if that gains (see `preemption`)
    margin: float = 0.0  # what a cut must gain beyond its cost, as a share of the waiting job's time
    max_cuts: int | None = MAX_CUTS  # per job
    # The seconds that a job is still to take, where the key does not tell: what a cut gains is in these.
    size_key: Callable[[Job], float] | None = None
    boosts: bool = False  # the key depends on the load, and takes the seconds to load a model: see `boosted`
    quantum_tokens: float | None = None  # a running job yields to any waiting one after this many
    yields: Callable[[Job], float] | None = None  # the highest yields first

    def seconds(self, job: Job) -> float:
        """Return the seconds that a job is still to take, by which jobs of several clients are compared."""
        return (self.size_key or self.key)(job)

    @property
    def guarded(self) -> bool:
        return self.guard is not None

    @property
    def interrupts(self) -> bool:
        """Whether it stops jobs that are being answered."""
        return self.preemptive or self.quantum_tokens is not None


def arrival(job: Job) -> float:
    """Order by arrival, as local LLM servers do."""
    return job.arrival_s


def probability_long(job: Job) -> float:
    """Order by ascending P(Long) (Clairvoyant, section 3.4)."""
    return job.p_long


def quartz_key(aging: float = GENTLE_AGING_RATE, fairness: float = QUARTZ_FAIRNESS) -> Callable[[Job], float]:
    """Return the order of QUARTZ, by default with the coefficients of its Table 3 (Eq. 6 to 8): the upper
    quantile of the service time, arrival-adjusted, plus a share of the rate at which the client was served.

    The service is that of the whole answer: a slot is not free after the first token.
    """

    def key(job: Job) -> float:
        served = job.usage_s / SERVICE_MEMORY_S
        return job.cost_high_s + aging * job.arrival_s + fairness * served

    return key


def remaining_of_size(job: Job) -> float:
    """Order by predicted seconds still due, weighed by how long the whole answer is: sqrt(remaining x size).

    The geometric mean of the two is in seconds and orders as their product does: the policy RS of the class
    SMART, whose mean sojourn is near SRPT's and whose short jobs wait less (Wierman, Harchol-Balter and
    Osogami, SIGMETRICS 2005). By remaining time alone a long answer keeps its slot as soon as it has less
    left than a short one needs in total. Equals keep their order of arrival.
    """
    aged_s = GENTLE_AGING_RATE * job.arrival_s
    return sqrt(max(job.remaining_s * job.size_s, 0.0)) + aged_s


def boosted(rate: float = USUAL_RATE, slots: int = 1) -> Callable[..., float]:
    """Return the order by arrival less a boost, -ln(1 - exp(-rate s)) / rate, for s seconds still due.

    It is arrival order among long answers and shortest first among short ones, and a waiting job ages by
    itself. Loading its model counts as service. If `rate` is that of the tail of waiting times (`tail_rate`),
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


def joined(job: Job) -> float:
    """Order by when the job last joined the queue: round robin."""
    return job.queued_s


def joined_then_short(job: Job) -> float:
    """Order by waiting time, predicted length breaking ties (RR-SJF, Algorithm 1)."""
    return job.queued_s + TIE_S_PER_TOKEN * job.tokens


def started_first(job: Job) -> float:
    """Make the job that has held its slot longest yield first."""
    return -job.started_s


def longest(job: Job) -> float:
    """Make the job with the longest predicted answer yield first (RR-SJF, Algorithm 1)."""
    return job.tokens


def in_turns_of(policy: Policy, tokens: float) -> Policy:
    return policy if policy.quantum_tokens is None else replace(policy, quantum_tokens=tokens)


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
            "Preempts a running request where that gains more than it costs. At most one start in ten goes "
            "to one past tau.",
            Guard(every=9, stretch=2.0),
            in_seconds=True,
            by_share=True,
            preemptive=True,
            margin=CUT_MARGIN,
            size_key=remaining_of_size,
            boosts=True,
        ),
        Policy(
            "sjf",
            probability_long,
            "Lowest P(Long) first, as in the Clairvoyant paper. Once a request has waited longer than tau, "
            "the longest-waiting one goes first.",
            Guard(),
        ),
        Policy(
            "urgency",
            urgency_then_remaining,
            "Most urgent level first, then shortest predicted remaining time. Interrupts running requests. "
            "At most one start in five goes to a request past tau.",
            Guard(every=4),
            in_seconds=True,
            preemptive=True,
            margin=CUT_MARGIN,
            by_level=True,
        ),
        Policy(
            "quartz",
            quartz_key(),
            "Lowest upper quantile of the predicted service time first, with some aging and fairness. Each "
            "request waits for the better of two servers, drawn at its arrival.",
            in_seconds=True,
            candidates=QUARTZ_CANDIDATES,
        ),
        Policy(
            "rr",
            joined,
            "Round robin: turns of `--quantum` tokens, in the order of joining the queue.",
            in_seconds=True,
            max_cuts=None,
            quantum_tokens=QUANTUM_TOKENS,
            yields=started_first,
        ),
        Policy(
            "rr-sjf",
            joined_then_short,
            "Turns of `--quantum` tokens, the shorter first among requests that joined together; the longest "
            "predicted answer yields first.",
            in_seconds=True,
            max_cuts=None,
            quantum_tokens=QUANTUM_TOKENS,
            yields=longest,
        ),
        Policy("fcfs", arrival, "Arrival order, as the servers themselves do.", in_seconds=True),
    )
}

URGENCY_POLICY = "urgency"  # the default with an urgency predictor

ALIASES = dict.fromkeys(("bounded", "srpt", "fair", "fair-srpt"), DEFAULT_POLICY)
"""Names of earlier versions: what they did is in one policy now."""


def policy_named(name: str) -> Policy:
    """Return a policy by its name or an earlier one; KeyError if there is none."""
    return POLICIES[ALIASES.get(name, name)]
