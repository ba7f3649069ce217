"""The state of a calibration: its plan, its server, the time left, and what is measured so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from clairvoyant_cli.backends.client import Client, Question, TimedAnswer
from clairvoyant_cli.calibrate.prove import TRIALS
from predictor.record import LengthClass
from profiles.records import MIN_TRIALS, Sample

SHORTS_PER_LONG = 4  # what the M1 numbers of the paper need for its 40 s (see `IN_FLIGHT`)
IN_FLIGHT = 5
"""Requests in flight for each slot while mu_short is measured.

Sent all at once, as by the paper's script, a hundred questions measure the size of the burst: mu_short grows
with it, and tau = 3 x mu_short then exceeds the burst it should guard in. Held at five per slot, mu_short is
a property of the server. With the paper's service times on an M1 (2 s and 30 s, Table 1) it gives about the
40 s that the paper reports there (section 3.4).
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: `shorts` counted in the queue, `singles` one at a time, how fast a prompt of
    `reading` tokens is read, and `trials` of cutting and continuing an answer.

    `budget_s` bounds all of that, `cut_s` the trials; None is without limit. A server that sends nothing for
    `silence_s` is given up.
    """

    name: str
    shorts: int
    singles: int
    reading: int
    budget_s: float | None = None
    trials: int = TRIALS
    cut_s: float | None = None
    silence_s: float = 600.0

    @property
    def long_singles(self) -> int:
        """How many of the questions one at a time are long."""
        return max(1, self.singles // (SHORTS_PER_LONG + 1))

    def queue_phase(self, slots: int) -> tuple[int, int]:
        """Return how many requests the queue phase keeps in flight, and how many it sends in all."""
        counted = self.shorts * (SHORTS_PER_LONG + 1) // SHORTS_PER_LONG
        in_flight = IN_FLIGHT * slots
        return in_flight, counted + in_flight  # the first ones find an empty queue: they only fill it


QUICK = Plan("quick", 40, 5, 400, budget_s=80.0, trials=MIN_TRIALS, cut_s=50.0, silence_s=30.0)
STANDARD = Plan("standard", shorts=100, singles=25, reading=1600, budget_s=160.0, cut_s=90.0)
FULL = Plan("full", shorts=100, singles=60, reading=6000)


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """One service time in seconds, with `assumed_s` estimated for the rest of an answer that was cut off."""

    sample: Sample
    seconds: float
    short: bool
    assumed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What is being measured, and how much of it is done."""

    title: str
    done: int
    of: int


Tell = Callable[[Step], None]


@dataclass(slots=True)
class Session:
    """One calibration under way; `say` prints a line. `services` were asked alone, `queued` in a queue."""

    client: Client
    plan: Plan
    tell: Tell
    seed: int = 0
    say: Callable[[str], None] = lambda line: None
    begun_s: float = field(init=False)
    services: list[ServiceTime] = field(default_factory=list)
    queued: list[Sample] = field(default_factory=list)
    decode_rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begun_s = self.client.clock()

    @property
    def decode_tokens_per_s(self) -> float | None:
        """The median so far, one request at a time; None until one was long enough to tell."""
        return median(self.decode_rates) if self.decode_rates else None

    @property
    def samples(self) -> list[Sample]:
        return [service.sample for service in self.services] + self.queued

    @property
    def took_s(self) -> float:
        return self.client.clock() - self.begun_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds left in a plan that is bounded; None in one that is not."""
        return None if self.plan.budget_s is None else self.plan.budget_s - self.took_s

    async def ask_alone(self, question: Question, cap: int | None = None) -> TimedAnswer:
        """Ask with nothing else in flight, and learn the speed from the answer."""
        answer = await self.client.ask(question, cap)
        if (rate := answer.decode_tokens_per_s) is not None:
            self.decode_rates.append(rate)
        return answer

    def sample(self, phase: str, question: Question, answer: TimedAnswer, *, counted: bool = True) -> Sample:
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
        )


def is_short(sample: Sample) -> bool:
    return LengthClass.of(sample.tokens) is LengthClass.SHORT
