"""Preemption: which jobs are cut, and for which."""

import statistics
from collections import Counter
from math import inf
from time import perf_counter

import numpy as np
import pytest
from clairvoyant_lab.simulator.engine import Preemption, SlotSimulation
from clairvoyant_lab.simulator.engine import Run as Simulated
from clairvoyant_lab.simulator.workload import Predictions, Workload
from hypothesis import given, settings
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.job import Job, MoveKind, PromptRead, Reason, Run
from clairvoyant_cli.scheduler.policy import MAX_PREEMPTIONS, POLICIES, PREEMPTION_MARGIN
from clairvoyant_cli.scheduler.preemption import may_be_preempted, most_preemptions
from clairvoyant_cli.scheduler.queue import Scheduler

SRPT = POLICIES["boost"]


def job(name: str, cost_s: float, at: float = 0.0, **more: object) -> Job:
    return Job(name, at, cost_s=cost_s, tokens=10.0 * cost_s, **more)  # type: ignore[arg-type]


def one_runs(cost_s: float = 10.0, slots: int = 1, **options: object) -> Scheduler:
    """Return a scheduler on whose server "a" the job "long" has just started."""
    scheduler = Scheduler(SRPT, servers={"a": slots}, **options)  # type: ignore[arg-type]
    scheduler.submit(job("long", cost_s), 0.0)
    scheduler.next(0.0)
    return scheduler


def cut(scheduler: Scheduler, now: float) -> Run:
    """Carry out the one cut that is worth making; return what takes the slot."""
    [preempt] = scheduler.preemptions(now)
    scheduler.requeue(preempt.job.id, now, preempted=True)
    dispatch = scheduler.next(now)
    assert dispatch is not None
    return dispatch


def test_a_short_job_preempts_a_long_one_which_resumes() -> None:
    scheduler = one_runs()
    scheduler.submit(job("short", 2.0, 1.0), 1.0)
    scheduler.progress("long", 10.0, 0.05)
    assert cut(scheduler, 1.0).job.id == "short"
    [waiting] = scheduler.waiting()
    assert (waiting.preemptions, waiting.pinned, waiting.done_tokens) == (1, "a", 10.0)
    assert waiting.remaining_s == pytest.approx(9.05)
    assert waiting.moves[-1].kind is MoveKind.PREEMPTED
    scheduler.finish("short", 3.0)
    scheduler.next(3.0)
    scheduler.progress("long", 12.0, 0.05)
    assert scheduler.running["long"].job.remaining_s == pytest.approx(8.8)  # what was owed has been paid


def test_the_cost_of_a_cut_counts_per_waiting_job() -> None:
    scheduler = one_runs(4.0)
    scheduler.submit(job("short", 3.0, 0.0), 0.0)
    gain_s = 4.0 - 3.0 - PREEMPTION_MARGIN * 3.0
    scheduler.progress("long", 0.0, gain_s - 0.01)
    assert scheduler.preemptions(0.0) == [scheduler.running["long"]]
    scheduler.submit(job("behind", 9.0, 0.0), 0.0)
    assert scheduler.preemptions(0.0) == []
    scheduler.progress("long", 0.0, gain_s / 2.0 - 0.01)
    assert scheduler.preemptions(0.0) == [scheduler.running["long"]]


def test_evicted_contexts_are_part_of_the_cost_of_a_cut() -> None:
    scheduler = one_runs(4.0)
    scheduler.submit(job("short", 2.0), 0.0)
    scheduler.progress("long", 0.0, 0.1, 3.0)
    assert scheduler.preemptions(0.0) == []
    scheduler.progress("long", 0.0, 0.1, 0.0)
    cut(scheduler, 0.0)
    [waiting] = scheduler.waiting()
    assert waiting.remaining_s == pytest.approx(4.1)


def test_a_job_with_a_lost_context_resumes_later() -> None:
    scheduler = one_runs(10.0)
    scheduler.submit(job("second", 8.0), 0.0)
    cut(scheduler, 0.0)
    scheduler.submit(job("third", 1.0), 0.0)
    assert cut(scheduler, 0.0).job.id == "third"
    assert [each.id for each in scheduler.waiting()] == ["second", "long"]
    scheduler.set_resume_cost("second", 5.0, 0.0)
    assert [each.id for each in scheduler.waiting()] == ["long", "second"]
    scheduler.finish("third", 1.0)
    again = scheduler.next(1.0)
    assert again is not None
    assert again.job.id == "long"


