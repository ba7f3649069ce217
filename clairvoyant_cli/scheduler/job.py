"""A request as the scheduler sees it: numbers and names, no text, no sockets."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypedDict

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain


@dataclass(frozen=True, slots=True)
class Job:
    """A request as it joins the queue. Times are seconds on the caller's clock.

    `p_long` is the paper's key (Clairvoyant, section 3.4). `cost_s` is the predicted service time and
    `cost_high_s` its upper quantile; `tokens` is the expected answer length and `tokens_q90` its upper
    quantile, 0 if the spread is unknown. `affinity` names what must be loaded to run it (model and runner
    options); `worker` pins it to one worker, "" means any; `able` names the workers that can run it, empty
    means all. `urgency` is a level, 0 the most urgent, None if unset, and `urgency_by` its source
    (`urgency.Said`). `priority` is set by the client, lower is sooner. `prefix` identifies the conversation
    and `session` its session; `claimed` and `parent` are the session ids that the client claims, as hashes;
    `agentic`: it uses tools; `program` names the client's program. `saved_s` is the prefill that a KV cache
    saves, not included in its costs.
    `stands_back` is the number of priority levels that a background job waits behind others, until it has
    waited for tau. `not_before_s` is its earliest start, unless it is promoted.
    """

    id: str
    arrival_s: float
    p_long: float = 0.5
    cost_s: float = 0.0
    cost_high_s: float = 0.0
    tokens: float = 0.0
    prompt_tokens: float = 0.0
    client: str = ""
    model: str = ""
    affinity: str = ""
    worker: str = ""
    priority: int = 0
    urgency: int | None = None
    tokens_q90: float = 0.0
    able: frozenset[str] = frozenset()
    urgency_by: str = ""
    prefix: Chain = NO_CHAIN
    session: str = ""
    claimed: str = ""
    parent: str = ""
    agentic: bool = False
    program: str = ""
    saved_s: float = 0.0
    stands_back: int = 0
    not_before_s: float = 0.0

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
