"""Train the paper's model (Clairvoyant, section 4.3): needs the `train` extra.

XGBoost with a 3-class softmax: 300 trees a class, depth 6, rate 0.1, seed 42, and a stratified 80/20 split;
exported to ONNX, and refused if ONNX does not say what XGBoost says.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xgboost
from onnxmltools.convert import convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.model_selection import train_test_split

from clairvoyant_lab.training.card_writing import file_hashes, write_card
from predictor.card import Card
from predictor.errors import ModelError
from predictor.lexical.model import open_session
from predictor.paper.features import NAMES, paper_features
from predictor.paper.predictor import MODEL
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS

Numbers = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]

SEED = 42
MIN_LONG = 200  # section 5.1: fewer Long examples give a degenerate classifier
PARITY = 1e-4
OPSET = 15


def features_of(prompts: Sequence[str]) -> Floats:
    """Return the 19 features of each prompt, float32 of shape (n, 19)."""
    return np.array([paper_features(prompt) for prompt in prompts], np.float32)


def classes_of(tokens: Numbers) -> Rows:
    """Return 0 for Short, 1 for Medium, 2 for Long."""
    return np.digitize(tokens, [SHORT_BELOW_TOKENS, LONG_FROM_TOKENS])


def balanced(classes: Rows, seed: int = SEED) -> Rows:
    """Return rows with as many of each class as the rarest has, as section 4.2 resamples."""
    generator = np.random.default_rng(seed)
    rarest = min(int((classes == index).sum()) for index in range(3))
    drawn = [generator.permutation(np.flatnonzero(classes == index))[:rarest] for index in range(3)]
    return np.sort(np.concatenate(drawn))


def split(classes: Rows, seed: int = SEED) -> tuple[Rows, Rows]:
    """Return the rows of the stratified 80/20 split: to train on, to test on."""
    known, held = train_test_split(
        np.arange(len(classes)), test_size=0.2, stratify=classes, random_state=seed
    )
    return known, held


def fit(features: Floats, classes: Rows, seed: int = SEED) -> xgboost.XGBClassifier:
    """Train with the paper's settings; all three classes must occur."""
    model = xgboost.XGBClassifier(
        n_estimators=300, max_depth=6, learning_rate=0.1, random_state=seed, n_jobs=1
    )
    model.fit(features, classes)
    return model


def probability_long(model: xgboost.XGBClassifier, features: Floats) -> Numbers:
    """Return P(Long), the paper's key, as float64."""
    return np.asarray(model.predict_proba(features)[:, 2], np.float64)


def save(model: xgboost.XGBClassifier, card: Card, directory: Path, probe: Floats) -> float:
    """Write a model directory; return how far ONNX and XGBoost differ; ModelError beyond `PARITY`."""
    directory.mkdir(parents=True, exist_ok=True)
    onnx = convert_xgboost(
        model,
        name="paper",  # a random one would give the same model another hash each time
        initial_types=[("features", FloatTensorType([None, len(NAMES)]))],
        target_opset=OPSET,
    )
    (directory / MODEL).write_bytes(onnx.SerializeToString())
    session = open_session(directory / MODEL, len(NAMES))
    outputs = session.run([session.get_outputs()[-1].name], {session.get_inputs()[0].name: probe})
    difference = float(np.abs(outputs[0] - model.predict_proba(probe)).max())
    if difference > PARITY:
        raise ModelError(f"the ONNX export differs from XGBoost by {difference:.2g}: check their versions")
    write_card(replace(card, sha256=file_hashes(directory, [MODEL])), directory)
    return difference