def test_a_job_that_outlived_its_estimate_is_cut() -> None:
    scheduler = Scheduler(SRPT, servers={"a": 1})
    scheduler.submit(job("endless", 4.0, tokens_q90=80.0), 0.0)
    scheduler.next(0.0)
    scheduler.submit(job("next", 6.0, 1.0), 1.0)
    scheduler.progress("endless", 20.0)
    assert scheduler.preemptions(2.0) == []
    scheduler.progress("endless", 200.0)
    assert scheduler.preemptions(20.0) == [scheduler.running["endless"]]  # some 8 s left, of 20 and more


def test_a_very_long_job_may_be_cut_more_often() -> None:
    assert most_preemptions(4, 499.0) == 4
    assert most_preemptions(4, 40_960.0) == 85


@pytest.mark.parametrize("slots", [0, 1, 3])
def test_nothing_is_cut_where_slots_were_taken_away_or_are_free(slots: int) -> None:
    scheduler = one_runs(slots=2)
    scheduler.submit(job("longer", 11.0), 0.0)
    scheduler.next(0.0)
    scheduler.submit(job("short", 2.0), 0.0)
    assert scheduler.preemptions(0.0) == [scheduler.running["longer"]]
    scheduler.fleet.set_slots("a", slots)
    assert scheduler.preemptions(0.0) == []


def test_nothing_is_cut_while_paused_or_for_held_jobs() -> None:
    scheduler = one_runs()
    scheduler.submit(job("short", 2.0), 0.0)
    scheduler.hold("short", 0.0)
    assert scheduler.preemptions(0.0) == []
    scheduler.release("short", 0.0)
    scheduler.pause()
    assert scheduler.preemptions(0.0) == []


def test_one_waiting_job_cuts_one_running_job_where_two_workers_could_serve_it() -> None:
    scheduler = Scheduler(SRPT, servers={"a": 1, "b": 1})
    for name, cost_s in (("x", 10.0), ("y", 20.0)):
        scheduler.submit(job(name, cost_s), 0.0)
        scheduler.next(0.0)
    scheduler.submit(job("short", 2.0), 0.0)
    assert scheduler.preemptions(0.0) == [scheduler.running["y"]]


def test_a_promoted_one_takes_the_slot_and_keeps_it() -> None:
    scheduler = one_runs(3.0)
    scheduler.submit(job("wanted", 30.0), 0.0)
    assert scheduler.preemptions(0.0) == []
    scheduler.promote("wanted", 0.0)
    assert cut(scheduler, 0.0).reason is Reason.PROMOTED
    scheduler.submit(job("short", 1.0), 0.0)
    assert scheduler.preemptions(0.0) == []


def test_a_better_priority_preempts_unless_the_victim_ends_as_soon() -> None:
    scheduler = one_runs(10.0)
    scheduler.submit(job("wanted", 30.0, priority=-1), 0.0)
    scheduler.progress("long", 0.0, 11.0)
    assert scheduler.preemptions(0.0) == []
    scheduler.progress("long", 0.0, 1.0)
    assert scheduler.preemptions(0.0) == [scheduler.running["long"]]


def test_an_overdue_job_is_not_cut_for_jobs_that_the_guard_starts_later() -> None:
    scheduler = one_runs(100.0, tau_s=20.0)
    scheduler.submit(job("short", 2.0, 30.0), 30.0)
    assert scheduler.preemptions(30.0) == []
    scheduler.clients.tau_s = 40.0
    assert scheduler.preemptions(30.0) == [scheduler.running["long"]]


def test_a_new_prediction_updates_place_and_charge() -> None:
    scheduler = Scheduler(POLICIES["boost"], servers={"a": 1})
    scheduler.submit(job("first", 5.0, client="ann"), 0.0)
    scheduler.submit(job("second", 9.0, client="bob"), 0.0)

    def reestimate() -> bool:
        return scheduler.reestimate("second", 30.0, p_long=0.1, cost_s=1.0, tokens=10.0, tokens_q90=20.0)

    assert reestimate()
    dispatch = scheduler.next(30.0)
    assert dispatch is not None
    assert scheduler.clients.used_s("bob", 30.0) == pytest.approx(1.0)
    second = dispatch.job
    assert (second.id, second.p_long, second.cost_s) == ("second", 0.1, 1.0)
    assert (second.tokens, second.tokens_q90) == (10.0, 20.0)
    assert not reestimate()
    scheduler.finish("second", 33.0)
    assert scheduler.clients.used_s("bob", 33.0) == pytest.approx(3.0)


