"""Train the default predictor's model: needs the `train` extra.

A ridge regression over n-gram buckets gives each gram a weight; small trees then read the dense cues and the
gram scores of rows that the ridge had not seen. The net beside them (`bag`) is trained on its own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from predictor.card import LOGIT_OF_NORMAL, Calibration, Card
from predictor.errors import from_the_train_extra
from predictor.lexical.cues import FEATURES_VERSION, NAMES
from predictor.lexical.model import BUCKETS, GRAMS, NET_SHARE, STATED_MEAN, STATED_SHARE, TABLE_BITS, TREES
from predictor.lexical.ngram_net import BAG, Bag
from predictor.lognormal import LOG_LONG, LOG_SHORT, SHIFT_TOKENS, Edge
from predictor.record import LONG_FROM_TOKENS
from predictor.research.training.card_writing import file_hashes, write_card
from predictor.research.training.material import Material, Numbers, Rows
from predictor.research.training.ngram_net import fit_bag

with from_the_train_extra():
    import xgboost
    from onnxmltools.convert import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from sklearn.linear_model import LogisticRegression, Ridge


RIDGE_PENALTY = 4.0
MIN_PROMPTS_A_GRAM = 2
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

MIN_LONG_SHARE = 0.01  # of a family's answers, for it to say how long answers are
MIN_SPREAD = 0.1  # a cue that hardly ever occurs must not weigh a hundred spreads when it does


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model: `gram_weights` (2 ** TABLE_BITS,); `centre` and `spread` (features,)."""

    gram_weights: Numbers
    trees: xgboost.XGBRegressor
    bag: Bag
    centre: Numbers
    spread: Numbers

    def scores(self, material: Material) -> Numbers:
        """Return the score of each prompt; higher is longer."""
        scores = predict_trees(self.trees, material.cues, gram_scores(self.gram_weights, material))
        stated, share = material.cues[:, STATED_MEAN], material.cues[:, STATED_SHARE]
        scores += share * (stated - scores)
        sums = material.grams @ self.bag.numbers(material.hashes)
        scores += NET_SHARE * (self.bag.scores(material.cues.astype(np.float32), sums) - scores)
        return scores


def fit(material: Material, targets: Numbers, weights: Numbers, seed: int = 42) -> Fitted:
    """Fit grams and trees to targets (near log tokens), one row a prompt.

    They learn what the stated length leaves open; the net learns the whole.
    """
    left, whole = 1 - material.cues[:, STATED_SHARE], targets
    targets = (targets - material.cues[:, STATED_SHARE] * material.cues[:, STATED_MEAN]) / left
    weights = weights * left**2
    unseen = np.zeros(len(targets))
    for known, held in folds(material.groups, seed):
        table = fit_grams(material.rows(known), targets[known], weights[known])
        unseen[held] = gram_scores(table, material.rows(held))
    # Training leaves a few answers only where data is scarce; a leaf may then be smaller.
    smallest_leaf = min(SMALLEST_LEAF, 0.01 * float(weights.sum()))
    trees = xgboost.XGBRegressor(**TREE_SETTINGS, min_child_weight=smallest_leaf, random_state=seed)
    rows = np.column_stack((material.cues, unseen))
    trees.fit(rows, targets, sample_weight=weights)
    centre, spread = rows.mean(axis=0), rows.std(axis=0)
    bag = fit_bag(material, whole, centre[:-1], np.maximum(spread[:-1], MIN_SPREAD), seed)
    return Fitted(fit_grams(material, targets, weights), trees, bag, centre, spread)


def folds(groups: Rows, seed: int, count: int = FOLDS) -> Iterator[tuple[Rows, Rows]]:
    """Yield (known, held out) rows for each fold; equal prompts share a fold."""
    labels = np.unique(groups, return_inverse=True)[1]
    fold_of = np.random.default_rng(seed).permutation(np.arange(labels.max() + 1) % count)[labels]
    for fold in range(count):
        yield np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)


def fit_grams(material: Material, targets: Numbers, weights: Numbers) -> Numbers:
    """Return the ridge weight of each bucket; a gram of one prompt alone says nothing of others."""
    prompts_a_gram = np.bincount(material.grams.indices, minlength=material.grams.shape[1])
    kept = np.flatnonzero(prompts_a_gram >= MIN_PROMPTS_A_GRAM)
    table = np.zeros(1 << TABLE_BITS)
    if len(kept):
        ridge = Ridge(alpha=RIDGE_PENALTY, solver="sparse_cg", tol=1e-3)
        ridge.fit(material.grams[:, kept], targets, sample_weight=weights)
        np.add.at(table, material.hashes[kept] & BUCKETS, ridge.coef_)
    return table


def gram_scores(table: Numbers, material: Material) -> Numbers:
    """Return the gram score of each prompt, as the loaded model computes it."""
    scores: Numbers = material.grams @ table[material.hashes & BUCKETS]
    return scores


def predict_trees(trees: xgboost.XGBRegressor, cues: Numbers, scores: Numbers) -> Numbers:
    """Return the trees' output as float64."""
    rows = np.column_stack((cues, scores)).astype(np.float32)
    return np.asarray(trees.predict(rows), np.float64)


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
    used = np.flatnonzero(fitted.gram_weights)
    np.savez(
        directory / GRAMS,
        buckets=used.astype(np.uint32),
        weights=fitted.gram_weights[used].astype(np.float16),
        centre=fitted.centre.astype(np.float32),
        scale=(1 / np.maximum(fitted.spread, MIN_SPREAD)).astype(np.float32),
    )
    width = len(NAMES) + 1
    onnx = convert_xgboost(
        fitted.trees,
        name="trees",  # a random one would give the same model another hash each time
        initial_types=[("features", FloatTensorType([None, width]))],
        target_opset=OPSET,
    )
    (directory / TREES).write_bytes(onnx.SerializeToString())
    fitted.bag.save(directory / BAG)
    files = [GRAMS, TREES, BAG]
    signed = replace(card, features_version=FEATURES_VERSION, sha256=file_hashes(directory, files))
    write_card(signed, directory)
    return signed
