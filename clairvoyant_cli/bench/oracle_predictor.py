"""A predictor that is told as much, and no more, than the arm of a bench is meant to know."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from clairvoyant_cli.bench.arms import Knowledge
from predictor.record import LengthClass, Prediction, Predictor, PromptView


@dataclass(slots=True)
class OraclePredictor:
    """Stands between the daemon and the shipped predictor for the time of a bench.

    The bench may set an answer's length by the request's cap; a prediction never sees that cap. Nothing is
    learned from answers either: the same prompts come again in the next arm, which must not be better off.
    `classes` and `lengths` are by prompt, `typical_tokens` by class.
    """

    shipped: Predictor
    classes: Mapping[str, LengthClass] = field(default_factory=dict)
    typical_tokens: Mapping[LengthClass, float] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    knowledge: Knowledge = Knowledge.PREDICTED
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.shipped.name

    def predict(self, view: PromptView) -> Prediction:
        """Return what the arm is to know; the shipped prediction where it knows nothing of the prompt."""
        match self.knowledge:
            case Knowledge.LENGTHS:
                tokens = view.max_tokens or self.lengths.get(view.prompt)
                if tokens is not None:
                    return certain(self.classes.get(view.prompt) or LengthClass.of(tokens), tokens, "lengths")
            case Knowledge.CLASSES:
                known = self.classes.get(view.prompt)
                if known is not None:
                    return certain(known, self.typical_tokens[known], "classes")
        return replace(self.shipped.predict(replace(view, max_tokens=None)), memo=None)

    def learn(self, prediction: Prediction, tokens: int) -> None:
        """Learn nothing."""


def certain(length_class: LengthClass, tokens: float, source: str) -> Prediction:
    """Return a prediction without doubt."""
    chances = {each: float(each is length_class) for each in LengthClass}
    short, medium, long = (chances[each] for each in LengthClass)
    return Prediction(short, medium, long, tokens, tokens, tokens, source)
