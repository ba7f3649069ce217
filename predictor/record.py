"""The predictor's interface: a request as a proxy sees it, its prediction, and the `Predictor` class.

Rule 1: standard library only, so that importing this module imports neither numpy nor onnxruntime.
Rule 2: nothing downstream may depend on which model made a `Prediction`.
Rule 3: a `Prediction` holds no prompt text. What learning needs later is in `memo`, as hashes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from predictor.semantic.opinion import EncoderEstimate

SHORT_BELOW_TOKENS, LONG_FROM_TOKENS = 200, 800  # Clairvoyant, section 4.1

NO_THINKING = "off"  # of `PromptView.thinking`


class LengthClass(StrEnum):
    """The paper's three classes of answer length."""

    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"

    @classmethod
    def of(cls, tokens: float) -> "LengthClass":
        if tokens < SHORT_BELOW_TOKENS:
            return cls.SHORT
        return cls.MEDIUM if tokens < LONG_FROM_TOKENS else cls.LONG


class Task(StrEnum):
    CHAT = "chat"
    COMPLETION = "completion"
    INFILL = "infill"
    EMBEDDING = "embedding"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Turn:
    """One earlier message of a conversation."""

    role: str
    text: str
    cut: int = 0  # how many characters longer it is

    @property
    def characters(self) -> int:
        return len(self.text) + self.cut


@dataclass(frozen=True, slots=True)
class Chore:
    """A request that a front end sends by itself in fixed words, for instance for a title."""

    name: str
    tokens: float = 0.0  # a guess of the answer's length, 0 if there is none
    interactive: bool = False  # a user waits for the answer
    along: bool = False  # it is sent with a question, perhaps just before it


@dataclass(frozen=True, slots=True)
class Step:
    """The state of an agent's conversation; lengths are in characters."""

    new_characters: int = 0  # since the model's last answer: a tool's result, or a person's words
    is_result: bool = False
    failed: bool = False  # the result reads like an error
    answers: tuple[int, ...] = ()  # the latest answers with their calls, latest first
    tools: tuple[str, ...] = ()  # that each of these called, "" if none
    command: str = ""  # the beginning of the command that the latest answer runs
    answered: int = 0  # all answers
    read_characters: int = 0  # the whole request
    harness: int = 0  # identifies the tools on offer


@dataclass(slots=True)  # not frozen: that triples the time to make one, and each request has one
class PromptView:
    """A request as a proxy sees it before it runs; every field but `prompt` may be missing."""

    prompt: str  # the last user message, or the whole prompt of a completion
    system: str = ""
    history: tuple[Turn, ...] = ()  # the oldest first; the middle ones of many are one without role and text
    task: Task = Task.CHAT
    max_tokens: int | None = None  # the client's cap on the answer
    json_mode: bool = False
    tools: int = 0
    images: int = 0
    thinking: str | None = None  # "off", "on" or the effort asked for; None where the client did not say
    model: str = ""
    client: str = ""
    principal: str = ""  # the key's owner, "" without keys: its answers teach nothing about others
    cut: int = 0  # how many characters longer the prompt is, whose middle was left out
    chore: Chore | None = None  # None for what a person asks
    step: Step | None = None  # None where there are neither tools nor earlier answers

    @property
    def characters(self) -> int:
        return len(self.prompt) + self.cut

    @property
    def is_encoded(self) -> bool:
        """Whether an encoder reads the prompt: it does not rank results of tools better."""
        is_result = self.step is not None and self.step.is_result
        return bool(self.prompt) and self.task is not Task.EMBEDDING and self.chore is None and not is_result


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long an answer is expected to be. The probabilities are calibrated and sum to 1."""

    p_short: float
    p_medium: float
    p_long: float
    score: float  # higher is longer, on the model's own scale
    expected_tokens: float  # a mean, capped by the client's own limit, as is the next
    q90_tokens: float
    source: str  # the name of the model
    memo: object = field(default=None, repr=False, compare=False)  # what learning needs later, without text
    # Of the expected tokens; it need not be the most probable one.
    length_class: LengthClass = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length_class", LengthClass.of(self.expected_tokens))


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a predictor does on live traffic; None while there is nothing to count."""

    judged: int  # answers it was compared with
    ranking_accuracy: float | None  # over (Short, Long) pairs of recent answers, ties count half
    q90_coverage: float | None  # the share of recent answers within their q90


UNKNOWN = Prediction(1 / 3, 1 / 3, 1 / 3, 0.0, 400.0, 1200.0, "unknown")
"""Of a request that nothing is known of: the middle of the queue, and nothing is learned from it."""


class Predictor:
    """Predicts answer lengths; this one knows nothing. All methods are called from one thread and do no I/O;
    all are optional.
    """

    name: str = "none"
    frozen = False  # it counts its errors and learns nothing: `serve --freeze`

    def predict(self, view: PromptView, opinion: "EncoderEstimate | None" = None) -> Prediction:
        """Return the prediction for a request, with an encoder's opinion of its prompt if there is one.

        Never raises, whatever the text. The latest prediction of a request is the one to learn from.
        """
        return UNKNOWN

    def learn(self, prediction: Prediction, tokens: int) -> None:
        """Learn that the request behind `prediction` was answered in `tokens` tokens."""

    def after_thinking(self, view: PromptView, thought_tokens: int) -> Prediction | None:
        """Return the prediction of what follows an answer's thinking, None if unknown; learned like any."""
        return None

    def quality(self) -> Quality:
        """Return how the predictions compare with the answers; `judged` is 0 where no count is kept."""
        return Quality(0, None, None)

    def explain(self, view: PromptView) -> list[tuple[str, float]]:
        """Return what drove the prediction, strongest first: (what, effect on the model's own scale)."""
        return []

    def export_state(self) -> bytes:
        """Return what was learned, as hashed weights and counts; empty if there is nothing to keep."""
        return b""

    def import_state(self, state: bytes) -> None:
        """Restore what `export_state` of the same model returned; raises ModelError if it cannot be used."""


class UrgencyPredictor(Protocol):
    """Predicts from a request's text how urgent it is; called from one thread, does no I/O."""

    name: str

    def level(self, view: PromptView, opinion: "EncoderEstimate | None" = None) -> int:
        """Return a level, 0 (immediate) to 4, by the words alone where there is no encoder's opinion."""
        ...
