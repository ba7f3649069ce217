"""What the replay engine writes down of every request, and what it was told to do wrong."""

from dataclasses import dataclass
from enum import StrEnum

TOLD_TO_FAIL = "the replay backend was told to fail"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request.

    `status` answers with this HTTP error instead of generating; `die_after_tokens` breaks the connection
    after so many tokens, with no ending; `first_byte_delay_s` is added before the first token.
    """

    status: int | None = None
    message: str = TOLD_TO_FAIL
    die_after_tokens: int | None = None
    first_byte_delay_s: float = 0.0


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
    `planned_tokens`; `prompt_tokens` is an estimate of four characters a token.
    """

    route: str
    digest: str
    prompt_tokens: int
    planned_tokens: int
    arrived_s: float
    fault: Fault
    capped: bool = False
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
