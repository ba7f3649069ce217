"""A correction is used as far as it has earned it."""

import numpy as np

from predictor.lexical.correction_weight import MIN_PAIRS, CorrectionWeight


def _judged(
    weight: CorrectionWeight, owns: float, noise: float, answers: int = 400, seed: int = 0
) -> CorrectionWeight:
    """Judge answers whose part unknown to the static score the correction predicts `owns` of."""
    generator = np.random.default_rng(seed)
    for _ in range(answers):
        static, rest = generator.normal(5.5, 1.0), generator.normal(0, 1.0)
        weight.judge(static, owns * rest + noise * generator.normal(), static + rest)
    return weight


def test_without_evidence_it_has_credit() -> None:
    weight = CorrectionWeight()
    credit = weight.share
    assert 0.5 < credit < 0.95
    for _ in range(MIN_PAIRS):
        weight.judge(5.0, 1.0, 5.0)  # answers alike in length order nothing
    assert weight.share == credit


def test_a_correction_that_orders_better_is_used_whole() -> None:
    assert _judged(CorrectionWeight(), owns=0.5, noise=0.1).share > 0.95


def test_a_correction_that_orders_worse_is_not_used() -> None:
    assert _judged(CorrectionWeight(), owns=0.0, noise=1.0).share < 0.01


def test_one_that_makes_no_difference_is_doubted() -> None:
    shares = [_judged(CorrectionWeight(), owns=0.0, noise=0.02, seed=seed).share for seed in range(8)]
    assert 0.2 < np.mean(shares) < CorrectionWeight().share


def test_what_is_lost_can_be_earned_again() -> None:
    weight = _judged(CorrectionWeight(), owns=0.0, noise=1.0)
    _judged(weight, owns=0.6, noise=0.0, answers=1500)
    assert weight.share > 0.9


def test_the_evidence_can_be_handed_on() -> None:
    before, after = _judged(CorrectionWeight(), owns=0.3, noise=0.3), CorrectionWeight()
    after.resume(before.sums.copy())
    assert after.share == before.share > 0.0
