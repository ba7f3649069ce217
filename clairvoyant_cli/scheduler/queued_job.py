"""A job on its way through the queue: the job itself and all that changes about it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from clairvoyant_cli.scheduler.job import Job, Move, Reason
from clairvoyant_cli.scheduler.residual_life import mean_residual

FIRST = float("-inf")
"""The rank of a promoted job: before every priority a client may wish for."""


class LaneId(NamedTuple):
    """What sets jobs apart: where they may run, what they need loaded, whose special rules, which band.

    `worker` is the one that they are pinned to; without, it is any of `able`, or any at all.
    """

    worker: str
    affinity: str
    client: str
    band: int
    able: frozenset[str] = frozenset()

    @property
    def pinned_to(self) -> str:
        """The one worker that can have them, "" where there is more than one."""
        return self.worker or (next(iter(self.able)) if len(self.able) == 1 else "")


@dataclass(slots=True, eq=False)
class Entry:
    """A job in the queue. Heap items made before a change carry an older `version` and count no more.

    `rank` is the client's priority, or FIRST once the operator has promoted the job; `by_operator` says that
    the operator has set it; `key` orders equals. `queued_s` is when it last joined the queue: its arrival, or
    its preemption; its age counts from its arrival all the same. `usage_s` is what its client had been
    served, in decayed seconds for its weight, when it was submitted and charged for, at `charged_s`.
    `served_s` is the time it has held a slot in earlier runs, `slice_start_tokens` its progress when this run
    started, `resume_s` what resuming it would cost were it cut now, `evicts_s` what that would cost others
    whose contexts would go for its own, and `owed_s` what resuming costs since it was cut, until it has been
    paid. `cuts` counts how often it was cut; `spared` says that this run will not be. `behind` are the levels
    that it stands back, or did before it came forward. `lane` is where it waits, None while it is held or
    runs; `routed` names the worker that a policy which routes has it wait at.
    `expected_s` is what it was predicted to take on its worker when it started there.
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
    expected_s: float = 0.0
    served_s: float = 0.0
    done_tokens: float = 0.0
    slice_start_tokens: float = 0.0
    resume_s: float = 0.0
    evicts_s: float = 0.0
    owed_s: float = 0.0
    cuts: int = 0
    behind: int = 0
    spared: bool = False
    moves: list[Move] = field(default_factory=list)

    @property
    def promoted(self) -> bool:
        """Whether the operator has put it before all others."""
        return self.rank == FIRST

    @property
    def waited_for(self) -> bool:
        """Whether somebody waits for it: it neither stands back nor did so before it came forward."""
        return not self.behind

    @property
    def size_s(self) -> float:
        """Predicted seconds of service in all, or what it has had of them if that is more."""
        job = self.job
        return job.cost_s * max(self.done_tokens / job.tokens, 1.0) if job.tokens > 0.0 else job.cost_s

    @property
    def remaining_s(self) -> float:
        """Predicted seconds of service still due, what resuming it costs included; of an answer that outlives
        its prediction they grow again.
        """
        job = self.job
        if self.done_tokens <= 0.0 or job.tokens <= 0.0:
            return job.cost_s + self.owed_s
        left = mean_residual(self.done_tokens, job.tokens, job.tokens_q90)
        return job.cost_s * left / job.tokens + self.owed_s


Standing = tuple[float, float, int, Entry]
"""What orders a job at this moment (rank, key, sequence), and the job."""


class Choice(NamedTuple):
    """A job that could start, and where it stands among what other workers could start."""

    order: Standing
    entry: Entry
    reason: Reason
