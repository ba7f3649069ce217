"""The record of a scheduled request: what was asked, the attempts to answer it, and how it ended."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from clairvoyant_cli.http.upstream import UpstreamConnection, UpstreamError
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.protocols.routes import Route
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.protocols.usage import AnswerText, Totals, UsageReader
from clairvoyant_cli.proxy.queue.ended import Ended, Outcome, PromptUse
from clairvoyant_cli.scheduler.job import Job, Run
from predictor.record import Prediction

UNREAD = PromptUse()
Reasons = tuple[tuple[str, float], ...] | None


class Phase(StrEnum):
    """The phase of an attempt, which moves down this list."""

    CONNECTING = "connecting"
    PREFILL = "prefill"
    DECODING = "decoding"
    RELEASING = "releasing"  # its request has ended, and its server has not stopped yet


class AttemptEnd(StrEnum):
    """Why an attempt ended without ending its request."""

    UNREACHABLE = "unreachable"
    NOT_READY = "not_ready"
    PREEMPTED = "preempted"
    BROKEN = "broken"
    REFUSED = "refused"  # in a way that another server might not


PARTIAL = (AttemptEnd.PREEMPTED, AttemptEnd.BROKEN)
"""What ends an attempt that may have brought a part of the answer."""


class OperatorCancelledError(Exception):
    """The operator cancelled the request."""


class DisplacedError(Exception):
    """The queue is full, and the request was dropped for another."""


class DrainingError(Exception):
    """The daemon is shutting down; waiting requests are rejected."""


class OutageError(Exception):
    """Every backend has been down for longer than requests are kept."""


@dataclass(slots=True, eq=False)
class Asked:
    """A client's request and its prediction."""

    route: Route
    parsed: ParsedRequest
    prediction: Prediction
    predicted_in_s: float = 0.0
    prompt: str | None = None  # kept only if it may be shown
    shown_name: str = ""  # of the client; `Job.client` is the principal whose share it uses
    traceparent: str = ""  # the client's header, which names its trace
    body: bytes | None = None  # kept only if it is to be recorded


