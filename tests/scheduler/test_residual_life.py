"""What an answer still has to come, against the integral that defines it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.job import (
    MIN_SIGMA,
    Z90,
    Job,
    mean_residual,
    residual_quantile,
    sigma_of,
)

SPREADS = st.floats(1.0, 3.0)


def integrated(done: float, mean: float, q90: float) -> float:
    """Return E[X - done | X > done] by the trapezoidal rule over ln X, scaled by the density at `done`."""
    sigma = max(sigma_of(mean, q90), MIN_SIGMA)
    mu = math.log(mean) - sigma * sigma / 2.0
    start = math.log(done)
    reach = 12.0 * sigma / max((start - mu) / sigma, 1.0) if start > mu else mu + 12.0 * sigma - start
    logs = np.linspace(start, start + reach, 200_001)
    near = (start - mu) / sigma
    weights = np.exp(-0.5 * (((logs - mu) / sigma) ** 2 - near * near))
    return float(np.trapezoid(weights * (np.exp(logs) - done), logs) / np.trapezoid(weights, logs))


@pytest.mark.parametrize("ratio", [1.1, 1.5, 2.1, 5.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0, 2.0, 5.0, 50.0])
def test_it_is_the_conditional_mean_of_the_log_normal(ratio: float, share: float) -> None:
    mean = 250.0
    wanted = integrated(share * mean, mean, ratio * mean)
    assert mean_residual(share * mean, mean, ratio * mean) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("done", [0.0, 10.0, 100.0, 400.0])
def test_quantiles_of_what_is_left_are_those_of_drawn_answers(done: float) -> None:
    sigma = sigma_of(100.0, 200.0)
    drawn = np.exp(np.random.default_rng(1).normal(math.log(100.0) - sigma**2 / 2.0, sigma, 2_000_000))
    left = drawn[drawn > done] - done
    for share in (0.1, 0.5, 0.9):
        wanted = float(np.quantile(left, share))
        assert residual_quantile(done, 100.0, 200.0, share) == pytest.approx(wanted, rel=0.1, abs=0.5)


def test_quantiles_far_beyond_the_prediction_grow_with_the_mean() -> None:
    low, middle, high = (residual_quantile(1e6, 100.0, 150.0, share) for share in (0.1, 0.5, 0.9))
    assert 0.0 < low < middle < mean_residual(1e6, 100.0, 150.0) < high


@pytest.mark.parametrize("ratio", [1.2, 1.7, 2.2])
def test_the_spread_is_that_of_the_quantile(ratio: float) -> None:
    sigma = sigma_of(100.0, 100.0 * ratio)
    assert 100.0 * math.exp(Z90 * sigma - sigma * sigma / 2.0) == pytest.approx(100.0 * ratio)


@given(st.floats(1.0, 1e5), SPREADS, st.floats(1e-6, 1e12))
def test_it_is_positive_and_finite_however_long_it_runs(mean: float, ratio: float, done: float) -> None:
    left = mean_residual(done, mean, ratio * mean)
    assert math.isfinite(left)
    assert left > 0.0


@given(st.floats(1.0, 1e5), SPREADS, st.floats(0.01, 1e4))
def test_a_running_answer_raises_its_expected_total(mean: float, ratio: float, share: float) -> None:
    done = share * mean
    later = 1.05 * done
    whole = done + mean_residual(done, mean, ratio * mean)
    assert later + mean_residual(later, mean, ratio * mean) >= whole * (1.0 - 1e-9)


@given(st.floats(1.0, 1e5), st.floats(1.5, 3.0))
def test_the_residual_grows_beyond_the_estimate(mean: float, ratio: float) -> None:
    left = [mean_residual(share * mean, mean, ratio * mean) for share in (4.0, 8.0, 40.0, 4000.0)]
    assert left == sorted(left)


def test_without_a_spread_the_residual_is_the_rest_or_a_tenth() -> None:
    assert mean_residual(30.0, 100.0, 0.0) == 70.0
    assert mean_residual(95.0, 100.0, 0.0) == 10.0
    assert mean_residual(400.0, 100.0, 0.0) == 40.0


def test_remaining_seconds_scale_with_remaining_tokens() -> None:
    entry = Job("a", 0.0, cost_s=10.0, tokens=100.0, tokens_q90=180.0)
    assert entry.remaining_s == 10.0
    entry.done_tokens = 300.0
    assert entry.remaining_s == pytest.approx(mean_residual(300.0, 100.0, 180.0) / 10.0)
    assert entry.remaining_s > 5.0  # it was to take 10 s and has run 30
