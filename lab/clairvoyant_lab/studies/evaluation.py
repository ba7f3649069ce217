"""Judges a predictor on files of prompts and real answer lengths."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from clairvoyant_lab.ranking import DELTA, kendall_tau_b, pair_ranking, ranking_accuracy
from clairvoyant_lab.studies.study_table import Cell, StudyTable
from clairvoyant_lab.training.dataset import Dataset, is_read_by_words
from predictor.card import Calibration
from predictor.lexical.context import consider
from predictor.lexical.cues import NAMES, read
from predictor.lognormal import prediction_of
from predictor.record import LengthClass, Prediction, Predictor, PromptView

if TYPE_CHECKING:
    from predictor.semantic.model import Encoder

CALIBRATION_BINS = 10

MIN_STATED_TOKENS = 60.0
"""The least length that counts as stated; a request for less wants a line, not a length."""

_STATED = NAMES.index("asked_length")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a predictor does on one file; an accuracy is None where there is nothing to count.

    `ranking_accuracy` counts ties half; `pair_accuracy` only the `n_pairs` pairs whose lengths differ by
    `min_length_difference` or more (PARS). `calibration_error` is that of the class probabilities,
    `q90_coverage` the share of answers within q90, `stated_error` the median relative error over the
    `n_stated` requests that state a length of at least `MIN_STATED_TOKENS`.
    """

    file: str
    n: int
    n_short: int
    n_long: int
    ranking_accuracy: float | None
    tied_share: float | None
    kendall_tau_b: float | None
    class_accuracy: float | None
    min_length_difference: float
    n_pairs: int
    pair_accuracy: float | None
    pair_tau_b: float | None
    calibration_error: float | None
    q90_coverage: float | None
    n_stated: int
    stated_error: float | None


def evaluate(
    predictor: Predictor,
    data: Dataset,
    path: Path,
    delta: float = DELTA,
    encoder: "Encoder | None" = None,
    *,
    learn: bool = False,
) -> list[Evaluation]:
    """Predict the requests of a dataset in order, with an encoder's opinion if there is one, and compare.

    With `learn`, each answer is learned before the next request; the second half is judged by itself, too.
    """
    tokens, predictions = data.typical_tokens(), []
    for view, count in zip(data.views, tokens, strict=True):
        opinion = encoder.encode(view.prompt, view.cut) if encoder is not None and view.is_encoded else None
        predictions.append(predictor.predict(view, opinion))
        if learn:
            predictor.learn(predictions[-1], int(count))
    evaluations = [judge(str(path), predictions, data, delta)]
    if learn and (half := len(tokens) // 2):
        late = data.rows(range(half, len(tokens)))
        evaluations.append(judge(f"{path}, second half", predictions[half:], late, delta))
    return evaluations


def judge(file: str, predictions: Iterable[Prediction], data: Dataset, delta: float = DELTA) -> Evaluation:
    """Compare predictions, in the order of the dataset's requests, with the real answers.

    `delta` is the least relative difference of length of a pair that counts for `pair_accuracy`.
    """
    rows = np.array(
        [[p.score, p.p_short, p.p_medium, p.p_long, p.q90_tokens, p.expected_tokens] for p in predictions],
        np.float64,
    )
    tokens = data.typical_tokens()
    scores, chances, q90 = rows[:, 0], rows[:, 1:4], rows[:, 4]
    real = np.array([_CLASSES.index(LengthClass.of(count)) for count in tokens])
    lengths = [read(view.prompt)[1][_STATED] if is_read_by_words(view) else 0.0 for view in data.views]
    stated = np.expm1(lengths) >= MIN_STATED_TOKENS
    errors = np.abs(rows[stated, 5] / np.maximum(tokens[stated], 1) - 1)
    ranking, paired = ranking_accuracy(scores, tokens), pair_ranking(scores, tokens, delta)
    return Evaluation(
        file=file,
        n=len(tokens),
        n_short=ranking.n_short,
        n_long=ranking.n_long,
        ranking_accuracy=_number(ranking.accuracy),
        tied_share=_number(ranking.tied_share),
        kendall_tau_b=_number(kendall_tau_b(scores, tokens)),
        class_accuracy=_number(float((chances.argmax(axis=1) == real).mean())),
        min_length_difference=delta,
        n_pairs=paired.pairs,
        pair_accuracy=_number(paired.accuracy),
        pair_tau_b=_number(paired.tau_b),
        calibration_error=_number(calibration_error(chances, real)),
        q90_coverage=_number(float((tokens <= q90).mean())),
        n_stated=int(stated.sum()),
        stated_error=float(np.median(errors)) if len(errors) else None,
    )


def predict_by(
    calibration: Calibration, scores: Iterable[float], views: list[PromptView]
) -> list[Prediction]:
    """Return what a model predicts by its scores before it has learned anything."""
    predictions = []
    for view, score in zip(views, scores, strict=True):
        mean = consider(view, calibration.mean_at(score)).mean
        spread = calibration.spread_at(mean)
        q90 = mean + calibration.q90_at * spread
        predictions.append(prediction_of(calibration, mean, spread, q90, view.max_tokens, ""))
    return predictions


def table(evaluations: list[Evaluation]) -> StudyTable:
    """Return a row for each file."""
    columns = ["file", "n", "short", "long", "ranking", "tied", "tau_b", "pairs", "class", "error", "q90"]
    rows: list[list[Cell]] = []
    for each in evaluations:
        orders = [each.ranking_accuracy, each.tied_share, each.kendall_tau_b, each.pair_accuracy]
        classes = [each.class_accuracy, each.calibration_error, each.q90_coverage]
        rows.append([each.file, each.n, each.n_short, each.n_long, *orders, *classes])
    return StudyTable("", columns, rows)


def figures(report: Evaluation) -> dict[str, float]:
    """Return the numbers of a report, for a model's card; none of stated lengths where none is stated."""
    numbers = {name: value for name, value in asdict(report).items() if isinstance(value, (int, float))}
    return numbers if report.n_stated else {key: numbers[key] for key in numbers if key != "n_stated"}


_CLASSES = list(LengthClass)


def calibration_error(chances: npt.NDArray[np.float64], real: npt.NDArray[np.intp]) -> float:
    """Return the expected calibration error of class probabilities (n, classes), in ten equal bins."""
    gaps = []
    for index in range(chances.shape[1]):
        chance, happened = chances[:, index], real == index
        bins = np.minimum((chance * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
        sums = np.bincount(bins, chance - happened, CALIBRATION_BINS)
        gaps.append(np.abs(sums).sum() / len(chance))
    return float(np.mean(gaps))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else value
