"""The arms of a bench: a policy, what it knows of the answers' lengths, and a starvation timeout."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from random import Random

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_lab.baselines import ALL_POLICIES
from predictor.record import LengthClass, Prediction, Predictor, PromptView

DIRECT = "direct"  # bypasses the proxy
ORACLE = "oracle"  # orders by the real lengths: an upper bound for any prediction
CLAIRVOYANT = "clairvoyant"  # sessions of agents, through a default Clairvoyant
SERIAL = "serial"  # one session after the other, direct
AGENT_ARMS = (DIRECT, CLAIRVOYANT, SERIAL, *POLICIES)


class Knowledge(StrEnum):
    """What the scheduler knows of a question: the prediction, the true class, or the true length."""

    PREDICTED = "predicted"
    CLASSES = "classes"
    LENGTHS = "lengths"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the questions. `policy` None bypasses the proxy. `tau_s` 0 is no guard, None the
    daemon's own timeout. Classes are right with probability `accuracy`.
    """

    name: str
    policy: str | None
    knowledge: Knowledge = Knowledge.PREDICTED
    tau_s: float | None = None
    accuracy: float = 1.0

    @property
    def interrupts(self) -> bool:
        """Whether its policy cuts running answers."""
        return self.policy is not None and ALL_POLICIES[self.policy].preemptive


def parse_arm(text: str) -> Arm:
    """Parse `direct`, `oracle`, or POLICY[@classes|@N%|@lengths][:TAU_S]; ClairvoyantError otherwise. `@N%`
    tells short from long and is right N times in a hundred.
    """

    def refusal(why: str) -> ClairvoyantError:
        return ClairvoyantError(f"arm {text!r}: {why}", ExitCode.USAGE)

    name = text.strip()
    if name == DIRECT:
        return Arm(name, None)
    head, colon, tau = name.partition(":")
    policy, _, knowledge = head.partition("@")
    if policy == ORACLE and not knowledge:
        knowledge = Knowledge.LENGTHS
    if policy not in ALL_POLICIES:
        raise refusal(f"no policy {policy!r}; there are {DIRECT}, {', '.join(ALL_POLICIES)}")
    accuracy = 1.0
    if knowledge.endswith("%"):
        percent = knowledge[:-1]
        if not percent.isdecimal() or not 50 <= int(percent) <= 100:
            raise refusal("@N% takes a whole number from 50 to 100")
        accuracy, knowledge = int(percent) / 100, Knowledge.CLASSES
    if knowledge and knowledge not in tuple(Knowledge):
        raise refusal("after @ comes classes, N% or lengths")
    try:
        tau_s = float(tau) if colon else None
    except ValueError:
        raise refusal("after : come seconds") from None
    if tau_s is not None and not 0 <= tau_s <= 86_400:
        raise refusal("tau must be between 0 and 86400 seconds")
    return Arm(name, policy, Knowledge(knowledge or Knowledge.PREDICTED), tau_s, accuracy)


@dataclass(slots=True)
class OraclePredictor(Predictor):
    """Wraps the shipped predictor and predicts what an arm may know.

    It hides the request's limit, which may set the answer's length, and learns nothing: the next arm gets the
    same prompts. `classes` and `lengths` (of real answers) are by prompt, `typical_tokens` by class. A class
    is right with probability `accuracy`, and equal questions get equal classes in every arm.
    """

    shipped: Predictor
    classes: Mapping[str, LengthClass] = field(default_factory=dict)
    typical_tokens: Mapping[LengthClass, float] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    knowledge: Knowledge = Knowledge.PREDICTED
    accuracy: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.shipped.name

    def predict(self, view: PromptView, opinion: object = None) -> Prediction:
        """Return what the arm may know, or the shipped prediction for an unknown prompt."""
        known = self.classes.get(view.prompt)
        if self.knowledge is Knowledge.LENGTHS:
            tokens = self.lengths.get(view.prompt) or view.max_tokens
            if tokens is not None:
                # No quantile: the remaining length is known exactly.
                certain = _certain(known or LengthClass.of(tokens), tokens, "lengths")
                return replace(certain, q90_tokens=0.0)
        elif self.knowledge is Knowledge.CLASSES and known is not None:
            if self.accuracy < 1.0:
                return self._uncertain(known, view)
            return _certain(known, self.typical_tokens[known], "classes")
        return replace(self.shipped.predict(replace(view, max_tokens=None)), memo=None)

    def _uncertain(self, known: LengthClass, view: PromptView) -> Prediction:
        rng = Random(f"{view.prompt}:{view.max_tokens}")  # noqa: S311 - repeatable, keeps no secret
        said_long = (known is not LengthClass.SHORT) ^ (rng.random() >= self.accuracy)
        p_long = self.accuracy if said_long else 1.0 - self.accuracy
        short, long = (self.typical_tokens[each] for each in (LengthClass.SHORT, LengthClass.LONG))
        tokens = short + (long - short) * p_long
        q90 = long if p_long >= 0.1 else short
        return Prediction(1.0 - p_long, 0.0, p_long, tokens, tokens, q90, "classes")


def _certain(length_class: LengthClass, tokens: float, source: str) -> Prediction:
    short, medium, long = (float(each is length_class) for each in LengthClass)
    return Prediction(short, medium, long, tokens, tokens, tokens, source)
