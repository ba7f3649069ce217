"""Each policy's order, in the smallest case that shows it."""

import pytest

from clairvoyant_cli.scheduler.job import Job, Reason
from clairvoyant_cli.scheduler.policy import POLICIES, RETIRED, Policy, unknown_policy
from clairvoyant_cli.scheduler.queue import Scheduler


def one_slot(name: str, **options: float) -> Scheduler:
    return Scheduler(POLICIES[name], servers={"a": 1}, **options)  # type: ignore[arg-type]


def drain(scheduler: Scheduler, now: float) -> list[str]:
    """Run all that waits, at one moment, and return the ids in order."""
    order = []
    while (dispatch := scheduler.next(now)) is not None:
        order.append(dispatch.job.id)
        scheduler.finish(dispatch.job.id, now)
    return order


@pytest.mark.parametrize("name", RETIRED)
def test_a_policy_of_an_earlier_version_names_the_one_to_use(name: str) -> None:
    assert unknown_policy(name) == f"policy {name} was removed; use boost"


def test_sjf_orders_by_the_probability_of_a_long_answer() -> None:
    scheduler = one_slot("sjf")
    for job_id, p_long in [("a", 0.9), ("b", 0.1), ("c", 0.5)]:
        scheduler.submit(Job(job_id, 0.0, p_long=p_long), 0.0)
    assert drain(scheduler, 1.0) == ["b", "c", "a"]


def test_the_papers_guard_falls_back_to_arrival_order_once_all_are_past_tau() -> None:
    scheduler = one_slot("sjf", tau_s=10.0)
    for number, p_long in enumerate([0.9, 0.1, 0.5]):
        scheduler.submit(Job(str(number), 0.0 + number, p_long=p_long), 0.0)
    assert drain(scheduler, 100.0) == ["0", "1", "2"]


def test_each_model_has_its_own_tau() -> None:
    scheduler = one_slot("sjf", tau_s=100.0)
    scheduler.clients.tau_by_model = {"small": 10.0, "large": 60.0}
    for number, model in enumerate(["large", "unknown", "small"]):
        scheduler.submit(Job(model, float(number), p_long=0.9, model=model), float(number))
    scheduler.submit(Job("short", 3.0, p_long=0.1, model="large"), 3.0)
    dispatch = scheduler.next(30.0)
    assert dispatch is not None
    assert (dispatch.job.id, dispatch.reason) == ("small", Reason.TAU)
    scheduler.finish("small", 30.0)
    assert drain(scheduler, 30.0)[0] == "short"  # the older ones are not past theirs


def test_a_ration_allows_four_policy_starts_between_promotions() -> None:
    scheduler = one_slot("urgency", tau_s=10.0)
    for number in range(8):
        scheduler.submit(Job(str(number), float(number), cost_s=10.0 - number), 0.0)
    assert drain(scheduler, 100.0) == ["0", "7", "6", "5", "4", "1", "3", "2"]


def test_the_default_does_not_fall_back_to_arrival_order_in_a_burst() -> None:
    scheduler = one_slot("boost", tau_s=10.0)
    for number, cost_s in enumerate([9.0, 8.0, 3.0, 2.0]):
        scheduler.submit(Job(str(number), 0.01 * number, cost_s=cost_s), 0.1)
    assert drain(scheduler, 100.0) == ["3", "2", "1", "0"]


def test_the_default_promotes_after_five_times_the_wait() -> None:
    scheduler = one_slot("boost", tau_s=10.0)
    scheduler.submit(Job("long", 0.0, cost_s=9.0), 0.0)
    scheduler.submit(Job("short", 41.0, cost_s=2.0), 41.0)
    dispatch = scheduler.next(50.0)
    assert dispatch is not None
    assert (dispatch.job.id, dispatch.reason, dispatch.job.queued_s) == ("long", Reason.TAU, 0.0)


def test_urgency_comes_before_length() -> None:
    scheduler = one_slot("urgency")
    for job_id, level, cost_s in [("a", 4, 1.0), ("b", 0, 9.0), ("c", None, 1.0), ("d", 0, 5.0)]:
        scheduler.submit(Job(job_id, 0.0, cost_s=cost_s, urgency=level), 0.0)
    assert drain(scheduler, 0.0) == ["d", "b", "c", "a"]


def test_a_clients_priority_comes_before_the_policy() -> None:
    scheduler = one_slot("sjf")
    scheduler.submit(Job("short", 0.0, p_long=0.1), 0.0)
    scheduler.submit(Job("wanted", 1.0, p_long=0.9, priority=-1), 1.0)
    assert drain(scheduler, 2.0) == ["wanted", "short"]


def test_a_bursting_client_goes_behind_a_quiet_one() -> None:
    scheduler = one_slot("boost")
    for number in range(5):
        scheduler.submit(Job(f"greedy{number}", 0.0, cost_s=5.0, client="greedy"), 0.0)
    assert scheduler.next(0.0).job.id == "greedy0"  # type: ignore[union-attr]
    scheduler.submit(Job("modest", 4.0, cost_s=5.0, client="modest"), 4.0)
    scheduler.finish("greedy0", 5.0)
    assert drain(scheduler, 5.0)[0] == "modest"


def test_among_its_own_requests_a_client_keeps_shortest_first() -> None:
    scheduler = one_slot("boost")
    for number, cost_s in enumerate([50.0, 5.0, 20.0]):
        scheduler.submit(Job(f"ann {number}", 0.0, cost_s=cost_s, client="ann"), 0.0)
    scheduler.submit(Job("ben", 0.0, cost_s=30.0, client="ben"), 0.0)
    assert [each.id for each in scheduler.waiting()] == ["ann 1", "ann 2", "ben", "ann 0"]
    assert drain(scheduler, 0.0) == ["ann 1", "ann 2", "ben", "ann 0"]


