"""Upper quantiles are corrected until they hold."""

from random import Random

import pytest

from clairvoyant_cli.scheduler.quantile_coverage import Coverage


@pytest.mark.parametrize("spread", [0.3, 1.2])
def test_corrected_quantiles_have_their_nominal_coverage(spread: float) -> None:
    rng, coverage, missed = Random(1), Coverage(), 0
    for number in range(4000):
        actual_s = rng.lognormvariate(0.0, spread)
        quantile_s = coverage.corrected("short", 1.0)
        missed += number >= 1000 and actual_s > quantile_s
        coverage.learn("short", quantile_s, actual_s)
    assert missed / 3000 == pytest.approx(0.05, abs=0.01)
