"""Urgent jobs go first and preempt; claims are limited to a share; no job starves."""

import numpy as np
import pytest
from clairvoyant_lab.simulator.engine import Preemption, Run, SlotSimulation
from clairvoyant_lab.simulator.workload import Predictions, Workload

from clairvoyant_cli.scheduler.job import Job, MoveKind, Reason
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.urgency import CLAIM_WINDOW_S, UrgencySource

URGENCY = POLICIES["urgency"]
MANY = 50  # requests of a client that wait at once


def job(name: str, level: int | None, cost_s: float = 1.0, at: float = 0.0, **more: object) -> Job:
    """Return a job of a level, by the operator's rule unless said otherwise."""
    said = {"urgency_by": UrgencySource.RULE} | more
    return Job(name, at, cost_s=cost_s, tokens=10.0 * cost_s, urgency=level, **said)  # type: ignore[arg-type]


def started(scheduler: Scheduler, now: float) -> str:
    """Start what comes next, end it after its time, and return its name."""
    dispatch = scheduler.next(now)
    assert dispatch is not None
    scheduler.finish(dispatch.job.id, now + dispatch.job.cost_s)
    return dispatch.job.id


def test_an_urgent_job_preempts_whatever_runs_or_waits() -> None:
    scheduler = Scheduler(URGENCY, servers={"a": 1})
    scheduler.submit(job("chat", 4, 2.0), 0.0)
    scheduler.next(0.0)
    for number in range(9):
        scheduler.submit(job(str(number), 3, 50.0), 0.0)
    scheduler.submit(job("urgent", 0, 30.0), 0.0)
    scheduler.progress("chat", 5.0, resume_s=0.4)
    assert scheduler.preemptions(0.5) == [scheduler.running["chat"]]
    scheduler.progress("chat", 18.0, resume_s=0.4)  # it ends as soon by itself
    assert scheduler.preemptions(1.8) == []


def test_the_operator_can_set_urgency_of_waiting_and_running_jobs() -> None:
    scheduler = Scheduler(URGENCY, servers={"a": 1})
    scheduler.submit(job("runs", 4, 9.0), 0.0)
    scheduler.next(0.0)
    scheduler.submit(job("waits", 3, 9.0), 0.0)
    assert scheduler.preemptions(0.0) == [scheduler.running["runs"]]
    assert scheduler.set_urgency("runs", 1, UrgencySource.OPERATOR, 1.0)
    assert scheduler.preemptions(1.0) == []
    assert scheduler.set_urgency("waits", 0, UrgencySource.OPERATOR, 2.0)
    assert scheduler.preemptions(2.0) == [scheduler.running["runs"]]
    assert not scheduler.set_urgency("nobody", 0, UrgencySource.OPERATOR, 2.0)
    assert scheduler.running["runs"].job.moves[-1].kind is MoveKind.URGENCY


def overloaded(seed: int, load: float, seconds: float) -> tuple[Workload, Predictions]:
    """Return level-0 requests that alone ask for `load` times what there is, and a few of level 4."""
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0.0, seconds, round(load * seconds / 2.0)))
    service_s = rng.uniform(1.0, 3.0, len(arrival_s))
    urgency = np.where(np.arange(len(arrival_s)) % 40 == 7, 4, 0)
    work = Workload(arrival_s, service_s, urgency, 10.0 * service_s, urgency=urgency)
    return work, Predictions(np.full(len(arrival_s), 0.5), service_s, service_s, 10.0 * service_s)


@pytest.mark.parametrize("preemption", [None, Preemption(0.05)])
@pytest.mark.parametrize("load", [0.95, 1.2])
def test_under_steady_emergencies_every_request_ends(load: float, preemption: Preemption | None) -> None:
    seconds, tau_s = 1500.0, 60.0
    work, predictions = overloaded(1, load, seconds)

    def run(with_tau_s: float | None) -> Run:
        scheduler = Scheduler(URGENCY, servers={"a": 1}, tau_s=with_tau_s, capacity=10_000)
        return SlotSimulation(scheduler, work, predictions, preemption=preemption).run()

    guarded, unguarded = run(tau_s), run(None)
    late, urgent = work.urgency == 4, work.urgency == 0
    # Of five starts one is for who has waited longest, and one in forty is of level 4: none piles up.
    if load < 1.0:
        assert guarded.sojourn_s[late].max() < 2.5 * tau_s
    assert np.median(guarded.sojourn_s[late]) < max(0.6 * np.median(unguarded.sojourn_s[late]), 1.1 * tau_s)
    assert guarded.sojourn_s[late].max() < 0.6 * unguarded.sojourn_s[late].max()
    assert np.median(guarded.sojourn_s[urgent]) < 0.1 * np.median(guarded.sojourn_s[late])


