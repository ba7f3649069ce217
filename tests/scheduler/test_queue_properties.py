"""The rules of the queue hold under random operations (see the rules in queue.py)."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import Dispatch, Job, QueueFullError, Reason
from clairvoyant_cli.scheduler.placement import MAX_PASSED
from clairvoyant_cli.scheduler.policy import MAX_CUTS, POLICIES
from clairvoyant_cli.scheduler.preemption import most_cuts
from clairvoyant_cli.scheduler.queue import Scheduler

names = st.sampled_from(sorted(POLICIES))
seconds = st.floats(0.0, 100.0)
ids = st.integers(0, 30)

actions = st.one_of(
    st.tuples(
        st.just("submit"),
        st.floats(0.001, 100.0),  # what takes no time at all leaves every server as idle as it was
        st.floats(0, 1),
        st.sampled_from(["", "m1", "m2"]),
        st.sampled_from(["", "gold", "bob", "eve"]),
        st.integers(-1, 1),
    ),
    st.tuples(st.just("next")),
    st.tuples(st.just("finish"), ids, st.booleans()),
    st.tuples(st.just("cancel"), ids),
    st.tuples(st.just("promote"), ids),
    st.tuples(st.just("hold"), ids),
    st.tuples(st.just("release"), ids),
    st.tuples(st.just("reprioritise"), ids, st.integers(-2, 2)),
    st.tuples(st.just("progress"), ids, st.floats(0, 200)),
    st.tuples(st.just("preempt")),
    st.tuples(st.just("give_back"), ids, st.booleans()),
    st.tuples(st.just("spare"), ids),
    st.tuples(st.just("reestimate"), ids, seconds, st.floats(0, 1)),
    st.tuples(st.just("policy"), names),
    st.tuples(st.just("weigh"), st.sampled_from(["gold", "bob", "eve"]), st.floats(0.25, 4.0)),
    st.tuples(st.just("sleep"), seconds),
)


@dataclass
class Story:
    """A scheduler, and what an onlooker knows must be in it."""

    scheduler: Scheduler
    tenants: dict[str, Tenant]
    now: float = 0.0
    submitted: int = 0
    taken: int = 0
    displaced: int = 0
    waiting: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    spared: set[str] = field(default_factory=set)
    cut_at: dict[str, list[str]] = field(default_factory=dict)
    trace: list[Dispatch] = field(default_factory=list)

    def submit(self, cost_s: float, p_long: float, affinity: str, client: str, priority: int) -> None:
        job_id = str(self.submitted)
        self.submitted += 1
        job = Job(
            job_id,
            self.now,
            p_long,
            cost_s,
            tokens=cost_s * 10,
            affinity=affinity,
            client=client,
            priority=priority,
            tokens_q90=cost_s * 20 * (p_long > 0.5),
        )
        before = {entry.id: entry for entry in self.scheduler.waiting()}
        crowds = Counter(entry.client for entry in before.values())
        full = len(self.waiting) >= self.scheduler.capacity
        try:
            displaced = self.scheduler.submit(job, self.now)
        except QueueFullError:
            assert full
            return
        self.taken += 1
        self.waiting.add(job_id)
        assert (displaced is not None) == full
        if displaced is not None:
            self.displaced += 1
            assert displaced.id in self.waiting
            self.waiting.discard(displaced.id)
            assert crowds[displaced.client] == max(crowds.values()) > crowds[client] + 1
            may_go = [each for each in before.values() if self.may_go(each)]
            newer = [each.id for each in may_go if each.arrival_s > displaced.arrival_s]
            assert before[displaced.id] in may_go
            assert not any(crowds[before[each].client] == max(crowds.values()) for each in newer)

    def may_go(self, entry: Job) -> bool:
        return not (entry.held or entry.promoted or entry.id in self.cut_at)

    def weigh(self, client: str, weight: float) -> None:
        self.tenants[client] = replace(self.tenants.get(client, Tenant()), weight=weight)
        self.scheduler.set_tenants(self.tenants, self.now)

    def next(self) -> None:
        dispatch = self.scheduler.next(self.now)
        if dispatch is None:
            return
        assert dispatch.job.id in self.waiting
        self.waiting.discard(dispatch.job.id)
        self.running.add(dispatch.job.id)
        self.spared.discard(dispatch.job.id)
        assert {*self.cut_at.get(dispatch.job.id, [])} <= {dispatch.server_id}
        self.trace.append(dispatch)

    def finish(self, number: int, served: bool = True) -> None:
        job_id = str(number)
        if job_id in self.running:
            self.scheduler.finish(job_id, self.now, served=served)
            self.running.discard(job_id)
            self.gone.add(job_id)

    def cancel(self, number: int) -> None:
        job_id = str(number)
        assert self.scheduler.cancel(job_id, self.now) == (job_id in self.waiting)
        if job_id in self.waiting:
            self.waiting.discard(job_id)
            self.gone.add(job_id)

    def preempt(self) -> None:
        for preempt in self.scheduler.preemptions(self.now):
            assert preempt.job_id in self.running - self.spared
            assert self.scheduler.running[preempt.job_id].reason is Reason.POLICY
            done_tokens = self.scheduler.running[preempt.job_id].done_tokens
            self.cut_at.setdefault(preempt.job_id, []).append(preempt.server_id)
            self.scheduler.requeue(preempt.job_id, self.now, server_id=preempt.server_id)
            assert len(self.cut_at[preempt.job_id]) <= most_cuts(MAX_CUTS, done_tokens)
            self.running.discard(preempt.job_id)
            self.waiting.add(preempt.job_id)
            self.next()

    def give_back(self, number: int, served: bool) -> None:
        job_id = str(number)
        if job_id in self.running:
            self.scheduler.requeue(job_id, self.now, served=served)
            self.running.discard(job_id)
            self.waiting.add(job_id)

    def spare(self, number: int) -> None:
        if str(number) in self.running:
            self.scheduler.spare(str(number))
            self.spared.add(str(number))

    def reestimate(self, number: int, cost_s: float, p_long: float) -> None:
        done = self.scheduler.reestimate(
            str(number),
            self.now,
            p_long=p_long,
            cost_s=cost_s,
            cost_high_s=2.0 * cost_s,
            tokens=10.0 * cost_s,
            tokens_q90=20.0 * cost_s,
        )
        assert done == (str(number) in self.waiting)

    def promote(self, number: int) -> None:
        assert self.scheduler.promote(str(number), self.now) == (str(number) in self.waiting)

    def reprioritise(self, number: int, priority: int) -> None:
        """Give a job another priority, which works exactly when it waits."""
        done = self.scheduler.reprioritise(str(number), priority, self.now)
        assert done == (str(number) in self.waiting)

    def hold(self, number: int) -> None:
        self.scheduler.hold(str(number), self.now)

    def release(self, number: int) -> None:
        self.scheduler.release(str(number), self.now)

    def progress(self, number: int, tokens: float) -> None:
        if str(number) in self.running:
            self.scheduler.progress(str(number), tokens, 0.01)

    def policy(self, name: str) -> None:
        self.scheduler.set_policy(POLICIES[name], self.now)

    def sleep(self, time_s: float) -> None:
        self.now += time_s

    def act(self, action: tuple[Any, ...]) -> None:
        """Do one thing, and check that everything is still in exactly one place."""
        what, *how = action
        getattr(self, what)(*how)
        assert len(self.scheduler) == len(self.waiting)
        assert {entry.id for entry in self.scheduler.waiting()} == self.waiting
        assert set(self.scheduler.running) == self.running
        assert not self.waiting & self.running
        starts = {job_id for each in self.scheduler.residency._servers.values() for job_id in each.starts}
        assert starts <= self.running
        told = self.scheduler.clients
        here = [*self.scheduler.waiting(), *self.scheduler.running.values()]
        assert {name: sum(counts) for name, counts in told.items()} == Counter(e.client for e in here)


def story(name: str, slots: int = 2) -> Story:
    """Return a story about two servers, a tenant with quotas and models that take time to load."""
    tenants = {"gold": Tenant(tau_s=5.0, weight=2.0, max_running=1)}
    scheduler = Scheduler(
        POLICIES[name],
        servers={"a": slots, "b": 1},
        tau_s=20.0,
        capacity=5,
        tenants=tenants,
        load_s={"m1": 5.0, "m2": 10.0},
    )
    return Story(scheduler, dict(tenants))


@given(names, st.lists(actions, max_size=60))
@settings(max_examples=150, deadline=None)
def test_no_job_is_lost_or_duplicated(name: str, script: list[tuple[Any, ...]]) -> None:
    tale = story(name)
    for action in script:
        tale.act(action)
    held = [entry.id for entry in tale.scheduler.waiting() if entry.held]
    for job_id in held:
        tale.scheduler.release(job_id, tale.now)
    while tale.waiting or tale.running:
        tale.next()
        for job_id in sorted(tale.running):
            tale.finish(int(job_id))
    assert len(tale.gone) == tale.taken - tale.displaced
    assert tale.scheduler.clients == {}


@pytest.mark.parametrize("name", [name for name, policy in POLICIES.items() if policy.interrupts])
def test_random_operations_keep_the_rules_of_a_busy_queue(name: str) -> None:
    """Mostly arrivals, starts, progress and cuts: cuts are many, and each job is in one place all along."""
    rng = random.Random(name)
    tale = story(name)
    for _ in range(10_000):
        near = int(rng.choice(sorted(tale.running | tale.waiting) or ["0"]))
        client = rng.choice(["", "gold", "bob", "eve"])
        tale.act(
            rng.choice(
                [
                    ("submit", rng.lognormvariate(1.0, 1.0), rng.random(), rng.choice(["", "m1"]), client, 0),
                    *[("next",)] * 4,
                    ("finish", near, True),
                    *[("progress", near, rng.uniform(0.0, 300.0))] * 2,
                    *[("preempt",)] * 3,
                    ("spare", near) if rng.random() < 0.5 else ("give_back", near, False),
                    ("reestimate", near, rng.lognormvariate(1.0, 1.0), rng.random()),
                    ("cancel", near) if rng.random() < 0.1 else ("sleep", rng.uniform(0.0, 2.0)),
                ]
            )
        )
    assert sum(len(servers) for servers in tale.cut_at.values()) > 100


@given(names, st.lists(actions, max_size=40))
@settings(max_examples=75, deadline=None)
def test_the_same_script_gives_the_same_trace(name: str, script: list[tuple[Any, ...]]) -> None:
    first, second = story(name), story(name)
    for action in script:
        first.act(action)
        second.act(action)
    traces = (
        [(each.job.id, each.server_id, each.reason, each.waited_s) for each in tale.trace]
        for tale in (first, second)
    )
    assert next(traces) == next(traces)


@given(names, st.lists(actions, max_size=40))
@settings(max_examples=75, deadline=None)
def test_no_slot_idles_while_a_job_may_use_it_unless_for_a_better_one(
    name: str, script: list[tuple[Any, ...]]
) -> None:
    tale = story(name)
    for action in script:
        tale.act(action)
    while tale.scheduler.next(tale.now) is not None:
        pass
    busy = Counter(entry.server_id for entry in tale.scheduler.running.values())
    free = {server_id for server_id, slots in tale.scheduler.slots.items() if busy[server_id] < slots}
    golden = any(entry.client == "gold" for entry in tale.scheduler.running.values())
    able = [e for e in tale.scheduler.waiting() if not e.held and not (golden and e.client == "gold")]
    if tale.scheduler.deferring:
        assert len(able) <= MAX_PASSED
        able = [e for e in able if e.promoted or tale.scheduler.is_overdue(e)]
    assert not any(free & {e.pinned or e.routed} if e.pinned or e.routed else free for e in able)


@given(names, st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_equals_run_in_order_of_arrival(name: str, count: int) -> None:
    scheduler = Scheduler(POLICIES[name], servers={"a": 1}, tau_s=50.0)
    for number in range(count):
        scheduler.submit(Job(str(number), 0.0, 0.5, 3.0, 4.0, 30.0), 0.0)
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