class Watched(Scheduler):
    """A scheduler that checks its own laws as it decides."""

    overdue_in_a_row = 0
    cuts: Counter[str]
    ended: Counter[str]

    def next(self, now: float) -> Run | None:
        """Check the guard: while requests are past tau, one of ten starts is the one furthest past it, or has
        waited at least half as long.
        """
        tau_s = self.clients.tau_s or inf
        overdue = [each for each in self.waiting() if now - each.arrival_s > tau_s]
        oldest = min((e.arrival_s for e in overdue), default=None)
        dispatch = super().next(now)
        if dispatch is not None and (oldest is None or now - oldest < 2.0 * (now - dispatch.job.arrival_s)):
            self.overdue_in_a_row = 0
        elif dispatch is not None and dispatch.job.arrival_s != oldest:
            self.overdue_in_a_row += 1
            assert self.overdue_in_a_row <= 9
        return dispatch

    def preemptions(self, now: float) -> list[Run]:
        """Check that each cut gains more than its price and margin, and meets nobody it must not."""
        preempts = super().preemptions(now)
        for preempt in preempts:
            victim, start = preempt.job, next(iter(self.waiting()))
            gain_s = self.policy.seconds(victim) - self.policy.seconds(start) - preempt.resume_s * len(self)
            assert gain_s > PREEMPTION_MARGIN * start.remaining_s
            assert preempt.reason is Reason.POLICY
            assert victim.preemptions < most_preemptions(MAX_PREEMPTIONS, victim.done_tokens)
            self.cuts[victim.id] += 1
        return preempts

    def finish(self, job_id: str, now: float, *, served: bool = True) -> None:
        super().finish(job_id, now, served=served)
        self.ended[job_id] += 1


def watched(seed: int, count: int, price_s: float, tau_s: float | None) -> tuple[Watched, Simulated]:
    rng = np.random.default_rng(seed)
    service_s = rng.lognormal(1.0, 1.2, count)
    workload = Workload(np.cumsum(rng.exponential(4.0, count)), service_s, np.zeros(count, dtype=np.int64))
    guess_s = service_s * rng.lognormal(0.0, 0.7, count)
    predictions = Predictions(
        np.full(count, 0.5), guess_s, 2.0 * guess_s, 40.0 * guess_s, rng.choice([0.0, 80.0], count) * guess_s
    )
    scheduler = Watched(SRPT, servers={"a": 1}, tau_s=tau_s, capacity=count)
    scheduler.cuts, scheduler.ended = Counter(), Counter()
    run = SlotSimulation(scheduler, workload, predictions, preemption=Preemption(price_s)).run()
    return scheduler, run


@given(st.integers(0, 1 << 20), st.sampled_from([0.0, 0.01, 0.15]), st.sampled_from([None, 0.0, 20.0, 60.0]))
@settings(max_examples=40, deadline=None)
def test_with_preemption_each_job_ends_once_and_the_guard_holds(
    seed: int, price_s: float, tau_s: float | None
) -> None:
    scheduler, run = watched(seed, 60, price_s, tau_s)
    assert scheduler.ended == Counter(str(number) for number in range(60))
    assert run.preemptions == scheduler.cuts.total()
    assert (run.sojourn_s >= run.workload.service_s - 1e-9).all()


def test_the_property_runs_include_cuts() -> None:
    scheduler, _ = watched(1, 400, 0.01, 60.0)
    assert scheduler.cuts.total() > 40
    assert max(scheduler.cuts.values()) > 1
    assert scheduler.guard.firings > 10


def test_a_decision_over_a_full_queue_takes_at_most_2_ms() -> None:
    scheduler = one_runs(1e6, tau_s=1e9)
    for number in range(1024):
        scheduler.submit(job(str(number), 2.0 + number), 0.0)
    scheduler.progress("long", 5.0, 0.01)
    times = []
    for _ in range(100):
        before = perf_counter()
        assert len(scheduler.preemptions(1.0)) == 1
        times.append(perf_counter() - before)
    assert statistics.median(times) < 0.002


