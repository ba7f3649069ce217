"""Train the default predictor's model: needs the `train` extra.

Small trees are fitted to the dense cues, then weights of words and pairs of words to what the trees leave.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse
import xgboost
from onnxmltools.convert import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.linear_model import LogisticRegression, Ridge

from clairvoyant_lab.training.card_writing import file_hashes, write_card
from clairvoyant_lab.training.material import Material, Numbers, Rows
from predictor.card import LOGIT_OF_NORMAL, Calibration, Card
from predictor.lexical.cues import FEATURES_VERSION, NAMES
from predictor.lexical.model import TREES, WORDS, WordWeights
from predictor.lognormal import LOG_LONG, LOG_SHORT, SHIFT_TOKENS, Edge
from predictor.record import LONG_FROM_TOKENS

FOLDS = 5
TREE_SETTINGS = {
    "n_estimators": 200,
    "max_depth": 4,
    "learning_rate": 0.06,
    "subsample": 0.6,
    "colsample_bytree": 0.3,
    "reg_lambda": 5,
    "tree_method": "hist",
    "n_jobs": 1,
}
SMALLEST_LEAF = 40.0
OPSET = 15

WORDS_PENALTY = 4.0
MIN_FAMILIES = 4  # families of files in which a gram must occur to have a weight, if there are that many
MIN_PROMPTS = 3

MIN_LONG_SHARE = 0.01  # of a family's answers, for it to say how long answers are
MIN_SPREAD = 0.1  # a cue that hardly ever occurs must not weigh a hundred spreads when it does


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model."""

    trees: xgboost.XGBRegressor
    words: WordWeights

    def scores(self, material: Material) -> Numbers:
        """Return the score of each prompt; higher is longer."""
        trees, words = self.parts(material)
        return trees + words

    def parts(self, material: Material) -> tuple[Numbers, Numbers]:
        """Return what trees and words add to the scores."""
        trees: Numbers = self.trees.predict(material.cues.astype(np.float32)).astype(np.float64)
        return trees, material.grams @ self.words.of(material.hashes).astype(np.float64)


def fit(material: Material, targets: Numbers, weights: Numbers, seed: int = 42) -> Fitted:
    """Fit trees and words to targets (near log tokens), one row a prompt."""
    # Training leaves a few answers only where data is scarce; a leaf may then be smaller.
    smallest_leaf = min(SMALLEST_LEAF, 0.01 * float(weights.sum()))
    trees = xgboost.XGBRegressor(**TREE_SETTINGS, min_child_weight=smallest_leaf, random_state=seed)
    trees.fit(material.cues, targets, sample_weight=weights)
    return Fitted(trees, fit_words(material, targets - trees.predict(material.cues), weights))


def fit_words(material: Material, targets: Numbers, weights: Numbers) -> WordWeights:
    """Fit weights of the shared grams to targets within each file, by ridge regression."""
    kept = shared_grams(material)
    grams, files = material.grams[:, kept], material.files
    levels = np.bincount(files, targets) / np.maximum(np.bincount(files), 1)
    ridge = Ridge(alpha=WORDS_PENALTY, fit_intercept=False, solver="lsqr")
    ridge.fit(grams, targets - levels[files], sample_weight=weights / weights.mean())
    spreads = np.maximum(material.cues.std(axis=0), MIN_SPREAD).astype(np.float32)
    means, ordinary = material.cues.mean(axis=0).astype(np.float32), float((grams @ ridge.coef_).mean())
    return WordWeights(material.hashes[kept], ridge.coef_, ordinary, means, spreads)


def shared_grams(material: Material) -> Rows:
    """Return the columns of the grams that enough prompts and families share."""
    families = np.unique(material.families, return_inverse=True)[1]
    prompts = sparse.csr_matrix((np.ones(len(families)), (families, np.arange(len(families)))))
    in_families = (prompts @ material.grams).getnnz(axis=0)
    in_prompts = material.grams.getnnz(axis=0)
    return np.flatnonzero((in_families >= min(MIN_FAMILIES, prompts.shape[0])) & (in_prompts >= MIN_PROMPTS))


def folds(groups: Rows, seed: int, count: int = FOLDS) -> Iterator[tuple[Rows, Rows]]:
    """Yield (known, held out) rows for each fold; equal prompts share a fold."""
    labels = np.unique(groups, return_inverse=True)[1]
    fold_of = np.random.default_rng(seed).permutation(np.arange(labels.max() + 1) % count)[labels]
    for fold in range(count):
        yield np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)