@dataclass(slots=True, eq=False)
class Attempt:
    """One use of a slot by a request. Times are on the daemon's clock."""

    run: Run  # the scheduler's record of it
    asked: Asked
    slot: int
    expected_s: float  # the predicted service time of the request, with that of its parts so far
    phase: Phase = Phase.CONNECTING
    connection: UpstreamConnection | None = None
    first_byte_s: float | None = None
    usage: UsageReader | None = None
    totals: Totals = field(default_factory=Totals)
    prompt: PromptUse = UNREAD  # once it has ended
    end: AttemptEnd | None = None  # None while it lasts, and for the attempt that ends its request
    is_being_preempted: bool = False  # it will stop at the next possible token
    part_tokens: int = 0
    priority: int | None = None  # sent to an engine that orders its own queue
    dropped: str = ""  # why the router that it was sent to refused it
    reread_tokens: int = 0  # of the prefill that appears to have been repeated
    server_gone: bool = False  # its server went down with it
    read_s: float | None = None  # how long its prompt was read until it was preempted
    follows_preemption_s: float | None = None  # when such a preemption freed its slot
    heard_s: float | None = None  # when it was sent or the last of its answer came; None until all was sent
    overdue_s: float | None = None  # since when it is overdue
    give_up: Callable[[UpstreamError], None] | None = None  # to try another server; None if that is not safe
    stop_reading: Callable[[], bool] | None = None  # preempts it; False if its client would notice

    @property
    def worked(self) -> bool:
        """Whether it works, or worked, on the answer or its prompt: it was neither refused nor not taken."""
        return self.end is None or self.end in PARTIAL

    @property
    def tokens(self) -> int:
        """Tokens so far, by counting the stream's events."""
        return self.usage.tokens if self.usage is not None else self.part_tokens


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How a request ended, its status and time."""

    outcome: Outcome
    status: int
    at_s: float


@dataclass(slots=True, eq=False)
class Exchange:
    """One scheduled request."""

    id: str  # that of its job, the same in logs, headers and snapshots
    job: Job  # what the scheduler orders
    asked: Asked
    granted: "asyncio.Future[None]"  # resolves when an attempt begins; replaced whenever it is requeued
    task: "asyncio.Task[None] | None" = None
    attempts: list[Attempt] = field(default_factory=list)
    attempt: Attempt | None = None  # the one that holds a slot, or was the last to; None while it waits
    end: RequestEnd | None = None
    ended: Ended | None = None  # its record, once it has one
    splice: Splice | None = None  # joins the parts of its answer; None if it must not be preempted
    not_preempted_because: str = ""  # why it must not
    only_as_asked: bool = False  # from now on only the client's own request may be sent for it
    stopped_by_operator: bool = False
    overran: bool = False  # its answer took longer than `max_answer_s`
    is_truncated: bool = False  # the server shortened its prompt
    kept_age_s: float = 0.0  # of the request that this one is again; `--max-wait` does not count it
    remark: str = ""  # what is wrong with it, for people
    answer: AnswerText | None = None  # the text so far, kept only if it may be shown
    reasons: Reasons = None  # for the prediction, once somebody looks
    thought_tokens: int = 0  # those before the answer, once it has stopped thinking
    after_thinking: Prediction | None = None  # of the rest

    @property
    def preempted(self) -> list[Attempt]:
        """The attempts that were preempted: each brought a part of the answer, or read some of the prompt."""
        return [attempt for attempt in self.attempts if attempt.end is AttemptEnd.PREEMPTED]

    @property
    def parts(self) -> list[Attempt]:
        """The attempts that were preempted or broke off."""
        return [attempt for attempt in self.attempts if attempt.end in PARTIAL]

    @property
    def totals(self) -> Totals:
        return NO_TOTALS if self.attempt is None else self.attempt.totals

    @property
    def first_byte_s(self) -> float | None:
        """When the first byte of the answer's body came."""
        for attempt in self.attempts:
            if attempt.first_byte_s is not None:
                return attempt.first_byte_s
        return None

    @property
    def repeats(self) -> int:
        """How many of its attempts broke off and were made again."""
        return sum(attempt.end is AttemptEnd.BROKEN for attempt in self.attempts)

    @property
    def has_begun(self) -> bool:
        """Whether it has a part of its answer that was read, from which it can go on."""
        return self.splice is not None and bool(self.splice.pieces)

    @property
    def is_suspended(self) -> bool:
        """Whether it has a part of its answer, and waits to go on."""
        return self.attempt is None and self.end is None and self.has_begun

    @property
    def is_put_off(self) -> bool:
        """Whether it was preempted and waits to go on, with a part of its answer or before any."""
        return self.attempt is None and self.end is None and (self.has_begun or bool(self.preempted))

    @property
    def tokens(self) -> int:
        return sum([attempt.tokens for attempt in self.attempts])

    @property
    def held_slots(self) -> list[Attempt]:
        """The attempts that did the work, the one that has or had it in the end among them."""
        return [attempt for attempt in self.attempts if attempt.worked]

    def service_s(self, now: float) -> float:
        """Seconds that it has held slots for its answer."""
        until_s = now if self.end is None else self.end.at_s
        held_s = 0.0
        for attempt in self.attempts:
            if attempt.worked:
                held_s += (attempt.run.ended_s or until_s) - attempt.run.started_s
        return held_s

    def wait_again(self, why: AttemptEnd) -> None:
        """Go back to the queue. An attempt of which nothing is kept has brought nothing."""
        attempt = self.attempt
        if attempt is not None:
            attempt.end = why
            attempt.connection = attempt.usage = attempt.give_up = attempt.stop_reading = None
            if self.splice is not None and self.has_begun:  # what came after the last piece is dropped
                attempt.part_tokens = self.splice.tokens - sum(part.part_tokens for part in self.attempts)
            else:
                attempt.first_byte_s = None
        if self.answer is not None:
            self.answer.go_back_to("" if self.splice is None else self.splice.said)
        self.attempt = None
        self.granted = asyncio.get_running_loop().create_future()

    def drop_text(self) -> None:
        """Drop the text of request and answer; ended requests keep numbers only."""
        self.asked.parsed.view = None
        self.asked.prompt = self.asked.body = None
        self.task = self.splice = self.answer = self.ended = None
        if self.attempt is not None:
            attempt = self.attempt
            attempt.connection = attempt.usage = attempt.give_up = attempt.stop_reading = None

    def waited_s(self, now: float) -> float:
        """Total seconds in the queue until now or its end."""
        return (now if self.end is None else self.end.at_s) - self.job.arrival_s - self.service_s(now)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first byte of the answer's body."""
        return None if (first_s := self.first_byte_s) is None else first_s - self.job.arrival_s


NO_TOTALS = Totals()
