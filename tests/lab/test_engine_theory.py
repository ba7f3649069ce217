"""The engine against queueing theory: each formula within the confidence interval of independent runs."""

from collections.abc import Callable
from operator import attrgetter

import numpy as np
import pytest
from clairvoyant_lab.baselines import ALL_POLICIES
from clairvoyant_lab.confidence import Estimate, mean_of
from clairvoyant_lab.simulator.engine import Preemption, Run, SlotSimulation
from clairvoyant_lab.simulator.workload import Floats, Service, TwoNormals, oracle, poisson

from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queue import Scheduler
from tests.lab import theory

RATE_PER_S = 0.7
REQUESTS = 500
SRPT = Policy(
    "srpt",
    key := attrgetter("remaining_s"),
    preemptive=True,
    max_preemptions=1 << 30,
    seconds=key,
)
SEEDS = 8


def measured(
    policy: Policy, service: Service, rate_per_s: float, figure: Callable[[Run], Floats]
) -> Estimate:
    """Return the mean of a figure over independent runs with perfect foresight."""
    means = []
    for seed in range(SEEDS):
        workload = poisson(np.random.default_rng(seed), REQUESTS, rate_per_s, service)
        scheduler = Scheduler(policy, servers={"a": 1}, capacity=REQUESTS)
        preemption = Preemption() if policy.preemptive else None
        run = SlotSimulation(scheduler, workload, oracle(workload), preemption=preemption).run()
        means.append(float(figure(run).mean()))
    return mean_of(means)


def quantiles(service: TwoNormals) -> Floats:
    """Return a fine sample that stands for the distribution of a mix of two normals."""
    draws, _ = service(np.random.default_rng(99), 400_000)
    return draws


def test_mm1_in_order_of_arrival() -> None:
    wait = measured(ALL_POLICIES["fcfs"], theory.exponential(1.0), RATE_PER_S, lambda run: run.wait_s)
    assert theory.covers(wait, theory.mm1_fcfs_wait_s(RATE_PER_S, 1.0))


def test_mmc_in_order_of_arrival() -> None:
    """Three slots of one server: Erlang's formula."""
    rate, slots = 2.1, 3
    means = []
    for seed in range(SEEDS):
        workload = poisson(np.random.default_rng(seed), REQUESTS, rate, theory.exponential(1.0))
        scheduler = Scheduler(ALL_POLICIES["fcfs"], servers={"a": slots}, capacity=REQUESTS)
        means.append(float(SlotSimulation(scheduler, workload, oracle(workload)).run().wait_s.mean()))
    assert theory.covers(mean_of(means), theory.mmc_fcfs_wait_s(rate, 1.0, slots))


def test_mg1_in_order_of_arrival() -> None:
    service = TwoNormals()
    wait = measured(ALL_POLICIES["fcfs"], service, 0.12, lambda run: run.wait_s)
    assert theory.covers(wait, theory.mg1_fcfs_wait_s(0.12, quantiles(service)))


def test_mg1_shortest_first() -> None:
    service = TwoNormals()
    wait = measured(ALL_POLICIES["oracle"], service, 0.12, lambda run: run.wait_s)
    assert theory.covers(wait, theory.mg1_sjf_wait_s(0.12, quantiles(service)))


def test_mg1_shortest_remaining_first() -> None:
    service = TwoNormals()
    sojourn = measured(SRPT, service, 0.12, lambda run: run.sojourn_s)
    assert theory.covers(sojourn, theory.mg1_srpt_sojourn_s(0.12, quantiles(service)))


def test_the_formulas_agree_where_they_must() -> None:
    sizes = theory.exponential_quantiles(1.0)
    fcfs = theory.mg1_fcfs_wait_s(RATE_PER_S, sizes)
    assert fcfs == pytest.approx(theory.mm1_fcfs_wait_s(RATE_PER_S, 1.0), rel=1e-3)
    assert theory.mmc_fcfs_wait_s(RATE_PER_S, 1.0, 1) == pytest.approx(
        theory.mm1_fcfs_wait_s(RATE_PER_S, 1.0)
    )
    assert (
        theory.mg1_srpt_sojourn_s(RATE_PER_S, sizes)
        < 1.0 + theory.mg1_sjf_wait_s(RATE_PER_S, sizes)
        < 1.0 + fcfs
    )
