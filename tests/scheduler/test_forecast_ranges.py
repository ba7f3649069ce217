"""Ranges of forecasts lie about the forecast, and are as wide as lengths are unsure."""

import pytest

from clairvoyant_cli.scheduler.forecast_ranges import range_of_run, range_of_wait
from clairvoyant_cli.scheduler.job import Job


def test_the_range_of_a_wait_lies_about_its_median() -> None:
    narrow, wide = range_of_wait(10.0, 0.2), range_of_wait(10.0, 0.9)
    assert wide.low_s < narrow.low_s < narrow.mid_s == 10.0 == wide.mid_s < narrow.high_s < wide.high_s
    assert narrow.low_s * narrow.high_s == pytest.approx(100.0)


def test_a_start_at_once_has_a_range() -> None:
    assert 0.0 < range_of_wait(0.0, 0.5).low_s < range_of_wait(0.0, 0.5).high_s < 0.01


def test_the_range_of_a_run_grows_with_its_spread_and_its_age() -> None:
    job = Job("a", 0.0, cost_s=10.0, tokens=400.0, tokens_q90=600.0)
    job.expect(10.0, 0.0)
    begun, late = range_of_run(job, 0.0), range_of_run(job, 30.0)
    assert begun.low_s < begun.mid_s < 10.0 < begun.high_s
    assert 0.0 < late.low_s < late.mid_s < late.high_s
    job.tokens_q90 = 800.0
    job.expect(10.0, 0.0)
    assert range_of_run(job, 0.0).high_s > begun.high_s


def test_the_order_inside_a_server_moves_the_range() -> None:
    job = Job("a", 0.0, cost_s=10.0, tokens=400.0, tokens_q90=600.0)
    job.expect(10.0, 0.0)
    alone, inside = range_of_run(job, 0.0), range_of_run(job, 0.0, 40.0)
    assert inside.mid_s == pytest.approx(40.0)
    assert inside.high_s / inside.low_s == pytest.approx(alone.high_s / alone.low_s)
