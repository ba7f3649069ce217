"""The ridge learns one answer at a time what a solver finds from all of them at once."""

import numpy as np
import numpy.typing as npt
import pytest

from predictor.lexical.ridge import ACTIVE, BUCKETS, GRAM_VALUE, KEY_VALUE, PENALTY, SLICE, Features, Ridge

WIDTH = 5
KEYS = np.array([7, 11], np.intp)


def _answers(count: int, seed: int = 0) -> tuple[list[Features], npt.NDArray[np.float32]]:
    """Return requests of 4 to 12 of 40 grams, and surprises that follow from their grams and cues."""
    generator = np.random.default_rng(seed)
    meaning, cues = generator.normal(0, 0.5, 40), generator.normal(0, 0.5, WIDTH)
    described, surprises = [], []
    for _ in range(count):
        grams = generator.choice(40, generator.integers(4, 13), replace=False)
        dense = generator.normal(0, 0.3, WIDTH).astype(np.float32)
        described.append(Features((100 + grams).astype(np.intp), KEYS, dense))
        surprises.append(0.4 + meaning[grams].mean() + cues @ dense + generator.normal(0, 0.1))
    return described, np.array(surprises, np.float32)


def _rows(described: list[Features]) -> npt.NDArray[np.float64]:
    rows = np.zeros((len(described), BUCKETS + WIDTH))
    for row, features in zip(rows, described, strict=True):
        row[features.grams] = GRAM_VALUE / np.sqrt(len(features.grams))
        row[features.keys] = KEY_VALUE
        row[BUCKETS:] = features.dense
    return rows


def _predicted(ridge: Ridge, described: list[Features]) -> npt.NDArray[np.float64]:
    return np.array([ridge.predict(features) for features in described])


def test_it_finds_what_a_solver_finds() -> None:
    described, surprises = _answers(SLICE)
    ridge = Ridge(WIDTH)
    for features, surprise in zip(described, surprises, strict=True):
        ridge.learn(features, float(surprise))
    rows = _rows(described)
    duals = np.linalg.solve(rows @ rows.T + PENALTY * np.eye(len(rows)), surprises)
    fresh = _answers(20, seed=1)[0]
    assert _predicted(ridge, fresh) == pytest.approx(_rows(fresh) @ rows.T @ duals, abs=0.005)


def test_past_the_active_answers_it_keeps_what_it_learned_and_learns_on() -> None:
    described, surprises = _answers(2 * ACTIVE)
    ridge, errors = Ridge(WIDTH), []
    for features, surprise in zip(described, surprises, strict=True):
        errors.append(surprise - ridge.predict(features))
        ridge.learn(features, float(surprise))
    assert np.std(errors[:50]) > 0.2
    assert np.std(errors[ACTIVE:]) < 0.13  # the noise alone is 0.1
    others = [Features(np.arange(500, 510), KEYS, np.zeros(WIDTH, np.float32))] * (ACTIVE + 8 * SLICE)
    for features in others:
        ridge.learn(features, 0.4)
    # None of them is active any more: what they taught stands in the weights.
    late = _predicted(ridge, described[ACTIVE:])
    assert np.corrcoef(late, surprises[ACTIVE:])[0, 1] > 0.9


def test_weights_are_used_only_once_they_are_whole() -> None:
    described, surprises = _answers(4 * SLICE)
    ridge, changes = Ridge(WIDTH), []
    for features, surprise in zip(described, surprises, strict=True):
        before = ridge.table.copy(), ridge.dense.copy()
        ridge.learn(features, float(surprise))
        changed = [not np.array_equal(*pair) for pair in zip(before, (ridge.table, ridge.dense), strict=True)]
        assert changed[0] == changed[1]
        changes.append(changed[0])
    assert sum(changes[:SLICE]) > SLICE * 0.9
    assert 1 <= sum(changes[-SLICE:]) <= SLICE // 3


def test_a_large_feature_that_all_answers_share_costs_nothing() -> None:
    spreads = []
    for shared in (0.0, 12.0):
        described, surprises = _answers(3 * ACTIVE)
        ridge, errors = Ridge(WIDTH), []
        for features, surprise in zip(described, surprises, strict=True):
            features.dense[0] = shared
            errors.append(surprise - ridge.predict(features))
            ridge.learn(features, float(surprise))
        spreads.append(np.std(errors[ACTIVE:]))
    assert spreads[1] == pytest.approx(spreads[0], rel=0.02)
