"""The paper's predictor: 19 features, a 3-class XGBoost softmax as ONNX, P(Long) as the key (section 3.3)."""

from pathlib import Path

import numpy as np

from predictor.judged import Judged
from predictor.lexical.model import Floats, open_session
from predictor.paper.features import NAMES, paper_features
from predictor.record import Prediction, Predictor, PromptView, Quality
from predictor.semantic.opinion import EncoderEstimate

MODEL = "model.onnx"

# What an answer of each class is taken to cost: the model predicts classes only.
SHORT_TOKENS, MEDIUM_TOKENS, LONG_TOKENS = 90.0, 420.0, 1300.0
SHORT_Q90, MEDIUM_Q90, LONG_Q90 = 190.0, 720.0, 2200.0


class PaperPredictor(Predictor):
    """Predicts with the paper's model. It knows the prompt only, and never learns."""

    def __init__(self, directory: Path, name: str = "paper") -> None:
        """Open the model in `directory`; ModelError if it does not take the paper's 19 features."""
        self.name = name
        self._judged = Judged()
        self._session = open_session(directory / MODEL, len(NAMES))
        self._input = self._session.get_inputs()[0].name
        self._outputs = [self._session.get_outputs()[-1].name]

    def probabilities(self, prompt: str, cut: int = 0) -> Floats:
        """Return P(Short), P(Medium), P(Long) as float32, shape (3,)."""
        features = np.array([paper_features(prompt, cut)], dtype=np.float32)
        (result,) = self._session.run(self._outputs, {self._input: features})
        row: Floats = result[0]
        return row

    def predict(self, view: PromptView, opinion: EncoderEstimate | None = None) -> Prediction:
        """Return the prediction for a request; only the prompt and the client's cap are looked at."""
        short, medium, long = map(float, self.probabilities(view.prompt, view.cut))
        total = short + medium + long
        short, medium, long = short / total, medium / total, long / total
        expected = short * SHORT_TOKENS + medium * MEDIUM_TOKENS + long * LONG_TOKENS
        upper = SHORT_Q90 if short >= 0.9 else MEDIUM_Q90 if short + medium >= 0.9 else LONG_Q90
        if view.max_tokens is not None and view.max_tokens >= 0:
            expected, upper = min(expected, view.max_tokens), min(upper, view.max_tokens)
        return Prediction(short, medium, long, long, expected, upper, self.name)

    def learn(self, prediction: Prediction, tokens: int) -> None:
        self._judged.judge(prediction.score, prediction.q90_tokens, tokens)

    def quality(self) -> Quality:
        return self._judged.quality()

    def explain(self, view: PromptView) -> list[tuple[str, float]]:
        """Return what each feature that is not zero adds to P(Long), strongest first."""
        features = np.array([paper_features(view.prompt, view.cut)] * (len(NAMES) + 1), np.float32)
        np.fill_diagonal(features, 0.0)
        (chances,) = self._session.run(self._outputs, {self._input: features})
        effects = (chances[-1, 2] - chances[:-1, 2]).tolist()
        moved = [(name, effect) for name, effect in zip(NAMES, effects, strict=True) if effect]
        return sorted(moved, key=lambda reason: -abs(reason[1]))
