"""What the replay engine writes down of every request."""

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Service:
    """One request in the journal; times are seconds on the event loop's clock.

    `start_order` counts from 0 in the order slots were taken. `tokens` is what has been sent so far, of
    `planned_tokens`; `prompt_tokens` is an estimate of four characters a token, and holds the `said_tokens`
    with which an answer that was cut is taken up again. `words` names the answer's words: those that the
    prompt has, or others if its answer does not begin with what was said.
    """

    route: str
    digest: str
    prompt_tokens: int
    planned_tokens: int
    arrived_s: float
    capped: bool = False
    said_tokens: int = 0
    words: str = ""
    start_order: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    outcome: Outcome = Outcome.WAITING


@dataclass(slots=True)
class Counts:
    """How many requests have come how far, ever."""

    arrived: int = 0
    started: int = 0
    first_token: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0

    @property
    def ended(self) -> int:
        """Requests that are over, however they went."""
        return self.completed + self.cancelled + self.failed
