"""A predictor that no longer learns, for `serve --freeze`."""

from dataclasses import replace

from predictor.judged import Judged
from predictor.record import Prediction, Predictor, PromptView, Quality
from predictor.semantic.opinion import EncoderEstimate


class FrozenPredictor(Predictor):
    """Another predictor, frozen: it still explains itself, counts its errors and restores its state."""

    def __init__(self, predictor: Predictor) -> None:
        self.name = predictor.name
        self._predictor = predictor
        self._judged = Judged()

    def predict(self, view: PromptView, opinion: EncoderEstimate | None = None) -> Prediction:
        """Return the prediction of the predictor."""
        return self._predictor.predict(view, opinion)

    def learn(self, prediction: Prediction, tokens: int) -> None:
        """Compare the prediction with the answer; nothing that is predicted changes."""
        self._judged.judge(prediction.score, prediction.q90_tokens, tokens)

    def after_thinking(self, view: PromptView, thought_tokens: int) -> Prediction | None:
        """Return what the predictor expects, not to be learned."""
        predicted = self._predictor.after_thinking(view, thought_tokens)
        return predicted and replace(predicted, memo=None)

    def quality(self) -> Quality:
        """Return how the predictions compare with the answers since the start."""
        return self._judged.quality()

    def explain(self, view: PromptView) -> list[tuple[str, float]]:
        """Return what drove the prediction."""
        return self._predictor.explain(view)

    def export_state(self) -> bytes:
        """Return what the predictor had learned before."""
        return self._predictor.export_state()

    def import_state(self, state: bytes) -> None:
        """Have the predictor restore what it had learned before."""
        self._predictor.import_state(state)
