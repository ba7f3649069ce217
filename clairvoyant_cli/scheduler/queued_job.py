"""The state of a job in the queue: the job itself and everything about it that changes."""

from dataclasses import dataclass, field
from typing import NamedTuple

from clairvoyant_cli.scheduler.job import Job, Move, Reason
from clairvoyant_cli.scheduler.residual_life import mean_residual
from clairvoyant_cli.scheduler.server_cache import NOTHING, Expected

FIRST = float("-inf")  # the rank of a promoted job: before every priority that a client can set


class Prefill(NamedTuple):
    """Of a prompt that is being read: the seconds read, and those until the slot is free after a cut."""

    read_s: float
    stops_s: float


class Thought(NamedTuple):
    """The thinking of a job, once it is over: its tokens, the tokens expected of the answer after it, and
    their upper quantile.
    """

    tokens: float
    answer_tokens: float
    answer_q90: float


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job in the queue or in a slot. Seconds of a preemption are named after what they are spent on."""

    job: Job
    seq: int
    rank: float  # the client's priority, or FIRST once promoted
    queued_s: float  # when it last joined the queue; its age counts from its arrival
    usage_s: float = 0.0  # its client's decayed service per weight when it was submitted
    charged_s: float = 0.0  # when its client was charged
    key: float = 0.0  # orders equal ranks
    by_operator: bool = False  # the operator set its rank
    held: bool = False
    parked: bool = False  # its session waits for its turn
    routed: str = ""  # the worker that a routing policy chose
    worker: str = ""
    reason: Reason = Reason.POLICY
    started_s: float = 0.0
    began_s: float = 0.0  # from here on this run, or its answer after its thinking, should take `expected_s`
    expected_s: float = 0.0
    upper_s: float = 0.0  # the upper quantile of `expected_s`, 0 if unknown
    pace: float = 1.0  # its worker takes this many times as long as its cost says
    served_s: float = 0.0  # slot time of earlier runs
    done_tokens: float = 0.0
    slice_start_tokens: float = 0.0  # `done_tokens` when this run started
    resume_s: float = 0.0  # to resume it after a cut now
    evicts_s: float = 0.0  # for jobs whose contexts a cut now would evict
    owed_s: float = 0.0  # still due since the last cut
    read_s: float = 0.0  # of its prompt, which is still being read
    stops_s: float | None = None  # until its slot is free; None unless it may be cut while its prompt is read
    cuts: int = 0
    behind: int = 0  # background levels, kept when it is promoted from the background
    spared: bool = False  # this run is not cut
    expected: Expected = NOTHING  # what its server should have of its prompt
    thought: Thought | None = None
    moves: list[Move] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether it could start if it waits: it is neither held nor parked."""
        return not (self.held or self.parked)

    @property
    def pinned_to(self) -> str:
        """The only worker that can run it, "" if there are several."""
        job = self.job
        return job.worker or self.routed or (next(iter(job.able)) if len(job.able) == 1 else "")

    @property
    def promoted(self) -> bool:
        return self.rank == FIRST

    @property
    def waited_for(self) -> bool:
        """Whether a person waits for it: it is not, and never was, a background job."""
        return not self.behind

    @property
    def kept_tokens(self) -> float:
        """Tokens that survive a cut now: of its answer, or else of its prompt."""
        job = self.job
        if self.done_tokens or not job.cost_s:
            return self.done_tokens
        return job.prompt_tokens * min(max(self.read_s - self.resume_s, 0.0) / job.cost_s, 1.0)

    @property
    def size_s(self) -> float:
        """Predicted seconds of service in total, at least those already received."""
        job = self.job
        return job.cost_s * max(self.done_tokens / job.tokens, 1.0) if job.tokens > 0.0 else job.cost_s

    @property
    def remaining_s(self) -> float:
        """Predicted seconds of service still due, including `owed_s`.

        They grow again for an answer that outlives its prediction (mean residual life).
        """
        job = self.job
        if self.done_tokens <= 0.0 or job.tokens <= 0.0:
            return mean_residual(self.read_s, job.cost_s, 0.0) + self.owed_s
        thought, tokens, q90 = self.lengths
        left = mean_residual(self.done_tokens - thought, tokens, q90)
        return job.cost_s * left / job.tokens + self.owed_s

    @property
    def lengths(self) -> tuple[float, float, float]:
        """The tokens of its thinking that are over, those expected after it, and their upper quantile."""
        return self.thought or (0.0, self.job.tokens, self.job.tokens_q90)

    def expect(self, expected_s: float, now: float) -> None:
        """Expect what a running job does from now on to take `expected_s`."""
        _, tokens, q90 = self.lengths
        self.began_s, self.expected_s = now, expected_s
        self.upper_s = expected_s * q90 / tokens if tokens > 0.0 else 0.0

    def left_s(self, now: float | None = None) -> float:
        """Return the expected seconds until a running job ends on its worker: by its age at `now`, or without
        by the tokens last reported.
        """
        if now is None:
            return self.pace * self.remaining_s
        return mean_residual(now - self.began_s, self.expected_s, self.upper_s)
