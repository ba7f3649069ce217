"""A scheduled request from arrival to end, and the record it leaves."""

import asyncio
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING

from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Route, Work
from clairvoyant_cli.protocols.usage import AnswerWatch, Totals
from clairvoyant_cli.scheduler.job import Dispatch, Job, Move
from predictor.record import Prediction
from tui.snapshot import PredictionState

if TYPE_CHECKING:
    from clairvoyant_cli.http.upstream import UpstreamConnection


class Phase(StrEnum):
    """Where a request is. It only ever moves down this list, but back to the queue if it was never sent."""

    QUEUED = "queued"
    CONNECTING = "connecting"
    PREFILL = "prefill"
    DECODING = "decoding"
    RELEASING = "releasing"
    ENDED = "ended"


class Outcome(StrEnum):
    """How a request ended; each ends exactly once."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    UPSTREAM_ERROR = "upstream_error"
    REJECTED = "rejected"
    TIMEOUT = "timeout"


class OperatorCancelledError(Exception):
    """An operator took the request out of the queue, or stopped it."""


class DisplacedError(Exception):
    """The queue is full, and the request gave way to another."""


class DrainingError(Exception):
    """The daemon is going down; what still waits is sent away."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One scheduled request. Times are seconds on the event loop's clock."""

    job: Job
    route: Route
    endpoint: str
    parsed: ParsedRequest
    prediction: Prediction
    granted: "asyncio.Future[Dispatch]"
    prompt: str | None = None
    phase: Phase = Phase.QUEUED
    dispatch: Dispatch | None = None
    dispatched_s: float | None = None
    first_byte_s: float | None = None
    not_ready_s: float | None = None
    ended_s: float | None = None
    watch: AnswerWatch | None = None
    totals: Totals = field(default_factory=Totals)
    moves: tuple[Move, ...] = ()
    status: int = 0
    outcome: Outcome | None = None
    connection: "UpstreamConnection | None" = None
    task: "asyncio.Task[None] | None" = None
    stopped_by_operator: bool = False
    predicted_in_s: float = 0.0
    is_explained: bool = False
    slot: int | None = None
    _prediction_state: PredictionState | None = None

    @property
    def prediction_state(self) -> PredictionState:
        """What was predicted, as the front ends want it; made once, drawn in every snapshot."""
        if self._prediction_state is None:
            prediction = self.prediction
            self._prediction_state = PredictionState(
                length_class=prediction.length_class.value,
                p_short=prediction.p_short,
                p_medium=prediction.p_medium,
                p_long=prediction.p_long,
                expected_tokens=prediction.expected_tokens,
                q90_tokens=prediction.q90_tokens,
                source=prediction.source,
            )
        return self._prediction_state

    def explained(self, features: tuple[tuple[str, float], ...]) -> None:
        """Keep what drove the prediction, for the front ends."""
        self._prediction_state = replace(self.prediction_state, features=features)
        self.is_explained = True

    def shed(self) -> None:
        """Let go of the request's and the answer's text; only numbers are remembered of what has ended."""
        self.parsed = replace(self.parsed, view=None)
        self.watch = None
        self.prompt = None
        self.task = None

    def wait_again(self) -> None:
        """Go back to the queue: it was granted a slot and could not be sent."""
        self.granted = asyncio.get_running_loop().create_future()
        self.phase = Phase.QUEUED
        self.dispatch = None
        self.dispatched_s = None
        self.connection = None
        self.slot = None

    @property
    def id(self) -> str:
        """The request's id, the same in logs, headers and snapshots."""
        return self.job.id

    @property
    def tokens(self) -> int:
        """Tokens so far, by counting the stream's events."""
        return self.watch.events if self.watch is not None else 0

    def generated(self, now: float) -> int:
        """Return the tokens of the answer; of one that was given up, those so far.

        Where the backend did not tell (the answer is too long to be read, or in a coding) its events are
        counted; where it did not stream, its time, at the speed that was predicted.
        """
        if self.dispatched_s is None or self.route.work is not Work.GENERATE:
            return 0
        if self.watch is not None and not self.watch.is_answer:
            return 0
        told = self.totals.tokens if self.totals.complete else None
        if told or self.tokens:
            return told or self.tokens
        share = (now - self.dispatched_s) / self.job.cost_s if self.job.cost_s > 0 else 1.0
        if self.outcome is Outcome.CLIENT_CANCELLED:
            share = min(1.0, share)  # no longer than it was predicted to take: the backend may have been slow
        elif self.outcome is not Outcome.COMPLETED:
            return 0
        return ceil(self.job.tokens * share)

    def waited_s(self, now: float) -> float:
        """Seconds spent in the queue up to now."""
        return (self.dispatched_s or self.ended_s or now) - self.job.arrival_s

    def sojourn_s(self, now: float) -> float:
        """Seconds since arrival, queue and service together."""
        return (self.ended_s or now) - self.job.arrival_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the answer's first byte of body."""
        return None if self.first_byte_s is None else self.first_byte_s - self.job.arrival_s