def shouting(
    level: int | None, by: UrgencySource, seconds: int, modestly: int | None = None
) -> tuple[float, int]:
    """Let a client call all that it sends urgent, as much as there is room for, beside a modest one, all of
    whose requests are of one level.

    Return the seconds that it was served as urgent, and how many requests of the modest one were served.
    """
    scheduler = Scheduler(URGENCY, servers={"a": 1}, capacity=10_000)
    urgent_s, modest = 0.0, 0
    for second in range(seconds):
        at = float(second)
        if scheduler.clients.counts.get("loud", (0, 0))[0] < MANY:
            scheduler.submit(job(f"loud {second}", level, 1.0, at, client="loud", urgency_by=by), at)
        if second % 2 and scheduler.clients.counts.get("modest", (0, 0))[0] < MANY:
            scheduler.submit(job(f"modest {second}", modestly, 1.0, at, client="modest", urgency_by=""), at)
        dispatch = scheduler.next(at)
        assert dispatch is not None
        scheduler.finish(dispatch.job.id, at + 1.0)
        urgent_s += dispatch.job.urgency == 0
        modest += dispatch.job.client == "modest"
    return urgent_s, modest


def test_excess_urgency_claims_gain_no_more_than_a_share() -> None:
    seconds = 1000
    urgent_s, modest = shouting(0, UrgencySource.CLIENT, seconds)
    assert urgent_s <= 0.5 * seconds + CLAIM_WINDOW_S
    _, in_order = shouting(None, UrgencySource.NOBODY, seconds)
    assert modest > 0.4 * in_order
    _, beside_texts = shouting(
        0, UrgencySource.PREDICTOR, seconds, modestly=4
    )  # a text that is read as it is
    assert beside_texts > 0.4 * in_order
    _, by_rule = shouting(0, UrgencySource.RULE, seconds)  # what the operator says holds for all of it
    assert by_rule < 0.01 * modest


@pytest.mark.parametrize(
    ("by", "level", "order"),
    [
        (UrgencySource.PREDICTOR, 0, ["late", "later", "claims 0"]),
        (UrgencySource.CLIENT, 2, ["late", "later", "claims 0"]),
        (UrgencySource.RULE, 0, ["late", "claims 0", "claims 1"]),
        (UrgencySource.CLIENT, 3, ["late", "claims 0", "claims 1"]),
    ],
)
def test_within_a_client_claims_do_not_delay_overdue_requests(
    by: UrgencySource, level: int, order: list[str]
) -> None:
    scheduler = Scheduler(URGENCY, servers={"a": 1}, tau_s=5.0)
    for name in ("late", "later"):
        scheduler.submit(job(name, 3, 9.0, urgency_by=UrgencySource.PREDICTOR, client="home"), 0.0)
    for number in range(9):
        scheduler.submit(job(f"claims {number}", level, at=5.0, urgency_by=by, client="home"), 5.0)
    assert [started(scheduler, 6.0) for _ in range(3)] == order


def test_ignored_claims_are_marked_and_a_lone_clients_claims_count() -> None:
    scheduler = Scheduler(URGENCY, servers={"a": 1})
    for number in range(200):
        scheduler.submit(job(f"loud {number}", 0, 1.0, client="loud", urgency_by=UrgencySource.CLIENT), 0.0)
    scheduler.submit(job("later", 4, 0.1, client="loud", urgency_by=UrgencySource.CLIENT), 0.0)
    for second in range(100):
        assert started(scheduler, float(second)).startswith("loud")  # charged a second each
    assert all(entry.urgency_by == UrgencySource.CLIENT for entry in scheduler.waiting())
    scheduler.submit(job("modest", 1, 5.0, 100.0, client="modest", urgency_by=UrgencySource.PREDICTOR), 100.0)
    dispatch = scheduler.next(100.0)
    assert dispatch is not None
    assert (dispatch.job.id, dispatch.reason) == ("modest", Reason.POLICY)
    refused = [entry for entry in scheduler.waiting() if entry.urgency_by == UrgencySource.SHARE]
    assert len(refused) == 100
    assert {entry.moves[-1].note for entry in refused} == {"none by share"}
    assert not scheduler.set_urgency(
        refused[0].id, 0, UrgencySource.PREDICTOR, 101.0
    )  # read once more, in vain
    assert scheduler.set_urgency(refused[0].id, 0, UrgencySource.OPERATOR, 101.0)


def test_a_level_that_changes_during_the_answer_leaves_no_debt() -> None:
    def owed_s(change: bool) -> float:
        scheduler = Scheduler(URGENCY, servers={"a": 1})
        scheduler.submit(job("claims", 1, 100.0, client="ann", urgency_by=UrgencySource.PREDICTOR), 0.0)
        scheduler.next(0.0)
        if change:
            scheduler.set_urgency("claims", 0, UrgencySource.PREDICTOR, 60.0)
        scheduler.finish("claims", 120.0)
        return scheduler.claims._served.used_s("ann", 120.0)

    assert owed_s(True) == pytest.approx(owed_s(False)) == pytest.approx(120.0)
