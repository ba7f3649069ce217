"""Forecasts are as good as they claim, and estimates as sure."""

import math

import numpy as np
import pytest
from clairvoyant_lab.confidence import change_of, mean_of
from clairvoyant_lab.simulator.workload import (
    TwoNormals,
    Workload,
    noisy_class,
    poisson,
)

from clairvoyant_cli.calibrate.queueing import student_t
from tests.lab.theory import covers


def two_classes(n: int = 20_000) -> Workload:
    return poisson(np.random.default_rng(5), n, 0.1, TwoNormals())


@pytest.mark.parametrize("accuracy", [0.76, 0.85])
def test_class_predictions_have_the_given_accuracy_and_are_calibrated(accuracy: float) -> None:
    workload = two_classes()
    predictions = noisy_class(np.random.default_rng(1), workload, accuracy, 3.5, 8.9)
    said_long = predictions.p_long > 0.5
    assert (said_long == (workload.kind == 1)).mean() == pytest.approx(accuracy, abs=0.01)
    assert predictions.p_long.mean() == pytest.approx(workload.kind.mean(), abs=0.01)
    assert predictions.cost_s.mean() == pytest.approx(workload.service_s.mean(), rel=0.01)


@pytest.mark.parametrize(
    ("freedom", "tabulated"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (19, 2.093)]
)
def test_students_t(freedom: int, tabulated: float) -> None:
    assert student_t(freedom) == pytest.approx(tabulated, rel=2e-3)


def test_intervals_cover_the_truth_in_95_percent() -> None:
    rng = np.random.default_rng(0)
    covered = [covers(mean_of(rng.normal(3.0, 1.0, 8).tolist()), 3.0) for _ in range(2000)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


def test_paired_changes_cancel_common_noise() -> None:
    base = [10.0, 20.0, 30.0]
    change = change_of([8.0, 16.0, 24.0], base)
    assert change.mean == pytest.approx(-0.2)
    assert change.half_width == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(change_of([1.0], [0.0]).mean)
    assert math.isnan(mean_of([1.0]).half_width)
