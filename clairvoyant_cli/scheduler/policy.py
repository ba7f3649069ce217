"""Ordering policies: a job's key when it joins the queue; the lowest key runs first, ties by arrival.

A policy is a key function and a few flags, nothing more: keys are fixed when a job joins the queue, so that
a heap holds them. The one exception is `hrrn`, whose order changes with time: its jobs lie in bands of like
cost, first come first served within a band, and the heads of the bands are compared at each decision.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import floor, log, sqrt

from clairvoyant_cli.scheduler.fairness import SERVICE_MEMORY_S
from clairvoyant_cli.scheduler.queued_job import Entry
from clairvoyant_cli.scheduler.starvation import Guard
from clairvoyant_cli.scheduler.urgency import level_of

AGING_RATE = 0.1
"""Seconds of advantage per second of age under `aging`; QUARTZ's own value is 0.02 (Table 3)."""

GENTLE_AGING_RATE = 0.02
"""The aging coefficient of QUARTZ (Table 3): a job 1 s shorter may come up to 50 s later and pass."""

FAIR_WEIGHT = 1.0
"""Seconds of disadvantage per second the client has been served of late (beta of QUARTZ Eq. 8)."""

QUARTZ_FAIRNESS = 0.10
"""Seconds of disadvantage for each second of service that its client has a second (beta: QUARTZ, Table 3)."""

QUARTZ_CANDIDATES = 2
"""Workers among which a job is routed: the power of two choices (K of QUARTZ, Table 3)."""

URGENCY_STEP_S = 1e6
"""One level of urgency outweighs any remaining time: eleven days."""

TIE_S_PER_TOKEN = 1e-6
"""Waiting times closer than a microsecond a token are a tie, broken by predicted length."""

QUANTUM_TOKENS = 100.0
"""Tokens a job may produce before it can be preempted. RR-SJF (section 3.4) has 5, inside the engine. From
outside, a cut costs 10 to 150 ms: at 50 ms and 40 tokens/s, a hundred tokens keep it to 2 % of the time."""

CUT_MARGIN = 0.1
"""The share of the waiting job's own time that a cut must gain beyond its price: below that, jobs of like
length would change places for nothing. 0.35 (see `BAND_RATIO`) would cost 5 points of short P50 at 85 %."""

MAX_CUTS = 4
"""Times a job may be cut: then whoever waits behind it waits for its end, and its reader reads on."""

BAND_RATIO = 1.35
"""Costs within 35 % of each other lie in one band of `hrrn`: closer than a predicted length ever is, and few
enough bands (31 for costs from 10 ms to 100 s) to look at each at every decision."""

MIN_COST_S = 1e-3
"""A floor under predicted costs where they divide or enter a logarithm."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A named ordering, and what it does in one sentence: `summary`.

    `key` orders jobs, lowest first. `guard` says how tau may overrule it, None that it may not. `in_seconds`
    says that the key is in seconds, so that the price of loading a model can be added to it. `band` and
    `score` serve an order that changes with time: `score(entry, now)` compares the heads of the bands. With
    `by_level`, what is more urgent comes first, and clients' claims are held to their share; with `by_share`,
    who floods the queue makes way for others, whatever lengths are predicted.

    With `candidates`, a job waits for one worker from its arrival on, the best of so many that are drawn
    (QUARTZ, Algorithm 1); without, for whichever it is predicted to end on first when a slot falls free.

    For backends that can stop a job and resume it: with `preemptive`, a waiting job takes the slot of a
    running one where that gains more than it costs and a `margin` (see `preemption`); with `quantum_tokens`,
    a running job makes way for any waiting one once it has produced so many tokens since it was started, the
    highest `yields` first. A job is cut at most `max_cuts` times, None sets no limit.
    """

    name: str
    key: Callable[[Entry], float]
    summary: str = ""
    guard: Guard | None = None
    in_seconds: bool = False
    band: Callable[[Entry], int] | None = None
    score: Callable[[Entry, float], float] | None = None
    by_level: bool = False
    by_share: bool = False
    candidates: int | None = None
    preemptive: bool = False
    margin: float = 0.0
    max_cuts: int | None = MAX_CUTS
    quantum_tokens: float | None = None
    yields: Callable[[Entry], float] | None = None

    @property
    def guarded(self) -> bool:
        """Whether tau means anything under this policy."""
        return self.guard is not None

    @property
    def interrupts(self) -> bool:
        """Whether it stops jobs that run."""
        return self.preemptive or self.quantum_tokens is not None