def out_of_fold(
    material: Material,
    targets: Numbers,
    weights: Numbers,
    seed: int = 42,
    progress: Callable[[str], None] = lambda line: None,
    apart: Rows | None = None,
    count: int = FOLDS,
) -> Numbers:
    """Return scores by models that had not seen the prompt, nor its group in `apart` if that is given."""
    scores = np.zeros(len(targets))
    groups = material.groups if apart is None else apart
    for fold, (known, held) in enumerate(folds(groups, seed + 1, count)):
        progress(f"fold {fold + 1} of {count}")
        fitted = fit(material.rows(known), targets[known], weights[known], seed)
        scores[held] = fitted.scores(material.rows(held))
    return scores


def calibrate(scores: Numbers, log_tokens: Numbers, weights: Numbers) -> Calibration:
    """Fit mean and spread of log tokens to scores of rows the model had not seen."""
    slope, offset = np.polyfit(scores, log_tokens, 1, w=np.sqrt(weights))
    means = offset + slope * scores
    # The mean of |x| of a normal is sqrt(2 / pi) of its spread.
    deviations = np.abs(log_tokens - means) * np.sqrt(np.pi / 2)
    spread_slope, spread = np.polyfit(means, deviations, 1, w=np.sqrt(weights))
    calibration = Calibration(float(offset), float(slope), float(spread), float(spread_slope))
    standard = (log_tokens - means) / np.array([calibration.spread_at(mean) for mean in means])
    spreads = np.array([calibration.spread_at(mean) for mean in means])
    return replace(
        calibration,
        q90_at=float(np.quantile(standard, 0.9, weights=weights, method="inverted_cdf")),
        short_edge=fit_edge((LOG_SHORT - means) / spreads, log_tokens < LOG_SHORT, weights),
        long_edge=fit_edge((LOG_LONG - means) / spreads, log_tokens < LOG_LONG, weights),
    )


def calibrate_evenly(scores: Numbers, tokens: Numbers, families: Rows, seed: int) -> Calibration:
    """Calibrate for traffic of other families: each one is drawn as often as any other."""
    drawn = draw_evenly(tokens, families, seed)
    return calibrate(scores[drawn], np.log(tokens[drawn] + SHIFT_TOKENS), np.ones(len(drawn)))


def draw_evenly(tokens: Numbers, families: Rows, seed: int) -> Rows:
    """Draw rows with replacement, each family as often as any other, of those with Long answers enough.

    Calibrated on families of short answers too, q90 covers 0.78 of unseen answers instead of 0.91.
    """
    shares = np.bincount(families, tokens >= LONG_FROM_TOKENS) / np.maximum(np.bincount(families), 1)
    varied = np.flatnonzero(shares[families] >= MIN_LONG_SHARE)
    rows: Rows = varied if len(varied) else np.arange(len(families))
    _, places, sizes = np.unique(families[rows], return_inverse=True, return_counts=True)
    chances = 1 / sizes[places]
    return rows[np.random.default_rng(seed).choice(len(rows), len(rows), p=chances / chances.sum())]


def fit_edge(distances: Numbers, below: npt.NDArray[np.bool_], weights: Numbers) -> Edge:
    """Fit the log odds of being below a class boundary to its distance; the normal's where all are alike."""
    if below.all() or not below.any():
        return 0.0, LOGIT_OF_NORMAL
    odds = LogisticRegression().fit(distances[:, None], below, sample_weight=weights)
    # A slope of no sense would turn the ordering round.
    return float(odds.intercept_[0]), max(float(odds.coef_[0, 0]), 0.1)


def save(fitted: Fitted, card: Card, directory: Path) -> Card:
    """Write a model directory; return its card with the files' hashes filled in."""
    directory.mkdir(parents=True, exist_ok=True)
    onnx = convert_xgboost(
        fitted.trees,
        name="trees",  # a random one would give the same model another hash each time
        initial_types=[("features", FloatTensorType([None, len(NAMES)]))],
        target_opset=OPSET,
    )
    (directory / TREES).write_bytes(onnx.SerializeToString())
    fitted.words.save(directory / WORDS)
    files = [TREES, WORDS]
    signed = replace(card, features_version=FEATURES_VERSION, sha256=file_hashes(directory, files))
    write_card(signed, directory)
    return signed
