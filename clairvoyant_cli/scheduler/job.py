"""A request as the scheduler sees it: numbers and names, no text, no sockets."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypedDict

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain


@dataclass(frozen=True, slots=True)
class Job:
    """A request as it joins the queue. Times are seconds on the caller's clock."""

    id: str
    arrival_s: float
    p_long: float = 0.5  # the paper's key (Clairvoyant, section 3.4)
    cost_s: float = 0.0  # the predicted service time
    cost_high_s: float = 0.0  # its upper quantile
    tokens: float = 0.0  # the expected answer length
    prompt_tokens: float = 0.0
    client: str = ""
    model: str = ""
    affinity: str = ""  # what must be loaded to run it: model and runner options
    worker: str = ""  # the one that it is pinned to, "" for any
    priority: int = 0  # set by the client, lower is sooner
    urgency: int | None = None  # a level, 0 the most urgent
    tokens_q90: float = 0.0  # the upper quantile of `tokens`, 0 if the spread is unknown
    able: frozenset[str] = frozenset()  # the workers that can run it, empty for all
    urgency_by: str = ""  # the source of its level: `urgency.Said`
    prefix: Chain = NO_CHAIN  # its conversation
    session: str = ""
    claimed: str = ""  # the session id that its client claims, as a hash
    parent: str = ""  # the parent session that its client claims, likewise
    agentic: bool = False  # it uses tools
    program: str = ""  # its client's program
    saved_s: float = 0.0  # the prefill that a KV cache saves, not included in its costs
    stands_back: int = 0  # priority levels that a background job waits behind others, until past tau
    not_before_s: float = 0.0  # its earliest start, unless it is promoted

    @property
    def rank(self) -> float:
        """The order before any policy: the lowest goes first."""
        return float(self.priority + self.stands_back)

    def run_by(self, able: frozenset[str]) -> "Job":
        """Return the job as one that these workers can run, all if empty; a pin to another is dropped."""
        pinned = self.worker if not able or self.worker in able else ""
        return replace(self, able=able, worker=pinned)


class Estimates(TypedDict):
    """The predicted fields of a job; see `Job`."""

    p_long: float
    cost_s: float
    cost_high_s: float
    tokens: float
    tokens_q90: float


class Reason(StrEnum):
    """Why a job was started."""

    POLICY = "policy"
    TAU = "tau"
    PROMOTED = "promoted"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A decision: run this job on this worker now. `waited_s` counts from when it last joined the queue."""

    job: Job
    worker: str
    reason: Reason
    waited_s: float


@dataclass(frozen=True, slots=True)
class Preempt:
    """A decision: stop this job on this worker, then `requeue` it."""

    job_id: str
    worker: str


class MoveKind(StrEnum):
    SUBMITTED = "submitted"
    PROMOTED = "promoted"
    HELD = "held"
    RELEASED = "released"
    REPRIORITISED = "reprioritised"
    DISPATCHED = "dispatched"
    PREEMPTED = "preempted"
    RETURNED = "returned"
    REESTIMATED = "reestimated"
    URGENCY = "urgency"
    CAME_FORWARD = "came forward"


@dataclass(frozen=True, slots=True)
class Move:
    at_s: float
    kind: MoveKind
    note: str = ""


class QueueFullError(Exception):
    """The queue is full; the new job was not taken."""


class ClientFullError(QueueFullError):
    """The client has reached its queue limit; the new job was not taken."""
