"""The state of a job in the queue: the job itself and everything about it that changes."""

from dataclasses import dataclass, field
from typing import NamedTuple

from clairvoyant_cli.scheduler.conversation_cache import NOTHING, Expected
from clairvoyant_cli.scheduler.job import Job, Move, Reason
from clairvoyant_cli.scheduler.residual_life import mean_residual

FIRST = float("-inf")
"""The rank of a promoted job: before every priority that a client can set."""


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


class LaneId(NamedTuple):
    """What distinguishes lanes: workers, affinity, a client with its own rules.

    `worker` is the one that its jobs are pinned to; without it, any of `able`, or any at all if that is
    empty.
    """

    worker: str
    affinity: str
    client: str
    able: frozenset[str] = frozenset()

    @property
    def pinned_to(self) -> str:
        """The only worker that can run these jobs, "" if there are several."""
        return self.worker or (next(iter(self.able)) if len(self.able) == 1 else "")


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job in the queue. Heap items with an older `version` than the entry's are dead.

    `rank` is the client's priority, or FIRST once promoted (`by_operator`: set by the operator); `key` orders
    equal ranks. `queued_s` is when it last joined the queue, by arrival or preemption; its age counts from
    its arrival. `usage_s` is the client's decayed service per weight when it was submitted and charged, at
    `charged_s`. `served_s` is the slot time of earlier runs, `slice_start_tokens` the progress when this run
    started. `expected_s` is the predicted duration, from `began_s` on, of this run, or of its answer once it
    has stopped thinking (`thought`), and `upper_s` its upper quantile, 0 if unknown. Its worker takes `pace`
    times as long for it as its cost says. Seconds of a preemption: `resume_s` to resume it, `evicts_s` for
    jobs whose contexts would be evicted, `owed_s` still due since the last cut, `stops_s` until its slot is
    free, None unless it may be cut while its prompt is read, of which `read_s` are done. `cuts` counts
    preemptions; a `spared` run is not cut. `behind` is the number of background levels, kept when it is
    promoted from the background. `parked`: its session waits for its turn. `expected` is what its server
    should have of its prompt. `lane` is None while it is held, parked or runs; `routed` is the worker that a
    routing policy chose.
    """

    job: Job
    seq: int
    rank: float
    queued_s: float
    usage_s: float = 0.0
    charged_s: float = 0.0
    key: float = 0.0
    by_operator: bool = False
    held: bool = False
    version: int = 0
    lane: LaneId | None = None
    routed: str = ""
    worker: str = ""
    reason: Reason = Reason.POLICY
    started_s: float = 0.0
    began_s: float = 0.0
    expected_s: float = 0.0
    upper_s: float = 0.0
    pace: float = 1.0
    served_s: float = 0.0
    done_tokens: float = 0.0
    slice_start_tokens: float = 0.0
    resume_s: float = 0.0
    evicts_s: float = 0.0
    owed_s: float = 0.0
    read_s: float = 0.0
    stops_s: float | None = None
    cuts: int = 0
    behind: int = 0
    spared: bool = False
    parked: bool = False
    expected: Expected = NOTHING
    thought: Thought | None = None
    moves: list[Move] = field(default_factory=list)

    @property
    def place(self) -> tuple[float, float, int]:
        """What orders it among the waiting, were none to age: the lowest starts first."""
        return self.rank, self.key, self.seq

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


Standing = tuple[float, float, int, QueuedJob]
"""What orders a job at this moment (rank, key, sequence), and the job."""


class Choice(NamedTuple):
    """A job that could start, and its order among the choices of other workers."""

    order: Standing
    entry: QueuedJob
    reason: Reason
