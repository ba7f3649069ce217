"""Background jobs wait for interactive ones, but not for ever."""

import random
from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import Job, Terms
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.urgency import UrgencySource
from clairvoyant_cli.scheduler.waiting import FORWARD_AFTER, MAX_BACK_S


def question(number: int, at: float) -> Job:
    return Job(f"question {number}", at, p_long=0.9, cost_s=20.0, tokens=200.0, client="ann")


def title(name: str = "title") -> Job:
    return Job(name, 0.0, p_long=0.0, cost_s=1.0, tokens=10.0, client="ben", background_levels=10)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize(("tau_s", "within_s"), [(100.0, 140.0), (None, MAX_BACK_S + 40.0)])
def test_background_jobs_wait_for_interactive_ones_until_tau(
    name: str, tau_s: float | None, within_s: float
) -> None:
    scheduler = Scheduler(POLICIES[name], servers={"a": 1}, tau_s=tau_s)
    scheduler.submit(title(), 0.0)
    order, now = list[str](), 0.0
    while "title" not in order and now < 4 * within_s:
        scheduler.submit(
            question(len(order), now), now
        )  # one comes whenever one goes: the slot is never idle
        dispatch = scheduler.next(now)
        assert dispatch is not None
        order.append(dispatch.job.id)
        now += dispatch.job.cost_s
        scheduler.finish(dispatch.job.id, now)
    assert len(order) > 2, "a question came first"
    assert now <= within_s + 20.0


def test_background_jobs_of_a_client_without_tau_never_come_forward() -> None:
    scheduler = Scheduler(
        POLICIES["boost"], servers={"a": 1}, tau_s=100.0, tenants={"ben": Tenant(tau_s=inf)}
    )
    scheduler.submit(title(), 0.0)
    for number in range(50):
        scheduler.submit(question(number, 20.0 * number), 20.0 * number)
        dispatch = scheduler.next(20.0 * number)
        assert dispatch is not None
        assert dispatch.job.id == f"question {number}"
        scheduler.finish(dispatch.job.id, 20.0 * (number + 1))
    assert scheduler.next(2000.0) is not None, "once no question waits"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("tau_s", [100.0, None])
def test_consecutive_background_jobs_never_delay_a_question(name: str, tau_s: float | None) -> None:
    scheduler = Scheduler(POLICIES[name], servers={"a": 1}, tau_s=tau_s)
    titles = {f"title {n}" for n in range(5)}
    for each in sorted(titles):
        scheduler.submit(title(each), 0.0)
    order, now = list[str](), 0.0
    while not titles <= set(order) and len(order) < 100:
        scheduler.submit(question(len(order), now), now)
        dispatch = scheduler.next(now)
        assert dispatch is not None
        order.append(dispatch.job.id)
        now += dispatch.job.cost_s
        scheduler.finish(dispatch.job.id, now)
    at = [place for place, each in enumerate(order) if each in titles]
    assert len(at) == len(titles), "all of them start"
    assert min(after - before for before, after in pairwise(at)) > FORWARD_AFTER


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_a_client_in_the_background_has_the_usual_order_among_its_own(name: str, seed: int) -> None:
    def order(levels: int) -> list[str]:
        rng, now, order = random.Random(seed), 0.0, list[str]()
        scheduler = Scheduler(POLICIES[name], servers={"a": 1, "b": 1}, tau_s=40.0)
        for number in range(60):
            cost_s = rng.lognormvariate(1.5, 1.0)
            job = Job(str(number), now, rng.random(), cost_s, 2 * cost_s, 10 * cost_s, client="curl")
            scheduler.submit(replace(job, background_levels=levels), now)
            now += rng.expovariate(0.5)
            while (started := scheduler.next(now)) is not None:
                order.append(started.job.id)
            if scheduler.running and rng.random() < 0.7:
                scheduler.finish(next(iter(scheduler.running)), now)
        return order

    assert order(levels=10) == order(levels=0)


def test_a_job_that_becomes_anothers_takes_its_charges_along() -> None:
    def told(late: bool) -> tuple[object, ...]:
        scheduler = Scheduler(POLICIES["urgency"], servers={"a": 1})
        jobs = [replace(question(number, 0.0), client="127.0.0.1" if late else "ann") for number in range(2)]
        for job in jobs:
            job.urgency, job.urgency_by, job.priority = 1, UrgencySource.CLIENT, 0 if late else 5
            job.background_levels = 0 if late else 10
            scheduler.submit(job, 0.0)
        assert scheduler.next(0.0) is not None
        for job in jobs if late else ():
            assert scheduler.set_terms(job.id, Terms("ann", 5, 10), 9.0)
        counts, rank = (dict(scheduler.clients.counts), scheduler.queue.interactive), jobs[1].rank
        scheduler.finish(jobs[0].id, 30.0)
        of = scheduler.clients.used_s, scheduler.claims._served.used_s
        used = of[0]("ann", 30.0, interactive=False), of[0]("127.0.0.1", 30.0), of[1]("ann", 30.0)
        return counts, rank, [round(each, 6) for each in used]

    assert told(late=True) == told(late=False)


def test_background_jobs_that_run_in_idle_time_do_not_come_forward() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=100.0)
    for number in range(9):
        scheduler.submit(title(f"title {number}"), 0.0)
    levels = list[int]()
    for number in range(8):  # all are past tau
        started = scheduler.next(200.0 + number)
        assert started is not None
        levels.append(started.job.background_levels)
        scheduler.finish(started.job.id, 200.5 + number)
    assert levels[1:] == [10] * 7
    scheduler.submit(question(1, 210.0), 210.0)
    assert scheduler.next(210.0).job.id == "question 1"  # type: ignore[union-attr]


