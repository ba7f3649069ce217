"""A predictor that is told as much, and no more, than the arm of a bench is meant to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from clairvoyant_cli.research.bench.arms import Knowledge
from predictor.record import LengthClass, Prediction, Predictor, PromptView


@dataclass(slots=True)
class OraclePredictor(Predictor):
    """Stands between the daemon and the shipped predictor for the time of a bench.

    The bench may set an answer's length by the request's cap; a prediction never sees that cap. Nothing is
    learned from answers either: the same prompts come again in the next arm, which must not be better off.
    `classes` and `lengths` (of real answers) are by prompt, `typical_tokens` by class. A class that is told
    is right with probability `accuracy`: the same question, asked for the same length, gets the same word in
    every arm.
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
        """Return what the arm is to know; the shipped prediction where it knows nothing of the prompt."""
        match self.knowledge:
            case Knowledge.LENGTHS:
                tokens = self.lengths.get(view.prompt) or view.max_tokens
                if tokens is not None:
                    kind = self.classes.get(view.prompt) or LengthClass.of(tokens)
                    # No quantile: nothing is left to chance, and what is still to come is the difference.
                    return replace(certain(kind, tokens, "lengths"), q90_tokens=0.0)
            case Knowledge.CLASSES:
                known = self.classes.get(view.prompt)
                if known is not None and self.accuracy < 1.0:
                    return self._doubtful(known, view)
                if known is not None:
                    return certain(known, self.typical_tokens[known], "classes")
        return replace(self.shipped.predict(replace(view, max_tokens=None)), memo=None)

    def _doubtful(self, known: LengthClass, view: PromptView) -> Prediction:
        """Return a calibrated guess at the class and nothing else, as `noisy_class` of the simulator."""
        drawn = Random(f"{view.prompt}:{view.max_tokens}").random()  # noqa: S311 - repeatable, keeps no secret
        said_long = (known is not LengthClass.SHORT) ^ (drawn >= self.accuracy)
        p_long = self.accuracy if said_long else 1.0 - self.accuracy
        short, long = (self.typical_tokens[each] for each in (LengthClass.SHORT, LengthClass.LONG))
        tokens = short + (long - short) * p_long
        return Prediction(
            1.0 - p_long, 0.0, p_long, tokens, tokens, long if p_long >= 0.1 else short, "classes"
        )

    def learn(self, prediction: Prediction, tokens: int) -> None:
        """Learn nothing."""


def certain(length_class: LengthClass, tokens: float, source: str) -> Prediction:
    """Return a prediction without doubt."""
    chances = {each: float(each is length_class) for each in LengthClass}
    short, medium, long = (chances[each] for each in LengthClass)
    return Prediction(short, medium, long, tokens, tokens, tokens, source)