def reads(policy: str = "boost", read_s: float = 5.0, again_s: float = 0.0, **more: float) -> Scheduler:
    """Return a scheduler whose job of 20 s and 2,000 prompt tokens has read its prompt for `read_s`."""
    scheduler = Scheduler(POLICIES[policy], servers={"a": 1})
    scheduler.submit(job("long", 20.0, prompt_tokens=2000.0), 0.0)
    scheduler.next(0.0)
    scheduler.progress("long", 0.0, again_s, prefill=PromptRead(read_s, **({"stops_s": 0.0} | more)))
    return scheduler


@pytest.mark.parametrize("policy", ["boost", "urgency"])
def test_a_prompt_that_is_read_is_cut_and_goes_on_anywhere(policy: str) -> None:
    scheduler = reads(policy, again_s=1.0)
    scheduler.submit(job("short", 1.0, 5.0), 5.0)
    assert cut(scheduler, 5.0).job.id == "short"
    [waiting] = scheduler.waiting()
    assert (waiting.preemptions, waiting.pinned) == (1, "")
    assert waiting.remaining_s == pytest.approx(16.0)  # it has read for 5 s, 1 s of them again


@pytest.mark.parametrize("policy", ["fcfs", "sjf"])
def test_other_policies_cut_no_prompt(policy: str) -> None:
    scheduler = reads(policy)
    scheduler.submit(job("short", 1.0, 5.0), 5.0)
    assert scheduler.preemptions(5.0) == []


def test_a_prompt_is_not_cut_where_its_server_stops_too_late() -> None:
    scheduler = reads(read_s=5.0, stops_s=15.0)
    scheduler.submit(job("short", 1.0, 5.0), 5.0)
    assert scheduler.preemptions(5.0) == []


def test_a_prompt_is_not_cut_where_reading_it_again_takes_longer() -> None:
    scheduler = reads(read_s=15.0, again_s=15.0)
    scheduler.submit(job("short", 1.0, 15.0), 15.0)
    assert scheduler.preemptions(15.0) == []
    scheduler = reads(read_s=2.0, again_s=2.0)  # at first, it still pays
    scheduler.submit(job("short", 1.0, 2.0), 2.0)
    assert scheduler.preemptions(2.0) == [scheduler.running["long"]]


@pytest.mark.parametrize(("kept_s", "more"), [(0.0, 0), (5.0, 1), (10.0, 2)])
def test_a_prompt_is_cut_more_often_only_as_more_of_it_is_kept(kept_s: float, more: int) -> None:
    scheduler = reads(read_s=10.0, again_s=10.0 - kept_s)
    entry = scheduler.running["long"]
    entry.job.preemptions = MAX_PREEMPTIONS + more - 1
    assert may_be_preempted(entry, scheduler.policy)
    entry.job.preemptions += 1
    assert not may_be_preempted(entry, scheduler.policy)


def test_a_background_prompt_is_not_cut_without_end() -> None:
    scheduler = Scheduler(SRPT, servers={"a": 1})
    scheduler.submit(job("title", 20.0, background_levels=1), 0.0)
    scheduler.next(0.0)
    scheduler.running["title"].job.preemptions = MAX_PREEMPTIONS
    scheduler.submit(job("short", 1.0), 0.0)
    assert scheduler.preemptions(0.0) == [scheduler.running["title"]]
    scheduler.progress("title", 0.0, 1.0, prefill=PromptRead(1.0, 0.0))
    assert scheduler.preemptions(0.0) == []


def test_a_prompt_is_not_cut_where_a_model_is_loaded() -> None:
    scheduler = Scheduler(SRPT, servers={"a": 1}, load_s={"m": 1.0, "n": 1.0})
    scheduler.fleet.residency.set("a", frozenset({"m"}))
    scheduler.submit(job("long", 20.0, affinity="m"), 0.0)
    scheduler.next(0.0)
    scheduler.progress("long", 0.0, prefill=PromptRead(0.0, 0.0))
    scheduler.submit(job("other model", 1.0, affinity="n"), 0.0)
    assert scheduler.preemptions(0.0) == []
    scheduler.submit(job("same model", 0.5, affinity="m"), 0.0)
    assert scheduler.preemptions(0.0) == [scheduler.running["long"]]
    scheduler.cancel("same model", 0.0)
    scheduler.finish("long", 1.0)
    scheduler.next(1.0)
    scheduler.progress("other model", 0.0, prefill=PromptRead(0.0, 0.0))
    scheduler.submit(job("third", 0.1, 1.0, affinity="n"), 1.0)
    assert scheduler.preemptions(1.0) == [], "its model may still be loading"
