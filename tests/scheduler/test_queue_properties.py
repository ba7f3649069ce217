"""The rules of the queue hold in random stories (see the rules in queue.py)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from tests.scheduler.random_stories import Story


@pytest.mark.parametrize("first", range(0, 240, 30))
def test_random_stories_keep_the_rules(first: int) -> None:
    for seed in range(first, first + 30):
        jobs = 20 if seed % 10 else 60
        assert Story(seed, jobs).run().trace, f"Story({seed}, {jobs})"


@pytest.mark.parametrize("seed", [5, 13])
def test_the_same_story_has_the_same_decisions(seed: int) -> None:
    first, second = (repr(Story(seed).run().trace) for _ in range(2))
    assert first == second


@given(st.sampled_from(sorted(POLICIES)), st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_equals_run_in_order_of_arrival(name: str, count: int) -> None:
    scheduler = Scheduler(POLICIES[name], servers={"a": 1}, tau_s=50.0)
    for number in range(count):
        scheduler.submit(Job(str(number), 0.0, 0.5, 3.0, 30.0), 0.0)
    order = []
    while (dispatch := scheduler.next(10.0)) is not None:
        order.append(int(dispatch.job.id))
        scheduler.finish(dispatch.job.id, 10.0)
    assert order == list(range(count))


def test_a_duplicate_id_is_rejected() -> None:
    scheduler = Scheduler(POLICIES["sjf"], servers={"a": 1})
    scheduler.submit(Job("a", 0.0), 0.0)
    with pytest.raises(ValueError, match="in the queue already"):
        scheduler.submit(Job("a", 0.0), 0.0)
