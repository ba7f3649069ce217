"""The batching backend, and what becomes of preempted caches."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clairvoyant_cli.research.simulator.batch import WORKER, BatchSimulation, Machine, PreemptedCaches, Rates
from clairvoyant_cli.research.simulator.engine import Run
from clairvoyant_cli.research.simulator.predictions import from_tokens
from clairvoyant_cli.research.simulator.workload import Workload
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler

RATES = Rates(alpha_1=0.0, alpha_2=0.1, beta=0.01, gamma_1=0.0, gamma_2=1.0)


def run(
    policy: str,
    tokens: list[float],
    slots: int,
    arrival_s: list[float] | None = None,
    cache: PreemptedCaches | None = None,
) -> Run:
    """Run requests with prompts of ten tokens, known lengths and one second a token."""
    n = len(tokens)
    machine = Machine(slots, RATES)
    truth = np.array(tokens)
    prompt = np.full(n, 10.0)
    arrivals = np.zeros(n) if arrival_s is None else np.array(arrival_s)
    workload = Workload(arrivals, machine.alone_s(prompt, truth), np.zeros(n, dtype=np.int64), truth, prompt)
    scheduler = Scheduler(POLICIES[policy], workers={WORKER: slots})
    return BatchSimulation(scheduler, workload, from_tokens(truth, workload), machine, cache=cache).run()


def test_a_batch_advances_together_and_prefill_delays_all() -> None:
    found = run("fcfs", [3.0, 5.0], slots=2)
    assert found.first_token_s.tolist() == [3.0, 3.0]  # two prefills of 1 s, then a token
    assert found.finish_s.tolist() == [5.0, 7.0]


def test_a_free_place_is_filled_at_once() -> None:
    found = run("fcfs", [2.0, 4.0, 1.0], slots=2)
    assert found.finish_s.tolist() == [4.0, 7.0, 6.0]


def test_an_arrival_joins_a_batch_that_has_room() -> None:
    found = run("fcfs", [10.0, 1.0], slots=2, arrival_s=[0.0, 3.5])
    assert found.first_token_s[1] == pytest.approx(4.0 + 1.0 + 1.0)


def test_urgent_requests_preempt() -> None:
    machine = Machine(1, RATES)
    truth, prompt = np.array([20.0, 2.0]), np.array([10.0, 10.0])
    kind = np.zeros(2, dtype=np.int64)
    workload = Workload(
        np.array([0.0, 4.0]), machine.alone_s(prompt, truth), kind, truth, prompt, urgency=np.array([4, 0])
    )
    scheduler = Scheduler(POLICIES["urgency"], workers={WORKER: 1})
    cache = PreemptedCaches(RATES, capacity_tokens=1000.0)
    found = BatchSimulation(scheduler, workload, from_tokens(truth, workload), machine, cache=cache).run()
    assert found.finish_s.tolist() == [24.0, 7.0]


def test_the_least_urgent_cache_is_evicted_first() -> None:
    cache = PreemptedCaches(RATES, capacity_tokens=100.0)
    cache.paused(1, 60.0, key=4.0)
    cache.paused(2, 60.0, key=1.0)
    assert cache.resume_s(2, 10.0, 50.0) == 0.0
    assert cache.resume_s(1, 10.0, 50.0) > 0.0
    cache.resumed(2)
    cache.paused(3, 100.0, key=0.0)
    assert cache.resume_s(3, 10.0, 50.0) == 0.0


rates = st.builds(
    Rates,
    alpha_1=st.floats(0.0, 1e-5),
    alpha_2=st.floats(1e-6, 1e-3),
    beta=st.floats(1e-6, 0.1),
    gamma_1=st.floats(1e-9, 1e-3),
    gamma_2=st.floats(1e-4, 0.1),
)


@given(rates, st.floats(1, 2000), st.floats(0, 2000), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_no_other_choice_of_tokens_to_keep_is_cheaper(
    rates: Rates, prompt: float, done: float, share: float
) -> None:
    best = rates.resume_s(prompt, done)
    assert best <= rates.resume_with_s(prompt, done, share * done) * (1 + 1e-9) + 1e-12
    top = rates.beta - rates.gamma_1 * prompt - (rates.gamma_1 + 2.0 * rates.gamma_2) / 2.0
    printed = min(
        max(0.0, top / (2.0 * rates.gamma_1)), done
    )  # Eq. 6 of semantic scheduling as it is printed
    assert best <= rates.resume_with_s(prompt, done, printed) * (1 + 1e-9) + 1e-12


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=25),
    st.integers(1, 4),
    st.sampled_from(sorted(POLICIES)),
)
@settings(max_examples=60, deadline=None)
def test_every_answer_is_written_in_full(tokens: list[int], slots: int, policy: str) -> None:
    lengths = [float(n) for n in tokens]
    found = run(
        policy,
        lengths,
        slots,
        arrival_s=[0.7 * n for n in range(len(tokens))],
        cache=PreemptedCaches(RATES, 100.0),
    )
    shortest_s = replace(found).workload.tokens * RATES.gamma_2
    assert (found.sojourn_s >= shortest_s - 1e-9).all()
    assert (found.finish_s >= found.first_token_s).all()
