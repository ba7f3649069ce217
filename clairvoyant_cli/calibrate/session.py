"""What all parts of a calibration share: whom to ask, how much time there is, how fast it has been."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from clairvoyant_cli.calibrate.client import Answer, Client
from clairvoyant_cli.calibrate.partial_results import Measured
from clairvoyant_cli.calibrate.plan import Plan
from clairvoyant_cli.calibrate.questions import Question
from predictor.record import LengthClass
from profiles.records import Sample, Served


@dataclass(frozen=True, slots=True)
class Step:
    """What is being measured, how much of it is done, and the seconds that all of it may still take."""

    title: str
    done: int
    of: int
    left_s: float | None = None


Tell = Callable[[Step], None]

Score = Callable[[str], float]
"""P(Long) of a prompt, by the predictor in use."""


@dataclass(slots=True)
class Session:
    """One calibration under way; `say` tells whoever waits for it, in a line, what to know of it."""

    client: Client
    plan: Plan
    tell: Tell
    score: Score | None = None
    seed: int = 0
    say: Callable[[str], None] = lambda line: None
    begun_s: float = field(init=False)
    measured: Measured = field(default_factory=lambda: Measured(Served("", ""), 0))
    prefill_rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun_s = self.client.clock()

    @property
    def decode_tokens_per_s(self) -> float | None:
        """The median so far, one request at a time; None until one was long enough to tell."""
        return median(self.measured.decode_rates) if self.measured.decode_rates else None

    @property
    def took_s(self) -> float:
        """Seconds since the beginning."""
        return self.client.clock() - self.begun_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds left in a plan that is bounded; None in one that is not."""
        return None if self.plan.budget_s is None else self.plan.budget_s - self.took_s

    def has_time_for(self, seconds: float, share: float = 1.0) -> bool:
        """Whether something fits into a share of what time is left."""
        left_s = self.remaining_s
        return left_s is None or seconds <= share * left_s

    async def ask_alone(self, question: Question, cap: int | None = None) -> Answer:
        """Ask with nothing else in flight, and learn the speed from the answer."""
        answer = await self.client.ask(question, cap)
        if (rate := answer.decode_tokens_per_s) is not None:
            self.measured.decode_rates.append(rate)
        return answer

    def sample(self, phase: str, question: Question, answer: Answer, *, counted: bool = True) -> Sample:
        """Make a sample of an answer."""
        return Sample(
            phase=phase,
            question=question.name,
            prompt_tokens=answer.prompt_tokens,
            tokens=answer.tokens,
            sent_s=answer.sent_s - self.begun_s,
            ttft_s=answer.ttft_s,
            sojourn_s=answer.sojourn_s,
            decode_s=answer.told_decode_s,
            prefill_s=answer.told_prefill_s,
            capped=answer.capped,
            counted=counted,
            load_s=answer.load_s,
            p_long=None if self.score is None else self.score(question.prompt),
        )


def is_short(sample: Sample) -> bool:
    """Whether the answer was Short: as measured, not as hoped."""
    return LengthClass.of(sample.tokens) is LengthClass.SHORT