def arrival(entry: Entry) -> float:
    """Order by arrival: what every local LLM server does today."""
    return entry.job.arrival_s


def probability_long(entry: Entry) -> float:
    """Order by ascending P(Long) (Clairvoyant, section 3.4)."""
    return entry.job.p_long


def cost(entry: Entry) -> float:
    """Order by predicted service time."""
    return entry.job.cost_s


def gently_aged_cost(entry: Entry) -> float:
    """Order by predicted service time, give or take age: equals keep their order of arrival."""
    return entry.job.cost_s + GENTLE_AGING_RATE * entry.job.arrival_s


def aged_cost(entry: Entry) -> float:
    """Order by predicted service time plus rate x arrival (QUARTZ, Eq. 7, on the mean).

    The mean, not QUARTZ's upper quantile: where a class is wrong more often than the quantile's tail is wide,
    every quantile is that of a long answer and the order is lost.
    """
    return entry.job.cost_s + AGING_RATE * entry.job.arrival_s


def fair_share(entry: Entry) -> float:
    """Order by gently aged cost plus what the client has been served of late (QUARTZ, Eq. 8)."""
    return gently_aged_cost(entry) + FAIR_WEIGHT * entry.usage_s


def quartz_key(
    aging: float = GENTLE_AGING_RATE, fairness: float = QUARTZ_FAIRNESS
) -> Callable[[Entry], float]:
    """Return the order of QUARTZ, by default with the coefficients of its Table 3 (Eq. 6 to 8): the upper
    quantile of the service time, arrival-adjusted, plus a share of the rate at which the client was served.

    The service is the whole answer's: a slot that is held is not free again after the first token.
    """

    def key(entry: Entry) -> float:
        served = entry.usage_s / SERVICE_MEMORY_S
        return entry.job.cost_high_s + aging * entry.job.arrival_s + fairness * served

    return key


def remaining_of_size(entry: Entry) -> float:
    """Order by predicted seconds still due, weighed by how long the whole answer is: sqrt(remaining x size).

    The geometric mean of the two is in seconds and orders as their product does: the policy RS of the class
    SMART, whose mean sojourn is near SRPT's and whose short jobs wait less (Wierman, Harchol-Balter and
    Osogami, SIGMETRICS 2005). By remaining time alone a long answer holds its slot as soon as it has less
    left than a short one has in all. Equals keep their order of arrival.
    """
    aged_s = GENTLE_AGING_RATE * entry.job.arrival_s
    return sqrt(max(entry.remaining_s * entry.size_s, 0.0)) + aged_s


def fair_remaining(entry: Entry) -> float:
    """Order as `remaining_of_size` does, plus what the client has been served of late, as `fair_share` does.

    Who floods the queue pays for what it has there already, so a question of somebody else cuts in.
    """
    return remaining_of_size(entry) + FAIR_WEIGHT * entry.usage_s


def urgency_then_remaining(entry: Entry) -> float:
    """Order by urgency level, then by remaining time (semantic scheduling, section 3.3)."""
    return level_of(entry.job) * URGENCY_STEP_S + entry.remaining_s


def joined(entry: Entry) -> float:
    """Order by when the job last joined the queue: round robin."""
    return entry.queued_s


def joined_then_short(entry: Entry) -> float:
    """Order by waiting time, predicted length breaking ties (RR-SJF, Algorithm 1)."""
    return entry.queued_s + TIE_S_PER_TOKEN * entry.job.tokens


def started_first(entry: Entry) -> float:
    """Make the job that has held its slot longest yield first."""
    return -entry.started_s


def longest(entry: Entry) -> float:
    """Make the job with the longest predicted answer yield first (RR-SJF, Algorithm 1)."""
    return entry.job.tokens


def cost_band(entry: Entry) -> int:
    """Return the band of costs a job belongs to, each 35 % wide."""
    return floor(log(max(entry.job.cost_s, MIN_COST_S)) / log(BAND_RATIO))


def response_ratio(entry: Entry, now: float) -> float:
    """Return minus age / cost, in the order of the response ratio: the highest ratio runs first."""
    return (entry.job.arrival_s - now) / (entry.job.cost_s or MIN_COST_S)


