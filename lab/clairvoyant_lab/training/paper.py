"""Train the paper's model (Clairvoyant, section 4.3), with which the study "unseen" compares.

XGBoost with a 3-class softmax: 300 trees a class, depth 6, rate 0.1, seed 42.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xgboost

from clairvoyant_lab.training.paper_features import paper_features
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS

Numbers = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

SEED = 42


def features_of(prompts: Sequence[str]) -> Floats:
    """Return the 19 features of each prompt, float32 of shape (n, 19)."""
    return np.array([paper_features(prompt) for prompt in prompts], np.float32)


def classes_of(tokens: Numbers) -> Rows:
    """Return 0 for Short, 1 for Medium, 2 for Long."""
    return np.digitize(tokens, [SHORT_BELOW_TOKENS, LONG_FROM_TOKENS])


def balanced(classes: Rows) -> Rows:
    """Return rows with as many of each class as the rarest has, as section 4.2 resamples."""
    generator = np.random.default_rng(SEED)
    rarest = min(int((classes == index).sum()) for index in range(3))
    drawn = [generator.permutation(np.flatnonzero(classes == index))[:rarest] for index in range(3)]
    return np.sort(np.concatenate(drawn))


def fit(features: Floats, classes: Rows) -> xgboost.XGBClassifier:
    """Train with the paper's settings; all three classes must occur."""
    model = xgboost.XGBClassifier(
        n_estimators=300, max_depth=6, learning_rate=0.1, random_state=SEED, n_jobs=1
    )
    model.fit(features, classes)
    return model


def probability_long(model: xgboost.XGBClassifier, features: Floats) -> Numbers:
    """Return P(Long), the paper's key, as float64."""
    return np.asarray(model.predict_proba(features)[:, 2], np.float64)
