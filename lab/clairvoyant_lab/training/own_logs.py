"""Trains a model on a user's own logs, judges it on rows it has not seen, and writes it with its card."""

from pathlib import Path

import numpy as np

from clairvoyant_lab.studies.evaluation import Evaluation, evaluate, figures, judge, predict_by
from clairvoyant_lab.studies.study_table import Progress
from clairvoyant_lab.training import fitting
from clairvoyant_lab.training.dataset import Dataset, is_read_by_words
from clairvoyant_lab.training.material import prepare
from predictor.card import Card
from predictor.errors import ModelError
from predictor.lexical.context import consider
from predictor.loading import load_model
from predictor.lognormal import log_tokens
from predictor.record import LONG_FROM_TOKENS

LICENCE = "your own data: yours to decide"


def train_own(
    data: Dataset,
    out: Path,
    least_long: int,
    seed: int = 42,
    progress: Progress = lambda line: None,
) -> list[Evaluation]:
    """Train as the default model was, and write a model directory at `out`.

    Requests whose words do not count, such as steps of agents, are left out. Returns how the new model and
    the default one do on held-out rows; ModelError if too few answers are Long.
    """
    given = len(data.views)
    data = data.rows([row for row, view in enumerate(data.views) if is_read_by_words(view)])
    tokens = data.typical_tokens()
    n_long = int((tokens >= LONG_FROM_TOKENS).sum())
    if n_long < least_long:
        raise ModelError(
            f"only {n_long} of {len(tokens)} answers are Long (>= {LONG_FROM_TOKENS} tokens); a model needs "
            f"about {least_long} to tell them from Short ones: add longer conversations, or lower --min-long"
        )
    progress(f"{len(tokens)} requests" + (f", {given - len(tokens)} left out" if given > len(tokens) else ""))
    material = prepare(data.prompts)
    lengths = [log_tokens(count) for count in tokens]
    # The words are to say what the rest of the request does not.
    targets = np.array(
        [2 * length - consider(view, length).mean for view, length in zip(data.views, lengths, strict=True)]
    )
    weights = np.ones(len(targets))
    scores = fitting.out_of_fold(material, targets, weights, seed, progress)
    calibration = fitting.calibrate(scores, targets, weights)
    held_out = judge("held out (5-fold)", predict_by(calibration, scores, data.views), data)
    progress("all rows")
    fitted = fitting.fit(material, targets, weights, seed)
    card = Card(out.name, "lexical", 1, calibration, [data.name], LICENCE, figures(held_out), seed=seed)
    fitting.save(fitted, card, out)
    return [held_out, *evaluate(load_model(), data, Path("default model"))]
