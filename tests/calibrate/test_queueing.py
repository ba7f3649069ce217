"""The numbers a calibration prints, against others' formulas and against brute force."""

import random
from statistics import NormalDist, fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.calibrate.queueing import cs2, estimate, pk_wait_s, sojourns


def test_the_interval_covers_the_mean_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    covered = 0
    for _ in range(40):
        found = estimate([rng.expovariate(0.5) for _ in range(100)])
        assert found is not None
        covered += found.low <= 2.0 <= found.high
    assert covered >= 35


def test_the_interval_agrees_with_the_normal_one_on_independent_samples() -> None:
    rng = random.Random(2)
    values = [rng.gauss(10.0, 2.0) for _ in range(400)]
    found = estimate(values)
    assert found is not None
    half = NormalDist().inv_cdf(0.975) * 2.0 / 400**0.5
    assert found.mean == pytest.approx(fmean(values))
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_samples_that_wait_for_the_same_jobs_are_less_certain() -> None:
    rng = random.Random(3)
    values = [level for _ in range(20) for level in [rng.gauss(10.0, 3.0)] * 5]
    alone, in_blocks = estimate(values), estimate(values, batch=5)
    assert alone is not None
    assert in_blocks is not None
    assert in_blocks.high - in_blocks.low > 1.5 * (alone.high - alone.low)


def test_there_is_no_estimate_of_nothing_and_one_of_one() -> None:
    assert estimate([]) is None
    single = estimate([3.0], batch=5)
    assert single is not None
    assert (single.low, single.mean, single.high) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("a_slot", [8, 14, 40, 100])
@pytest.mark.parametrize("slots", [1, 4])
def test_the_interval_of_a_queue_covers_its_mean(a_slot: int, slots: int) -> None:
    in_flight = 5 * slots

    def queued(rng: random.Random, count: int) -> list[float]:
        long = [number % 5 == rng.randrange(5) for number in range(count * 5 // 4 + in_flight)]
        services = [rng.uniform(5.0, 25.0) if each else rng.uniform(0.2, 5.0) for each in long]
        times = zip(long, sojourns(services, in_flight, slots), strict=True)
        return [time_s for each, time_s in list(times)[in_flight:] if not each]

    truth = fmean(queued(random.Random(0), 40_000))
    rng, covered = random.Random(1), 0
    for _ in range(100):
        found = estimate(queued(rng, a_slot * slots), batch=in_flight)
        assert found is not None
        covered += found.low <= truth <= found.high
    assert covered >= 85


def test_variability_and_wait_are_those_of_the_paper() -> None:
    assert cs2([1.0, 3.0]) == pytest.approx(0.25)
    assert cs2([2.0, 2.0]) == 0.0
    # Half 2 s and half 30 s at rho 0.74: 0.74 * 16 * (1 + 196 / 256) / 0.52, equation 1.
    assert pk_wait_s(0.74, 16.0, cs2([2.0, 30.0])) == pytest.approx(40.2, abs=0.1)


def test_five_in_flight_on_the_papers_m1_wait_about_as_long_as_it_reports() -> None:
    # 2 s and 30 s of service (Table 1), four short to a long, five in flight: the paper has about 40 s.
    services = [2.0, 2.0, 30.0, 2.0, 2.0] * 40
    times = sojourns(services, in_flight=5, slots=1)
    short = [time_s for time_s, service_s in zip(times, services, strict=True) if service_s == 2.0]
    assert 30.0 < fmean(short[20:]) < 45.0


@given(
    services=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40),
    in_flight=st.integers(1, 12),
    slots=st.integers(1, 4),
)
def test_a_queue_on_paper_obeys_littles_law(services: list[float], in_flight: int, slots: int) -> None:
    times = sojourns(services, in_flight, slots)
    assert all(time_s >= service_s - 1e-9 for time_s, service_s in zip(times, services, strict=True))
    if in_flight <= slots:
        assert times == pytest.approx(services)
    # Nobody is in the system for longer than all the work there is.
    assert max(times) <= sum(services) + 1e-9
