"""The place of each waiting job and its reason match what the queue then does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.causes import Cause
from clairvoyant_cli.scheduler.explain import Standing, Standings
from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import Job, Reason
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler


def waiting(
    policy: str, jobs: list[Job], *, tau_s: float | None = None, runs: int = 0, **options: object
) -> Scheduler:
    """Return a scheduler of one slot, before which jobs wait; the first `runs` have started."""
    scheduler = Scheduler(POLICIES[policy], servers={"a": 1}, tau_s=tau_s, **options)  # type: ignore[arg-type]
    for job in jobs:
        scheduler.submit(job, job.arrival_s)
        if runs:
            runs -= scheduler.next(job.arrival_s) is not None
    return scheduler


def standing(scheduler: Scheduler, now: float, running_s: float = 0.0) -> dict[str, Standing]:
    return {each.job.id: each for each in Standings(scheduler, now, running_s, 1)}


def start(standing: Standing) -> float:
    assert standing.start is not None
    return standing.start.mid_s


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
        assert started.job.id == first.job.id
        assert (started.reason is Reason.TAU) == (first.cause is Cause.GUARD)
        scheduler.finish(started.job.id, now)


def test_past_tau_a_place_is_by_size_while_the_guard_starts_none() -> None:
    jobs = [Job(f"{n}", 0.0, p_long=n / 10.0, cost_s=n + 1.0, tokens=n + 1.0) for n in range(3)]
    found = standing(waiting("boost", jobs, tau_s=1.0), 100.0)  # nobody has waited longer than another
    assert {each.cause for each in found.values()} == {Cause.SIZE}
    assert found["2"].overdue_s == 99.0


def test_only_the_job_started_by_the_guard_has_cause_guard() -> None:
    jobs = [Job(f"{n}", float(n), p_long=1.0 - n / 10.0, cost_s=10.0 - n) for n in range(5)]
    found = standing(waiting("sjf", jobs, tau_s=10.0), 12.5)
    assert [(each.cause, each.rank) for each in (found[n] for n in "01234")] == [
        (Cause.GUARD, 1),
        (Cause.GUARD, 2),
        (Cause.GUARD, 3),
        (Cause.SIZE, 5),
        (Cause.SIZE, 4),
    ]
    assert [each.by_guard for each in (found[n] for n in "012")] == [True, False, False]
    assert found["4"].overdue_s == pytest.approx(-1.5)


def test_a_policy_without_a_guard_knows_no_tau() -> None:
    found = standing(waiting("fcfs", [Job("a", 0.0), Job("b", 1.0)], tau_s=1.0), 100.0)
    assert {each.cause for each in found.values()} == {Cause.ARRIVAL}
    assert {(each.tau_s, each.overdue_s) for each in found.values()} == {(None, None)}


def test_waits_are_shown_beside_those_of_arrival_order() -> None:
    jobs = [Job("long", 0.0, cost_s=30.0), Job("short", 1.0, cost_s=2.0)]
    found = standing(waiting("boost", [Job("first", 0.0, cost_s=4.0), *jobs], runs=1), 2.0, running_s=2.0)
    short, long = found["short"], found["long"]
    assert [(each.rank, each.rank_fcfs) for each in (short, long)] == [(1, 2), (2, 1)]
    assert start(short) < start(long) < short.start_fcfs_s
    assert long.start_fcfs_s < start(long)


def test_operator_actions_and_client_limits_are_explained() -> None:
    jobs = [Job(name, 0.0, cost_s=1.0, client="c" if name == "quota" else "") for name in ("runs", "quota")]
    tenants = {"c": Tenant(max_running=1)}
    scheduler = waiting("boost", [Job("first", 0.0, client="c"), *jobs], tenants=tenants)
    scheduler.fleet.set_slots("a", 2)
    scheduler.next(0.0)
    for name in ("held", "top", "wished"):
        scheduler.submit(Job(name, 1.0, cost_s=9.0, priority=3 if name == "wished" else 0), 1.0)
    scheduler.hold("held", 1.0)
    scheduler.promote("top", 1.0)
    found = standing(scheduler, 2.0)
    assert {name: found[name].cause for name in ("quota", "held", "top", "wished", "runs")} == {
        "quota": Cause.LIMIT,
        "held": Cause.HELD,
        "top": Cause.PROMOTED,
        "wished": Cause.URGENT,
        "runs": Cause.SIZE,
    }
    assert (found["held"].start, found["held"].ahead) == (None, None)
    assert (found["top"].rank, found["held"].rank) == (1, 5)


def test_a_server_that_is_down_is_not_blamed_on_the_client() -> None:
    able = {"b": frozenset({"b"}), "any": frozenset[str]()}
    jobs = [Job(name, 0.0, cost_s=1.0, client="c", able=able[name]) for name in able]
    scheduler = waiting("boost", jobs, tenants={"c": Tenant(max_running=0)})
    scheduler.fleet.set_slots("b", 0)
    found = standing(scheduler, 1.0)
    assert (found["b"].cause, found["any"].cause) == (Cause.DOWN, Cause.LIMIT)
    assert found["b"].start is None


def test_a_background_job_has_no_tau_and_is_a_chore() -> None:
    chore = standing(waiting("boost", [Job("c", 0.0, background_levels=100)], tau_s=10.0), 300.0)["c"]
    assert (chore.cause, chore.tau_s, chore.overdue_s) == (Cause.CHORE, None, None)


def test_a_job_whose_model_is_not_loaded_waits_for_a_swap() -> None:
    jobs = [Job(model, 0.0, cost_s=1.0, affinity=model) for model in ("loaded", "other")]
    scheduler = waiting("boost", jobs, load_s={"loaded": 5.0, "other": 5.0})
    scheduler.fleet.residency.set("a", frozenset({"loaded"}))
    found = standing(scheduler, 1.0)
    assert {name: each.cause for name, each in found.items()} == {"loaded": Cause.SIZE, "other": Cause.SWAP}


def test_who_had_more_service_than_others_waits_by_share() -> None:
    scheduler = waiting("boost", [Job("a", 0.0, client="ann"), Job("b", 0.0, client="ben")])
    scheduler.clients.service[True].charge("ann", 9.0, 0.0)
    found = standing(scheduler, 1.0)
    assert {name: each.cause for name, each in found.items()} == {"a": Cause.SHARE, "b": Cause.SIZE}
