"""A job: a request as the scheduler orders it, from its arrival to its end, and what is still to come
of an answer. Numbers and names, no text.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import erfc, exp, log, pi, sqrt
from typing import NamedTuple, TypedDict

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain
from clairvoyant_cli.scheduler.server_cache import NOTHING, Expected

# Mean residual life of an answer: the expected tokens still to come, given the tokens so far.
#
# Answer lengths are taken to be log-normal, fixed by the predicted mean and 90 % quantile. The hazard of a
# log-normal falls in the tail: the longer an answer outlives its estimate, the more is still to come (the
# conditional mean exceeds the age by about age x sigma^2 / ln(age / median)).

Z90 = 1.2815515655446004  # the 90 % quantile of the standard normal distribution

MIN_SIGMA = 0.3
"""The least spread (35 %): with a tighter one, an answer beyond its prediction would be expected to end at
any moment, however long it runs."""

MIN_SHARE = 0.1
"""Without a spread, at least this share of the tokens so far, or of the estimate, is still due."""

FAR = 6.0  # from here on the continued fraction for Mills' ratio is more exact than `erfc`


def mean_residual(done: float, mean: float, q90: float) -> float:
    """Return the expected tokens still to come, of `mean` expected and `done` so far.

    `q90` is the 90 % quantile of the length. If it is 0 (unknown), the result is mean - done, and at least a
    tenth of either.
    """
    if done <= 0.0 or mean <= 0.0:
        return max(mean, 0.0)
    if q90 <= 0.0:
        return max(mean - done, MIN_SHARE * max(done, mean))
    sigma = max(sigma_of(mean, q90), MIN_SIGMA)
    far = log(done / mean) / sigma + sigma / 2.0  # (ln done - mu) / sigma, with mu = ln mean - sigma^2 / 2
    if far < -FAR:
        return mean - done
    # E[X | X > done] = mean Phi(sigma - far) / Phi(-far), and mean phi(far - sigma) = done phi(far)
    return done * (mills(far - sigma) / mills(far) - 1.0)


def residual_quantile(done: float, mean: float, q90: float, share: float) -> float:
    """Return what a share of answers have still to come at most, of `mean` expected and `done` so far."""
    if mean <= 0.0:
        return 0.0
    sigma = max(sigma_of(mean, q90), MIN_SIGMA)
    middle = log(mean) - sigma * sigma / 2.0
    far = max((log(done) - middle) / sigma, -FAR) if done > 0.0 else -FAR
    wanted, z = _log_beyond(far) + log(1.0 - share), max(far, 0.0)
    for _ in range(8):  # Newton's method: the logarithm is concave
        z += (_log_beyond(z) - wanted) * mills(z)
    return max(exp(middle + sigma * z) - done, 0.0)


def _log_beyond(x: float) -> float:
    """Return log P(Z > x), less a constant."""
    return log(mills(x)) - x * x / 2.0


def sigma_of(mean: float, q90: float) -> float:
    """Return the sigma of a log-normal of this mean and 90 % quantile.

    ln(q90 / mean) = Z90 sigma - sigma^2 / 2 has no solution beyond q90 = 2.27 mean, where sigma is Z90.
    """
    return Z90 - sqrt(max(Z90 * Z90 - 2.0 * log(max(q90 / mean, 1.0)), 0.0))


def mills(x: float) -> float:
    """Return Mills' ratio of the standard normal distribution, P(Z > x) / density(x)."""
    if x < FAR:
        return sqrt(pi / 2.0) * exp(x * x / 2.0) * erfc(x / sqrt(2.0))
    fraction = x
    for k in range(16, 0, -1):
        fraction = x + k / fraction
    return 1.0 / fraction


FIRST = float("-inf")  # the rank of a promoted job: before every priority that a client can set


class Reason(StrEnum):
    """Why a job was started."""

    POLICY = "policy"
    TAU = "tau"
    PROMOTED = "promoted"


class MoveKind(StrEnum):
    SUBMITTED = "submitted"
    PROMOTED = "promoted"
    HELD = "held"
    RELEASED = "released"
    REPRIORITISED = "reprioritised"
    DISPATCHED = "dispatched"
    PREEMPTED = "preempted"
    RETURNED = "returned"
    REESTIMATED = "prediction updated"
    URGENCY = "urgency"
    CAME_FORWARD = "came forward"


@dataclass(frozen=True, slots=True)
class Move:
    at_s: float
    kind: MoveKind
    note: str = ""


class PromptRead(NamedTuple):
    """Of a prompt that is being read: the seconds read, and those until its slot is free once preempted."""

    read_s: float
    stops_s: float


class Thought(NamedTuple):
    """The thinking of a job, once it is over: its tokens, the tokens expected of the answer after it, and
    their upper quantile.
    """

    tokens: float
    answer_tokens: float
    answer_q90: float