def in_turns_of(policy: Policy, tokens: float) -> Policy:
    """Return the policy with turns of so many tokens, if turns is what it gives."""
    return policy if policy.quantum_tokens is None else replace(policy, quantum_tokens=tokens)


DEFAULT_POLICY = "bounded"
"""Chosen from evidence, the paper's steady state over 20 seeds (`clairvoyant simulate --scenario
clairvoyant-table9`): it comes nearest to what pure shortest-first buys short requests while it bounds what
long ones pay. Unlike the paper's guard it does not fall back to arrival order in a burst, and unlike a fixed
ration of promotions its bound on waiting needs no knowledge of the load (see `starvation`)."""

POLICIES = {
    policy.name: policy
    for policy in (
        Policy(
            "bounded",
            gently_aged_cost,
            "Shortest predicted seconds first; whoever has waited longer than tau, and five times as long as "
            "the request it would displace, goes before it.",
            Guard(stretch=5.0),
            in_seconds=True,
        ),
        Policy(
            "sjf",
            probability_long,
            "Lowest P(Long) first, as in the Clairvoyant paper; once somebody has waited longer than tau, "
            "whoever has waited longest.",
            Guard(),
        ),
        Policy(
            "sjf-rationed",
            probability_long,
            "Like `sjf`, but of three starts at most one goes to whoever is past tau.",
            Guard(every=2),
        ),
        Policy(
            "aging",
            aged_cost,
            "Shortest predicted seconds first, less a tenth of a second for each second of waiting.",
            in_seconds=True,
        ),
        Policy(
            "hrrn",
            arrival,
            "Highest response ratio first, which is the wait so far over the predicted seconds.",
            band=cost_band,
            score=response_ratio,
        ),
        Policy(
            "fair",
            fair_share,
            "Shortest predicted seconds first, plus the seconds that its client was served of late; of three "
            "starts at most one goes to whoever is past tau, one of each client in tau while others wait.",
            Guard(every=2),
            in_seconds=True,
            by_share=True,
        ),
        Policy(
            "urgency",
            urgency_then_remaining,
            "The most urgent level first, least predicted seconds still due among equals; interrupts what "
            "runs; of five starts at most one goes to whoever is past tau.",
            Guard(every=4),
            in_seconds=True,
            preemptive=True,
            margin=CUT_MARGIN,
            by_level=True,
        ),
        Policy(
            "srpt",
            remaining_of_size,
            "Least predicted seconds still due first, weighed by the whole answer's; interrupts what runs "
            "where that gains more than it costs; of three starts at most one goes to whoever is past tau.",
            Guard(every=2),
            in_seconds=True,
            preemptive=True,
            margin=CUT_MARGIN,
        ),
        Policy(
            "fair-srpt",
            fair_remaining,
            "Like `srpt`, plus the seconds that its client was served of late: who floods the queue makes "
            "way, and tau starts one request of each client in tau while others wait.",
            Guard(every=2),
            in_seconds=True,
            by_share=True,
            preemptive=True,
            margin=CUT_MARGIN,
        ),
        Policy(
            "quartz",
            quartz_key(),
            "Lowest upper quantile of the predicted seconds first, with some age and some fairness among "
            "clients; each request waits for the better of two servers, drawn as it comes.",
            in_seconds=True,
            candidates=QUARTZ_CANDIDATES,
        ),
        Policy(
            "rr",
            joined,
            "Turns of so many tokens as `--quantum` says, in the order of joining the queue.",
            in_seconds=True,
            max_cuts=None,
            quantum_tokens=QUANTUM_TOKENS,
            yields=started_first,
        ),
        Policy(
            "rr-sjf",
            joined_then_short,
            "Turns of so many tokens as `--quantum` says; the shorter goes first among those that joined "
            "together, and the longest predicted answer makes way first.",
            in_seconds=True,
            max_cuts=None,
            quantum_tokens=QUANTUM_TOKENS,
            yields=longest,
        ),
        Policy("oracle", cost, "The shortest real time first, as if it were known.", in_seconds=True),
        Policy("fcfs", arrival, "In order of arrival, as the servers themselves do.", in_seconds=True),
    )
}

PREEMPTIVE_POLICY = "srpt"
"""The default where answers can be cut and continued."""

URGENCY_POLICY = "urgency"
"""The default where a predictor says how urgent requests are."""

SERVABLE = tuple(name for name in POLICIES if name != "oracle")
"""The policies a proxy can carry out: it does not know real lengths."""
