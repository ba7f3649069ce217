"""The measures, against plain definitions of them."""

import math
from itertools import combinations

import numpy as np
import pytest
from clairvoyant_lab.ranking import kendall_tau_b, pair_ranking, ranking_accuracy
from hypothesis import given
from hypothesis import strategies as st

from predictor.ranking import pairs_in_order

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([10, 199, 200, 500, 800, 3000])), max_size=40)


@given(PAIRS)
def test_ranking_accuracy_is_the_share_of_pairs_ties_half(rows: list[tuple[int, int]]) -> None:
    scores, tokens = (np.array(column, float) for column in (zip(*rows, strict=True) if rows else ([], [])))
    result = ranking_accuracy(scores, tokens)
    pairs = [(s, t) for s, a in rows if a < 200 for t, b in rows if b >= 800]
    if not pairs:
        assert math.isnan(result.accuracy)
        assert pairs_in_order((s for s, a in rows if a < 200), (s for s, b in rows if b >= 800)) is None
        return
    assert result.accuracy == pairs_in_order(
        (s for s, a in rows if a < 200), (s for s, b in rows if b >= 800)
    )
    assert result.accuracy == pytest.approx(sum((s < t) + (s == t) / 2 for s, t in pairs) / len(pairs))
    assert result.tied_share == pytest.approx(sum(s == t for s, t in pairs) / len(pairs))


@given(PAIRS, st.sampled_from([0.0, 0.2, 0.25, 0.5, 1.0]))
def test_pair_ranking_counts_the_pairs_the_filter_keeps(rows: list[tuple[int, int]], delta: float) -> None:
    scores, tokens = (np.array(column, float) for column in (zip(*rows, strict=True) if rows else ([], [])))
    kept = [
        (s - t) * np.sign(a - b)
        for (s, a), (t, b) in combinations(rows, 2)
        if a != b and abs(a - b) / max(a, b) >= delta
    ]
    result = pair_ranking(scores, tokens, delta)
    assert result.pairs == len(kept)
    if not kept:
        assert math.isnan(result.accuracy)
        assert math.isnan(result.tau_b)
        return
    signs = np.sign(kept)
    assert result.accuracy == pytest.approx((1 + signs.mean()) / 2)
    if signs.any():
        assert result.tau_b == pytest.approx(signs.sum() / math.sqrt(len(kept) * np.count_nonzero(signs)))
    else:
        assert math.isnan(result.tau_b)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=20))
def test_without_a_filter_and_without_ties_of_length_both_tau_b_agree(rows: list[tuple[int, int]]) -> None:
    scores = np.array([score for score, _ in rows], float)
    tokens = np.arange(1.0, len(rows) + 1)
    assert pair_ranking(scores, tokens, 0.0).tau_b == pytest.approx(
        kendall_tau_b(scores, tokens), nan_ok=True
    )


def test_a_pair_at_the_filters_edge_counts() -> None:
    assert pair_ranking(np.array([1.0, 2.0]), np.array([80.0, 100.0]), 0.2).pairs == 1
    assert pair_ranking(np.array([1.0, 2.0]), np.array([81.0, 100.0]), 0.2).pairs == 0


def test_answers_of_no_tokens_make_no_pair() -> None:
    assert pair_ranking(np.array([1.0, 2.0]), np.zeros(2), 0.2).pairs == 0
