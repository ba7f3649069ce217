"""The engine: what it makes of time, and that it adds nothing to the scheduler's decisions."""

import numpy as np
import pytest
from clairvoyant_lab.baselines import ALL_POLICIES
from clairvoyant_lab.simulator.engine import Preemption, Run, SlotSimulation
from clairvoyant_lab.simulator.policies import SIMULATED_POLICIES
from clairvoyant_lab.simulator.workload import (
    Predictions,
    TwoNormals,
    Workload,
    burst,
    noisy_class,
    oracle,
    poisson,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.queue import Scheduler


def three(arrival_s: list[float], service_s: list[float]) -> Workload:
    return Workload(np.array(arrival_s), np.array(service_s), np.zeros(len(arrival_s), dtype=np.int64))


def serve(policy: str, workload: Workload, **options: object) -> Run:
    scheduler = Scheduler(SIMULATED_POLICIES[policy], servers={"a": 1}, capacity=10_000)
    return SlotSimulation(scheduler, workload, oracle(workload), **options).run()  # type: ignore[arg-type]


def test_a_burst_arrives_before_the_first_decision() -> None:
    run = serve("oracle", three([0.0, 0.0, 0.0], [9.0, 1.0, 5.0]))
    assert run.start_s.tolist() == [6.0, 0.0, 1.0]
    assert run.finish_s.tolist() == [15.0, 1.0, 6.0]


@pytest.mark.parametrize(
    ("preemption", "finish_s"),
    [
        (None, [10.0, 11.0]),
        (Preemption(), [11.0, 3.0]),
        (Preemption(fixed_s=0.5), [11.5, 3.0]),
        (Preemption(recompute=1.0), [13.0, 3.0]),
        (Preemption(recompute=1.0, room_s=2.5), [13.0, 3.0]),  # what the other leaves behind is kept, too
        (Preemption(recompute=1.0, room_s=3.0), [11.0, 3.0]),
    ],
)
def test_the_cost_of_a_preemption(preemption: Preemption | None, finish_s: list[float]) -> None:
    run = serve("srpt", three([0.0, 2.0], [10.0, 1.0]), preemption=preemption)
    assert run.finish_s.tolist() == pytest.approx(finish_s)


def guessed(service_s: list[float], guess_s: list[float], arrival_s: list[float]) -> SlotSimulation:
    """Return a run under `srpt` on one slot, of guesses with a spread, forty tokens a second."""
    guess = np.array(guess_s)
    predictions = Predictions(np.full(len(guess), 0.5), guess, 2 * guess, 40 * guess, 80 * guess)
    scheduler = Scheduler(ALL_POLICIES["srpt"], servers={"a": 1})
    return SlotSimulation(scheduler, three(arrival_s, service_s), predictions, preemption=Preemption())


def test_a_job_that_outlives_its_estimate_is_cut_without_another_event() -> None:
    run = guessed([100.0, 5.0], [4.0, 6.0], [0.0, 0.5]).run()
    assert run.preemptions == 1
    assert 6.0 < run.start_s[1] < 40.0
    assert run.finish_s[0] == pytest.approx(105.0)


def test_progress_reveals_nothing_of_the_remaining_length() -> None:
    def told(service_s: float) -> list[float]:
        simulation = guessed([service_s, 5.0], [4.0, 90.0], [0.0, 2.0])
        progress, seen = simulation.scheduler.progress, list[float]()

        def listening(job_id: str, tokens_done: float, resume_s: float = 0.0, evicts_s: float = 0.0) -> None:
            if job_id == "0":
                seen.append(tokens_done)
            progress(job_id, tokens_done, resume_s, evicts_s)

        simulation.scheduler.progress = listening  # type: ignore[method-assign, assignment]
        simulation.run()
        return seen

    short, long = told(6.0), told(30.0)
    assert short == long[: len(short)]
    assert short[:3] == pytest.approx([0.0, 80.0, 100.0])  # on arrivals, then every half second
    assert max(long) > 40.0 * 4.0


def test_a_route_pins_requests_to_workers() -> None:
    workload = three([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    scheduler = Scheduler(ALL_POLICIES["fcfs"], servers={"a": 1, "b": 1})
    simulation = SlotSimulation(scheduler, workload, oracle(workload), route=lambda number, now, queue: "b")
    assert simulation.run().finish_s.tolist() == [1.0, 2.0, 3.0]


@given(st.integers(0, 1000), st.sampled_from(sorted(ALL_POLICIES)), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_every_request_is_served_once_and_the_same_seed_gives_the_same_run(
    seed: int, policy: str, slots: int
) -> None:
    def run() -> Run:
        rng = np.random.default_rng(seed)
        workload = poisson(rng, 60, 0.2 * slots, TwoNormals())
        predictions = noisy_class(rng, workload, 0.8, 3.5, 8.9)
        scheduler = Scheduler(ALL_POLICIES[policy], servers={"a": slots}, tau_s=20.0)
        return SlotSimulation(scheduler, workload, predictions, preemption=Preemption()).run()

    first, second = run(), run()
    assert first.finish_s.tolist() == second.finish_s.tolist()
    assert (first.sojourn_s >= first.workload.service_s - 1e-9).all()
    assert (first.wait_s >= 0.0).all()


@given(st.integers(0, 1000), st.sampled_from(["fcfs", "sjf", "bounded", "boost", "quartz", "rr"]))
@settings(max_examples=15, deadline=None)
def test_the_last_answer_comes_at_the_same_time_under_any_order(seed: int, policy: str) -> None:
    """Work conservation: one slot that never idles is done with a burst when its work is done."""
    workload = burst(np.random.default_rng(seed), (10, 10), TwoNormals(), 0.0)
    run = serve(policy, workload)
    assert run.finish_s.max() == pytest.approx(workload.service_s.sum())


@given(
    st.lists(
        st.tuples(st.floats(0.0, 30.0), st.floats(0.1, 20.0), st.floats(0.1, 20.0)), min_size=1, max_size=40
    ),
    st.sampled_from([0.0, 10.0, 40.0]),
)
@settings(max_examples=50, deadline=None)
def test_no_wait_exceeds_the_bound_the_default_states(
    requests: list[tuple[float, float, float]], tau_s: float
) -> None:
    """A wait is the work there on arrival, plus what came within tau or 80 % of it, plus at most one job."""
    gaps, costs, guesses = (np.array(column) for column in zip(*requests, strict=True))
    workload = Workload(np.cumsum(gaps), costs, np.zeros(len(costs), dtype=np.int64))
    predictions = Predictions(np.full(len(costs), 0.5), guesses, guesses, guesses)
    scheduler = Scheduler(ALL_POLICIES["bounded"], servers={"a": 1}, tau_s=tau_s)
    run = SlotSimulation(scheduler, workload, predictions).run()
    free_s = 0.0
    for arrival_s, cost_s, wait_s in zip(workload.arrival_s, costs, run.wait_s, strict=True):
        ahead_s = max(free_s - arrival_s, 0.0)
        free_s = max(free_s, arrival_s) + cost_s
        soon = (workload.arrival_s > arrival_s) & (workload.arrival_s <= arrival_s + max(tau_s, 0.8 * wait_s))
        tied = (workload.arrival_s == arrival_s).sum() * costs.max()
        assert wait_s <= ahead_s + costs[soon].sum() + tied + costs.max() + 1e-6
