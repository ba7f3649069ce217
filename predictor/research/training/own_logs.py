"""Train a model on a user's own logs, judge it on rows it has not seen, and write it with its card."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from predictor.card import Calibration, Card
from predictor.errors import ModelError
from predictor.loading import load_model
from predictor.lognormal import log_tokens, predicted_by
from predictor.record import LONG_FROM_TOKENS, PromptView
from predictor.research.studies.evaluation import Evaluation, figures, judge
from predictor.research.training import fitting as training
from predictor.research.training import paper as paper_training
from predictor.research.training.dataset import Dataset
from predictor.research.training.material import Numbers, prepare

MIN_LONG = paper_training.MIN_LONG
LICENCE = "your own data: yours to decide"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What training gave: the new model on rows it had not seen, and the shipped one on the same rows."""

    held_out: Evaluation
    shipped: Evaluation


def train_own(
    data: Dataset,
    out: Path,
    recipe: str,
    least_long: int = MIN_LONG,
    seed: int = 42,
    progress: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Train on a dataset by the recipe "lexical" or "paper"; write a model directory at `out`.

    Raises ModelError if there are too few Long answers to learn what makes one.
    """
    tokens = data.typical_tokens()
    refuse_starved(tokens, least_long)
    progress(f"{len(tokens)} prompts")
    if recipe == "paper":
        return _train_paper(data, tokens, out, seed, progress)
    return _train_lexical(data, tokens, out, seed, progress)


def refuse_starved(tokens: Numbers, least_long: int) -> None:
    """Raise ModelError if too few of the answers are Long (Clairvoyant, section 5.1)."""
    n_long = int((tokens >= LONG_FROM_TOKENS).sum())
    if n_long < least_long:
        raise ModelError(
            f"only {n_long} of {len(tokens)} answers are Long (>= {LONG_FROM_TOKENS} tokens); a model needs "
            f"about {least_long} to tell them from Short ones: add longer conversations, or lower --min-long"
        )


def _train_lexical(
    data: Dataset, tokens: Numbers, out: Path, seed: int, progress: Callable[[str], None]
) -> Outcome:
    material = prepare(data.prompts)
    targets = np.array([log_tokens(count) for count in tokens])
    weights = np.ones(len(targets))
    scores = training.out_of_fold(material, targets, weights, seed, progress)
    calibration = training.calibrate(scores, targets, weights)
    held_out = judge("held out (5-fold)", [predicted_by(calibration, score) for score in scores], data)
    progress("all rows")
    fitted = training.fit(material, targets, weights, seed)
    training.save(fitted, _card(data, out, "lexical", calibration, held_out, seed), out)
    return Outcome(held_out, _shipped(data))


def _train_paper(
    data: Dataset, tokens: Numbers, out: Path, seed: int, progress: Callable[[str], None]
) -> Outcome:
    features, classes = paper_training.features_of(data.prompts), paper_training.classes_of(tokens)
    if len(np.unique(classes)) < 3:
        raise ModelError("the paper's recipe needs Short, Medium and Long answers: one of them is missing")
    known, held = paper_training.split(classes, seed)
    model = paper_training.fit(features[known], classes[known], seed)
    test = Dataset(data.name, [data.prompts[row] for row in held], data.models, data.tokens[held])
    neutral = Calibration(0.0, 1.0, 1.0)
    card = Card("own", "paper", 1, neutral, [data.name], LICENCE, {}, seed=seed)
    difference = paper_training.save(model, card, out, features)
    progress(f"ONNX and XGBoost differ by {difference:.1e} at most")
    fresh = load_model(out)
    held_out = judge("held out (20 %)", [fresh.predict(PromptView(prompt)) for prompt in test.prompts], test)
    paper_training.save(model, _card(data, out, "paper", neutral, held_out, seed), out, features)
    return Outcome(held_out, _shipped(test))


def _shipped(data: Dataset) -> Evaluation:
    shipped = load_model()
    return judge("default model", [shipped.predict(PromptView(prompt)) for prompt in data.prompts], data)


def _card(
    data: Dataset, out: Path, kind: str, calibration: Calibration, report: Evaluation, seed: int
) -> Card:
    return Card(out.name, kind, 1, calibration, [data.name], LICENCE, figures(report), seed=seed)