def test_background_jobs_do_not_raise_the_cost_of_a_cut() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=100.0)
    scheduler.submit(question(1, 0.0), 0.0)
    assert scheduler.next(0.0) is not None
    for number in range(30):
        scheduler.submit(title(f"title {number}"), 0.0)
    short = replace(question(2, 1.0), client="cy", p_long=0.0, cost_s=2.0, tokens=20.0)
    scheduler.submit(short, 1.0)
    scheduler.progress("question 1", 20.0, 0.5, 0.5)
    assert [cut.job.id for cut in scheduler.preemptions(1.0)] == ["question 1"]


def test_a_question_cuts_a_background_job_whatever_its_prefill() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=100.0)
    scheduler.submit(title(), 0.0)
    assert scheduler.next(0.0) is not None
    scheduler.submit(question(1, 0.1), 0.1)
    scheduler.progress("title", 5.0, resume_s=30.0)
    assert [cut.job.id for cut in scheduler.preemptions(0.1)] == ["title"]
    scheduler.progress("title", 5.0, resume_s=0.0, evicts_s=30.0)
    assert not scheduler.preemptions(0.1), "somebody would wait for what goes for it"


def test_a_promoted_background_job_is_protected_for_its_predicted_length() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=100.0)
    scheduler.submit(replace(title(), tokens_q90=20.0), 0.0)
    scheduler.submit(question(0, 699.0), 699.0)
    assert scheduler.next(700.0).job.background_levels == 0  # type: ignore[union-attr]
    scheduler.submit(question(1, 702.0), 702.0)
    scheduler.progress("title", 15.0)
    assert not scheduler.preemptions(702.0)
    scheduler.progress("title", 25.0)
    assert [cut.job.id for cut in scheduler.preemptions(702.0)] == ["title"]


def test_background_work_does_not_delay_its_clients_questions() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=100.0)
    for number in range(3):
        scheduler.submit(question(number, 0.0), 0.0)
    assert scheduler.next(0.0) is not None
    for number in range(30):
        scheduler.submit(replace(title(f"title {number}"), cost_s=4.0), 0.0)
    scheduler.submit(replace(question(3, 1.0), client="ben"), 1.0)
    scheduler.finish("question 0", 20.0)
    assert scheduler.next(20.0).job.id == "question 3"  # type: ignore[union-attr]


def test_background_jobs_share_fairly() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=100.0)
    for number in range(5):
        scheduler.submit(title(f"title {number}"), 0.0)
    scheduler.submit(replace(title("ann's"), client="ann", cost_s=1.5), 0.0)
    assert scheduler.next(0.0).job.id == "title 0"  # type: ignore[union-attr]
    scheduler.finish("title 0", 1.0)
    assert scheduler.next(1.0).job.id == "ann's"  # type: ignore[union-attr]


def test_a_cancelled_job_is_charged_for_service_before_a_cut() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1})
    scheduler.submit(question(1, 0.0), 0.0)
    assert scheduler.next(0.0) is not None
    scheduler.requeue("question 1", 15.0, preempted=True)
    scheduler.cancel("question 1", 15.0)
    scheduler.submit(question(2, 15.0), 15.0)
    scheduler.submit(replace(question(3, 15.0), client="cy", cost_s=22.0), 15.0)
    assert scheduler.next(15.0).job.id == "question 3"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", POLICIES)
def test_a_title_waits_for_a_question_that_arrives_after_it(name: str) -> None:
    scheduler = Scheduler(POLICIES[name], servers={"a": 1}, tau_s=100.0)
    scheduler.submit(replace(title(), not_before_s=0.25), 0.0)
    assert scheduler.next(0.0) is None
    assert scheduler.deferring, "it is looked at again"
    scheduler.submit(question(1, 0.1), 0.1)
    assert scheduler.next(0.1).job.id == "question 1"  # type: ignore[union-attr]
    scheduler.finish("question 1", 0.2)
    assert scheduler.next(0.2) is None
    assert scheduler.next(0.25).job.id == "title"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES[name].preemptive])
def test_nothing_is_cut_before_a_jobs_earliest_start(name: str) -> None:
    scheduler = Scheduler(POLICIES[name], servers={"a": 1}, tau_s=100.0)
    scheduler.submit(replace(title("long"), cost_s=50.0, tokens=500.0), 0.0)
    assert scheduler.next(0.0) is not None
    scheduler.submit(replace(title(), client="cy", not_before_s=1.25), 1.0)
    scheduler.progress("long", 5.0)
    assert scheduler.preemptions(1.0) == []
    assert [cut.job.id for cut in scheduler.preemptions(1.25)] == ["long"]


def test_a_promoted_job_ignores_its_earliest_start() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1})
    scheduler.submit(replace(title(), not_before_s=0.25), 0.0)
    scheduler.promote("title", 0.0)
    assert scheduler.next(0.0).job.id == "title"  # type: ignore[union-attr]


def test_an_endless_background_job_is_cut_for_each_question() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1}, tau_s=50.0)
    scheduler.submit(replace(title("endless"), cost_s=60.0, tokens=500.0), 0.0)
    now, forward = 0.0, 0
    assert scheduler.next(now) is not None
    for number in range(30):
        now += 3.0
        short = replace(question(number, now), cost_s=2.0, tokens=20.0)
        scheduler.submit(short, now)
        scheduler.progress("endless", 10.0 * number)
        assert [cut.job.id for cut in scheduler.preemptions(now)] == ["endless"]
        scheduler.requeue("endless", now, preempted=True)
        while (started := scheduler.next(now)) is not None and started.job.id != "endless":
            now += 2.0
            scheduler.finish(started.job.id, now)
        assert started is not None
        forward += not started.job.background_levels
    assert forward, "it came forward"
