"""A request that has ended, as one frozen record: what was asked, predicted and done, each computed once.

It is all that statistics, metrics, traces, history and learning are told of an end.
"""

from enum import StrEnum

import msgspec

from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.usage import Totals
from predictor.record import UNKNOWN, Prediction


class Outcome(StrEnum):
    """How a request ended; each ends exactly once."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    OPERATOR_CANCELLED = "operator_cancelled"
    UPSTREAM_ERROR = "upstream_error"
    REJECTED = "rejected"
    TIMEOUT = "timeout"


class PromptUse(msgspec.Struct, frozen=True):
    """How much of a prompt came from the server's KV cache, and how much was read, in tokens."""

    expected_cached_tokens: float = 0.0  # by the scheduler's account, when it was sent
    cached_tokens: int | None = None  # as the server told; None if it did not, or cannot have been right
    read_tokens: int | None = None  # likewise


class SlotUse(msgspec.Struct, frozen=True):
    """One use of a slot. Times are on the daemon's clock."""

    server_id: str = ""
    backend: str = ""  # the server's label
    provider: str = ""  # its kind
    address: tuple[str, int] | None = None
    slot: int | None = None
    reason: str = ""  # why it was started
    granted_s: float = 0.0
    expected_s: float | None = None  # the predicted service time
    first_byte_s: float | None = None
    ended_s: float = 0.0
    tokens: int = 0
    events: int = 0  # of the stream, that bring text
    dropped: str = ""  # why a router refused it
    worked: bool = False  # on the answer, or its prompt: the server neither refused it nor was away


NOWHERE = SlotUse()


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """An ended request. Times are on the daemon's clock where the name ends in `_s`."""

    # What was asked.
    id: str
    endpoint: str  # the name of its route
    shape: Shape
    model: str  # as the request names it, "" if it does not
    served_model: str  # that, or else its server's only model
    principal: str  # whose share it used
    client: str  # the displayed name of that
    program: str
    session: str
    claimed: str  # the session id that its client claims, as a hash
    prompt_hash: int | None  # of its whole prompt; None if unknown
    urgency: int | None
    urgency_by: str
    level: int  # its urgency, or the usual level
    interactive: bool
    stream: bool
    choices: int
    amount: float  # of sound or images, counted by `amount_kind`
    amount_kind: str
    has_media: bool
    traceparent: str
    body: str | None  # None unless prompts are recorded
    arrival_s: float
    was_queued: bool
    kept_age_s: float  # of the request that this one is again

    # What was predicted.
    prediction: Prediction
    predicted_class: str
    reasons: tuple[tuple[str, float], ...]
    predicted_in_s: float
    after_thinking: Prediction | None  # of the rest, once it had thought
    thought_tokens: int
    job_prompt_tokens: float

    # What was done.
    outcome: Outcome
    status: int
    ended_s: float
    finished_at: float  # the same in epoch seconds
    uses: tuple[SlotUse, ...]
    last: SlotUse  # the one that it had at its end, or NOWHERE
    waited_s: float
    sojourn_s: float
    service_s: float
    resumed_s: float  # for which its prompt was read again after preemptions
    ttft_s: float | None
    cuts: int  # preemptions; the published name
    repeats: int
    totals: Totals
    prompt: PromptUse
    tokens: int | None  # of the whole answer; None if it is not whole, or of unknown length
    length_class: str  # of that, "" if it is unknown
    counted_tokens: int  # from the events of the stream
    generated: int  # tokens of the answer as far as it came, estimated if need be
    counts: bool  # in comparisons: answered whole, of known length, and not in the background
    remark: str  # what was wrong with it, or was done to its prompt

    @property
    def figures(self) -> "Ended":
        """The record without what is large, to be kept for minutes."""
        return msgspec.structs.replace(self, prediction=UNKNOWN, after_thinking=None, reasons=(), body=None)

    def at(self, clock_s: float) -> float:
        """Convert a time of the daemon's clock to epoch seconds."""
        return self.finished_at - (self.ended_s - clock_s)