def test_a_preemption_does_not_restart_tau() -> None:
    scheduler = one_slot("boost", tau_s=10.0)
    scheduler.submit(Job("long", 0.0, cost_s=9.0, tokens=9.0), 0.0)
    scheduler.next(0.0)
    scheduler.requeue("long", 8.0)
    scheduler.submit(Job("short", 9.0, cost_s=1.0), 9.0)
    dispatch = scheduler.next(11.0)
    assert dispatch is not None
    assert (dispatch.job.id, dispatch.reason, dispatch.job.queued_s) == ("long", Reason.TAU, 8.0)


def test_among_overdue_jobs_the_first_arrival_goes_first_even_if_preempted() -> None:
    scheduler = one_slot("boost", tau_s=10.0)
    scheduler.submit(Job("first", 0.0, cost_s=9.0, tokens=9.0), 0.0)
    scheduler.next(0.0)
    scheduler.submit(Job("second", 2.0, cost_s=8.0), 2.0)
    scheduler.requeue("first", 12.0)
    for number in range(12):
        scheduler.submit(Job(f"short{number}", 14.9, cost_s=1.0), 14.9)
    order = drain(scheduler, 15.0)
    assert (order[0], order[10]) == ("first", "second")


def test_a_flooding_clients_running_jobs_are_preempted() -> None:
    scheduler = one_slot("boost")
    for number in range(5):
        scheduler.submit(Job(f"ann {number}", 0.0, cost_s=4.0, tokens=40.0, client="ann"), 0.0)
    assert scheduler.next(0.0).job.id == "ann 0"  # type: ignore[union-attr]
    scheduler.finish("ann 0", 4.0)
    assert scheduler.next(4.0).job.id == "ann 1"  # type: ignore[union-attr]
    scheduler.progress("ann 1", 20.0, resume_s=0.1)
    scheduler.submit(Job("ben", 6.0, cost_s=5.0, tokens=50.0, client="ben"), 6.0)
    assert scheduler.preemptions(6.0) == [scheduler.running["ann 1"]]
    scheduler.requeue("ann 1", 6.0, preempted=True)
    assert drain(scheduler, 6.0) == ["ben", "ann 1", "ann 2", "ann 3", "ann 4"]


def test_fair_policies_start_a_request_past_tau_however_many_short_ones_others_send() -> None:
    scheduler = one_slot("boost", tau_s=5.0)
    scheduler.submit(Job("long", 0.0, cost_s=60.0, client="ann"), 0.0)
    order = []
    for second in range(7):
        scheduler.submit(Job("short", second, cost_s=1.0, client=f"c{second}"), second)
        dispatch = scheduler.next(second)
        assert dispatch is not None
        order.append((dispatch.job.id, dispatch.reason))
        scheduler.finish(dispatch.job.id, second + 1.0)
    assert order == [("short", Reason.POLICY)] * 6 + [("long", Reason.TAU)]


@pytest.mark.parametrize("models", [1, 4])
def test_a_flood_past_tau_gets_one_start_per_tau_while_others_wait(models: int) -> None:
    scheduler = one_slot("boost", tau_s=15.0)
    for number in range(50):
        affinity = f"model {number % models}"
        scheduler.submit(Job(f"ann {number}", 0.0, cost_s=90.0, client="ann", affinity=affinity), 0.0)
    scheduler.submit(Job("cyd", 1.0, cost_s=600.0, client="cyd"), 1.0)
    by_tau = []
    for second in range(100, 142):
        scheduler.submit(Job(f"ben {second}", second, cost_s=1.0, client=f"ben {second % 9}"), second)
        dispatch = scheduler.next(second)
        assert dispatch is not None
        if dispatch.reason is Reason.TAU:
            by_tau.append(dispatch.job.client)
        scheduler.finish(dispatch.job.id, second + 1.0)
    assert by_tau == ["ann", "cyd", "ann", "ann"]  # one start in ten is by tau


@pytest.mark.parametrize(("other", "by_tau"), [((), ["long 0", "long 1"]), (("ben",), ["long 0", "ben"])])
def test_the_turns_of_tau_are_counted_only_while_another_client_waits(
    other: tuple[str, ...], by_tau: list[str]
) -> None:
    scheduler = one_slot("boost", tau_s=20.0)
    for number in range(2):
        scheduler.submit(Job(f"long {number}", 250.0, cost_s=500.0, client="ann"), 250.0)
    for client in other:
        scheduler.submit(Job(client, 250.0, cost_s=900.0, client=client), 250.0)
    for number in range(20):
        scheduler.submit(Job(f"short {number}", 300.0, cost_s=1.0, client="ann"), 300.0)
    dispatches = [scheduler.next(300.0)]
    for second in range(10):
        assert dispatches[-1] is not None
        scheduler.finish(dispatches[-1].job.id, 301.0 + second, served=False)  # the rate stays
        dispatches.append(scheduler.next(301.0 + second))
    assert [each.job.id for each in dispatches if each and each.reason is Reason.TAU] == by_tau


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_change_of_policy_loses_nothing_and_keeps_promoted_jobs_in_front(policy: Policy) -> None:
    scheduler = one_slot("fcfs")
    for number in range(10):
        scheduler.submit(Job(str(number), 0.0, p_long=0.5, cost_s=1.0 + number), 0.0)
    scheduler.promote("7", 0.0)
    scheduler.set_policy(policy, 1.0)
    scheduler.pause()
    assert repr(scheduler) == f"<Scheduler {policy.name}: 10 waiting, 0 running (paused)>"
    assert scheduler.next(1.0) is None
    scheduler.resume()
    order = drain(scheduler, 1.0)
    assert order[0] == "7"
    assert sorted(order) == [str(number) for number in range(10)]
