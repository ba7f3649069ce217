"""A request as the scheduler sees it, and what is said of it: numbers and names, no text, no sockets."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypedDict

from clairvoyant_cli.scheduler.prefixes import Chain


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of a request when it joins the queue. Times are seconds on the caller's clock.

    `p_long` is the paper's key (Clairvoyant, section 3.4). `cost_s` is the predicted service time and
    `cost_high_s` its upper quantile; `tokens` is the expected answer length and `tokens_q90` its upper
    quantile, 0 where the spread is not known. `affinity` names what must be resident to run it (model and
    runner options); `worker` pins it to one backend, "" lets any take it. `urgency` is a level, 0 the most
    urgent, None where nobody said; `urgency_by` is who said so (`urgency.Said`). `priority` is the client's
    own wish, lower is sooner, 0 the default. `able` names the workers that can run it, none: all can.
    `prefix` tells the conversation it goes on with. `stands_back` are levels of priority that it waits
    behind others of its own, until it has waited for tau. `not_before_s` is the earliest time that it starts,
    unless it is promoted.
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
    prefix: Chain = ()
    stands_back: int = 0
    not_before_s: float = 0.0

    @property
    def rank(self) -> float:
        """What comes before any policy: the lowest goes first."""
        return float(self.priority + self.stands_back)

    def run_by(self, able: frozenset[str]) -> "Job":
        """Return it as these workers can run it, all if none is named: it waits for no other any more."""
        pinned = self.worker if not able or self.worker in able else ""
        return replace(self, able=able, worker=pinned)


class Estimates(TypedDict):
    """What of a job is predicted, and may be predicted anew; see `Job`."""

    p_long: float
    cost_s: float
    cost_high_s: float
    tokens: float
    tokens_q90: float


class Reason(StrEnum):
    """Why a job was the next to run."""

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
    """A decision for a backend that can carry it out: stop this job on this worker, then `requeue` it."""

    job_id: str
    worker: str


class MoveKind(StrEnum):
    """What happened to a job on its way through the queue."""

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
    """One entry of a job's history in the queue."""

    at_s: float
    kind: MoveKind
    note: str = ""


class QueueFullError(Exception):
    """The queue is full and nobody gives way; the job was not taken."""


class ClientFullError(QueueFullError):
    """The client has as many jobs waiting as it may have; the job was not taken."""