@dataclass(slots=True, eq=False, repr=False)
class Job:
    """A request in the queue, in a slot, or over. The scheduler sets all that is not known at its arrival.

    Times are seconds on the caller's clock. Seconds of a preemption are named after what they are spent on.
    """

    # What was asked.
    id: str
    arrival_s: float
    p_long: float = 0.5  # the paper's key (Clairvoyant, section 3.4)
    cost_s: float = 0.0  # the predicted service time, less the prefill that a KV cache saves
    tokens: float = 0.0  # the expected answer length
    prompt_tokens: float = 0.0
    client: str = ""
    model: str = ""
    affinity: str = ""  # what must be loaded to run it: model and runner options
    pinned: str = ""  # the only server that may run it, "" for any
    priority: int = 0  # set by the client, lower is sooner
    urgency: int | None = None  # a level, 0 the most urgent
    tokens_q90: float = 0.0  # the upper quantile of `tokens`, 0 if the spread is unknown
    able: frozenset[str] = frozenset()  # the servers that can run it, empty for all
    urgency_by: str = ""  # the source of its level: `urgency.UrgencySource`
    prefix: Chain = NO_CHAIN  # its conversation
    session: str = ""
    claimed: str = ""  # the session id that its client claims, as a hash
    parent: str = ""  # the parent session that its client claims, likewise
    agentic: bool = False  # it uses tools
    program: str = ""  # its client's program
    saved_s: float = 0.0  # the prefill that a KV cache saves
    background_levels: int = 0  # priority levels that it waits behind interactive jobs, until past tau
    chore: bool = False  # nobody waits for it, as the request itself says
    not_before_s: float = 0.0  # its earliest start, unless it is promoted

    # Its place in the queue.
    seq: int = 0
    rank: float = 0.0  # the client's priority behind the levels, or FIRST once promoted
    key: float = 0.0  # orders equal ranks
    share_key: float = 0.0  # orders it among the first jobs of other clients, where a policy is fair
    queued_s: float = 0.0  # when it last joined the queue; its age counts from its arrival
    levels_at_arrival: int = 0  # of the background
    by_operator: bool = False  # the operator set its rank
    held: bool = False
    parked: bool = False  # its session waits for its turn

    # Its runs so far.
    run: "Run | None" = None  # the last one; None while it waits
    served_s: float = 0.0  # slot time of earlier runs
    done_tokens: float = 0.0
    read_s: float = 0.0  # of its prompt, whose reading goes on, or was preempted
    owed_s: float = 0.0  # still due since the last preemption
    preemptions: int = 0
    thought: Thought | None = None
    moves: list[Move] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    @property
    def ready(self) -> bool:
        """Whether it could start if it waits: it is neither held nor parked."""
        return not (self.held or self.parked)

    @property
    def promoted(self) -> bool:
        return self.rank == FIRST

    @property
    def interactive(self) -> bool:
        """Whether a person waits for it: it is not, and never was, a background job."""
        return not self.levels_at_arrival

    @property
    def own_rank(self) -> int:
        """Its rank before any policy, tau or operator: the lowest goes first."""
        return self.priority + self.background_levels

    @property
    def remaining_s(self) -> float:
        """Predicted seconds of service still due, including `owed_s`.

        They grow again for an answer that outlives its prediction (mean residual life).
        """
        if self.done_tokens <= 0.0 or self.tokens <= 0.0:
            return mean_residual(self.read_s, self.cost_s, 0.0) + self.owed_s
        thought, tokens, q90 = self.lengths
        left = mean_residual(self.done_tokens - thought, tokens, q90)
        return self.cost_s * left / self.tokens + self.owed_s

    @property
    def lengths(self) -> tuple[float, float, float]:
        """The tokens of its thinking that are over, those expected after it, and their upper quantile."""
        return self.thought or (0.0, self.tokens, self.tokens_q90)

    def saves(self, more_s: float) -> None:
        """Leave more prefill out of its costs, or less if negative."""
        self.saved_s += more_s
        self.cost_s = max(self.cost_s - more_s, 0.0)

    def run_by(self, able: frozenset[str]) -> None:
        """Let these servers run it, all if empty; a pin to another is dropped."""
        self.able = able
        if able and self.pinned not in able:
            self.pinned = ""


@dataclass(slots=True, eq=False)
class Run:
    """One use of a slot by a job: the decision to start it, and what is known of it from then on."""

    job: Job
    server_id: str
    reason: Reason
    started_s: float
    slice_start_tokens: float  # `Job.done_tokens` when it started
    began_s: float = 0.0  # from here on it, or its answer after its thinking, should take `expected_s`
    expected_s: float = 0.0
    upper_s: float = 0.0  # the upper quantile of `expected_s`, 0 if unknown
    pace: float = 1.0  # its server takes this many times as long as the job's cost says
    expected_cache: Expected = NOTHING  # what its server should have of the prompt
    # What a preemption now would cost.
    resume_s: float = 0.0  # to resume it later
    evicts_s: float = 0.0  # for jobs whose contexts it would evict
    stops_s: float | None = None  # until its slot is free; None unless it may be preempted while it is read
    spared: bool = False  # it is not preempted
    ended_s: float | None = None  # when its slot fell free

    @property
    def kept_tokens(self) -> float:
        """Tokens that survive a preemption now: of its answer, or else of its prompt."""
        job = self.job
        if job.done_tokens or not job.cost_s:
            return job.done_tokens
        return job.prompt_tokens * min(max(job.read_s - self.resume_s, 0.0) / job.cost_s, 1.0)

    def expect(self, expected_s: float, now: float) -> None:
        """Expect what it does from now on to take `expected_s`."""
        _, tokens, q90 = self.job.lengths
        self.began_s, self.expected_s = now, expected_s
        self.upper_s = expected_s * q90 / tokens if tokens > 0.0 else 0.0

    def left_s(self, now: float | None = None) -> float:
        """Return the expected seconds until it ends: by its age at `now`, or without by the tokens last
        reported.
        """
        if now is None:
            return self.pace * self.job.remaining_s
        return mean_residual(now - self.began_s, self.expected_s, self.upper_s)


class Terms(NamedTuple):
    """Which client a job belongs to, and the priority and background levels that it has as its job."""

    client: str
    priority: int
    background_levels: int


class Estimates(TypedDict):
    """The predicted fields of a job; see `Job`."""

    p_long: float
    cost_s: float
    tokens: float
    tokens_q90: float


class QueueFullError(Exception):
    """The queue is full; the new job was not taken."""


class ClientFullError(QueueFullError):
    """The client has reached its queue limit; the new job was not taken."""
