"""The place of each waiting job and its reason match what the queue then does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.explain import Cause, Standing, Standings
from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import Job, Reason
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


def waiting(policy: str, jobs: list[Job], *, tau_s: float | None = None, **options: object) -> Scheduler:
    """Return a scheduler of one worker with one slot, before which jobs wait."""
    scheduler = Scheduler(POLICIES[policy], workers={"a": 1}, tau_s=tau_s, **options)  # type: ignore[arg-type]
    for job in jobs:
        scheduler.submit(job, job.arrival_s)
    return scheduler


def standing(scheduler: Scheduler, now: float, running_s: float = 0.0) -> dict[str, Standing]:
    """Return where each stands, by its id."""
    return {each.entry.job.id: each for each in Standings(scheduler, now, running_s, 1)}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([name for name in POLICIES if name != "oracle"]),
    st.lists(
        st.tuples(st.floats(0.0, 50.0), st.floats(0.1, 20.0), st.integers(-2, 2)), min_size=1, max_size=9
    ),
    st.sampled_from([None, 5.0, 30.0]),
    st.floats(50.0, 90.0),
)
def test_the_first_standing_is_the_next_start_with_its_reason(
    policy: str, asked: list[tuple[float, float, int]], tau_s: float | None, now: float
) -> None:
    jobs = [
        Job(f"{n}", at_s, p_long=cost_s / 20.0, cost_s=cost_s, tokens=cost_s, priority=priority)
        for n, (at_s, cost_s, priority) in enumerate(sorted(asked))
    ]
    scheduler = waiting(policy, jobs, tau_s=tau_s)
    while len(scheduler):
        first = Standings(scheduler, now, 0.0, 1)[0]
        started = scheduler.next(now)
        assert started is not None
        assert started.job.id == first.entry.job.id
        assert (started.reason is Reason.TAU) == (first.cause is Cause.GUARD)
        scheduler.finish(started.job.id, now)


def test_only_the_job_started_by_the_guard_has_cause_guard() -> None:
    jobs = [Job(f"{n}", float(n), p_long=1.0 - n / 10.0, cost_s=10.0 - n) for n in range(5)]
    found = standing(waiting("sjf", jobs, tau_s=10.0), 12.5)
    assert [(each.cause, each.rank, each.overdue_more) for each in (found[n] for n in "01234")] == [
        (Cause.GUARD, 1, 0),
        (Cause.OVERDUE, 5, 1),
        (Cause.OVERDUE, 4, 2),
        (Cause.POLICY, 3, 0),
        (Cause.POLICY, 2, 0),
    ]
    assert found["4"].overdue_s == pytest.approx(-1.5)


def test_a_policy_without_a_guard_knows_no_tau() -> None:
    found = standing(waiting("fcfs", [Job("a", 0.0), Job("b", 1.0)], tau_s=1.0), 100.0)
    assert {each.cause for each in found.values()} == {Cause.POLICY}
    assert {each.overdue_s for each in found.values()} == {None}


def test_waits_are_shown_beside_those_of_arrival_order() -> None:
    jobs = [Job("long", 0.0, cost_s=30.0), Job("short", 1.0, cost_s=2.0)]
    found = standing(waiting("bounded", jobs), 2.0, running_s=4.0)
    assert (found["short"].rank, found["short"].start_s) == (1, 4.0)
    assert (found["short"].rank_fcfs, found["short"].start_fcfs_s) == (2, 34.0)
    assert (found["long"].start_s, found["long"].start_fcfs_s) == (6.0, 4.0)


def test_operator_actions_and_client_limits_are_explained() -> None:
    jobs = [Job(name, 0.0, cost_s=1.0, client="c" if name == "quota" else "") for name in ("runs", "quota")]
    tenants = {"c": Tenant(max_running=1)}
    scheduler = waiting("bounded", [Job("first", 0.0, client="c"), *jobs], tenants=tenants)
    scheduler.set_slots("a", 2)
    scheduler.next(0.0)
    for name in ("held", "top", "wished"):
        scheduler.submit(Job(name, 1.0, cost_s=9.0, priority=3 if name == "wished" else 0), 1.0)
    scheduler.hold("held", 1.0)
    scheduler.promote("top", 1.0)
    found = standing(scheduler, 2.0)
    assert {name: found[name].cause for name in ("quota", "held", "top", "wished", "runs")} == {
        "quota": Cause.CANNOT,
        "held": Cause.HELD,
        "top": Cause.PROMOTED,
        "wished": Cause.PRIORITY,
        "runs": Cause.POLICY,
    }
    assert found["held"].start_s is None
    assert (found["top"].rank, found["held"].rank) == (1, 5)
