"""Random stories about a scheduler, in virtual time: arrivals, sessions, cuts, outages, limits, the operator.

Each step checks that every job is in one place and that all counts agree. `trace` has each decision, so that
two versions of the scheduler, or two runs, can be compared.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf, isfinite
from typing import Any, NamedTuple

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain, Parts
from clairvoyant_cli.scheduler.choosing import Decision
from clairvoyant_cli.scheduler.fairness import Tenant
from clairvoyant_cli.scheduler.job import ClientFullError, Job, PromptRead, QueueFullError, Reason, Terms
from clairvoyant_cli.scheduler.placement import MAX_PASSED
from clairvoyant_cli.scheduler.policy import MAX_PREEMPTIONS, POLICIES
from clairvoyant_cli.scheduler.preemption import most_preemptions
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.urgency import UrgencySource

MEAN_S = 4.0  # of service, roughly
LONGEST_IDLE_S = 60.0  # how long a slot may be free although a job may use it
OPERATIONS = (
    *("hold", "promote", "reprioritise", "cancel", "pause", "policy", "tau", "tenants", "outage", "broken"),
    *("urgency", "terms", "resize", "able", "last_resort", "reestimate", "spare", "think"),
)


class Speed(NamedTuple):
    prefill: float
    decode: float

    def seconds(self, prompt_tokens: float, tokens: float) -> float:
        return prompt_tokens / self.prefill + tokens / self.decode


def chain(*messages: tuple[object, int]) -> Chain:
    """Return the chain of a conversation, of messages with their lengths in characters."""
    hashes, ends, length = [0], list[int](), 0
    for name, size in messages:
        length += size
        hashes.append(hash((hashes[-1], name)))
        ends.append(length)
    parts = Parts(tuple(hash((1, name)) for name, _ in messages), tuple(ends), 0, 1)
    return Chain(tuple(hashes[1:]), tuple(ends), parts)


class Story:
    """One story. `jobs` arrive; the story ends when the last of them has ended or can never start."""

    def __init__(self, seed: int, jobs: int = 60) -> None:
        rng = self.rng = random.Random(seed)
        self.now, self.jobs, self.number = 0.0, jobs, 0
        self.trouble, self.cuts = rng.random() < 0.7, rng.random() < 0.7
        self.background, self.urgency = rng.choice([0.0, 0.3]), rng.random() < 0.4
        self.sessions = rng.choice([0.0, 0.4, 0.8])
        self.load = rng.choice([0.5, 0.9, 1.5, 4.0])
        self.models = rng.choice([0, 0, 2, 4])
        self.speeds = {name: Speed(rng.choice([200, 2000]), rng.choice([10, 40])) for name in "abc"}
        for name in "cb"[: rng.choice([0, 1, 2, 2])]:
            del self.speeds[name]
        self.sizes = {name: rng.choice([1, 1, 2, 4]) for name in self.speeds}
        self.up = set(self.speeds)
        limits = {"gold": Tenant(2.0, 2.0, 1), "eve": Tenant(max_waiting=6)}
        self.tenants = limits if rng.random() < 0.6 else {}
        self.scheduler = Scheduler(
            POLICIES[rng.choice([*POLICIES, "boost", "boost", "boost"])],
            servers=self.sizes,
            tau_s=rng.choice([None, 5.0, 60.0]),
            capacity=rng.choice([8, 1000]),
            tenants=self.tenants,
            load_s={f"m{n}": 3.0 * n for n in range(1, self.models)},
        )
        if self.models:
            self.scheduler.fleet.residency.unknown_s = 5.0
        for name, speed in self.speeds.items():
            self.scheduler.fleet.servers[name].speed = speed
            self.scheduler.fleet.set_slots(name, self.sizes[name], weight=rng.choice([1.0, 2.0]))
            server = self.scheduler.fleet.servers[name]
            if self.models and rng.random() < 0.5:
                self.scheduler.fleet.residency.set_room(name, rng.choice([1, 2]))
                server.model_slots = rng.choice([0, 1])
            if self.sessions and rng.random() < 0.7:
                server.cache.room_tokens = rng.choice([500.0, 3000.0, 30_000.0])
                server.shared_tokens = rng.choice([inf, inf, 3000.0])
        self.talks: list[dict[str, Any]] = []
        self.place: dict[str, str] = {}  # of each job: waiting, running, stopping, releasing, or how it ended
        self.work: dict[str, tuple[float, float]] = {}  # real tokens of prompt and answer
        self.served_s = defaultdict[str, float](float)
        self.runs: dict[str, tuple[int, float]] = {}  # the number and the start of the present run
        self.idle_since: dict[str, float] = {}
        self.trace: list[object] = []
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order, self._will_look = count(), False

    def later(self, in_s: float, what: Callable[..., None], *how: Any) -> None:
        heappush(self._events, (self.now + in_s, next(self._order), what, how))

    def run(self) -> "Story":
        self.later(0.0, self.arrive)
        if self.trouble:
            self.later(3.0, self.operate)
        while self._events:
            self.now, _, what, how = heappop(self._events)
            what(*how)
            self.start()
            self.check()
        left = [job for job in self.scheduler if not (job.held or self.cannot_start(job))]
        assert not left, f"{left} never started"
        assert not self.scheduler.running
        return self

    def cannot_start(self, job: Job) -> bool:
        return not any(self.scheduler.fleet.may_take(name, job) for name in self.up)

    # -- arrivals

    def arrive(self) -> None:
        rng = self.rng
        self.number += 1
        if self.number < self.jobs:
            self.later(rng.expovariate(self.load * sum(self.sizes.values()) / MEAN_S), self.arrive)
        job = self.job(str(self.number))
        crowds = Counter(each.client for each in self.scheduler)
        try:
            displaced = self.scheduler.submit(job, self.now)
        except ClientFullError:
            assert crowds[job.client] >= (self.scheduler.clients.limits_of(job.client).max_waiting or inf)
            return
        except QueueFullError:
            assert len(self.scheduler) >= self.scheduler.capacity
            return
        self.place[job.id] = "waiting"
        if displaced is not None:
            assert self.place[displaced.id] == "waiting"
            assert not any((displaced.preemptions, displaced.promoted, displaced.held))
            assert crowds[displaced.client] == max(crowds.values()) > crowds[job.client] + 1
            self.place[displaced.id] = "displaced"
        self.trace.append((job.id, job.session, displaced and displaced.id))

    def job(self, job_id: str) -> Job:
        rng, talk = self.rng, dict[str, Any]()
        client = rng.choice(["", "gold", "bob", "eve", "eve"])
        prompt_tokens, tokens = rng.choice([20.0, 200.0, 2000.0]), max(rng.lognormvariate(3.5, 1.1), 1.0)
        if rng.random() < self.sessions:
            talk = self.talk(client)
            client, prompt_tokens = talk["client"], chain(*talk["messages"]).length / 4
        predicted = tokens * rng.lognormvariate(0.0, 0.5)
        cost_s = min(speed.seconds(prompt_tokens, predicted) for speed in self.speeds.values())
        self.work[job_id] = prompt_tokens, tokens
        some = frozenset(rng.sample(sorted(self.speeds), rng.randint(1, len(self.speeds))))
        level = rng.choice([None, None, 0, 2, 4]) if self.urgency else None
        return Job(
            job_id,
            self.now - rng.choice([0.0, 0.0, 3.0]),
            rng.random(),
            cost_s,
            predicted,
            prompt_tokens=prompt_tokens,
            client=client,
            affinity=f"m{rng.randrange(self.models)}" if self.models else "",
            priority=rng.choice([0, 0, 0, -1, 1]),
            tokens_q90=rng.choice([0.0, 2.0 * predicted]),
            urgency=level,
            urgency_by="" if level is None else rng.choice([UrgencySource.CLIENT, UrgencySource.PREDICTOR]),
            prefix=chain(*talk["messages"]) if talk else NO_CHAIN,
            claimed=talk.get("claimed", ""),
            parent=talk.get("parent", ""),
            agentic=bool(talk) and rng.random() < 0.7,
            background_levels=10 * (rng.random() < self.background),
            able=some if rng.random() < 0.2 else frozenset(),
            not_before_s=rng.choice([0.0, 0.0, 0.0, self.now + 0.25]),
        )

    def talk(self, client: str) -> dict[str, Any]:
        """Go on with a conversation, with its beginning changed at times, or begin one."""
        rng, number = self.rng, len(self.talks)
        if not self.talks or rng.random() < 0.25:
            first = [(-rng.randrange(3), 2000), ((number, 0), 300)]
            claimed, parent = rng.choice([("", ""), (f"id{number}", ""), (f"id{number}", "id0")])
            self.talks.append({"client": client, "messages": first, "claimed": claimed, "parent": parent})
            return self.talks[-1]
        talk = rng.choice(self.talks)
        talk["messages"].append(((self.number, 1), rng.choice([80, 1500, 6000])))
        if rng.random() < 0.1:
            talk["messages"][0] = ((self.number, 2), 2000)
        return talk

    # -- runs

    def start(self) -> None:
        while (dispatch := self.scheduler.next(self.now)) is not None:
            job, name = dispatch.job, dispatch.server_id
            assert self.place[job.id] == "waiting"
            assert name in self.up
            assert not job.able or name in job.able
            assert job.pinned in ("", name)
            self.place[job.id] = "running"
            self.runs[job.id] = next(self._order), self.now
            waited_s = self.now - job.queued_s
            self.trace.append((job.id, name, dispatch.reason, waited_s, job.key, dispatch.expected_s))
            left_s = self.speeds[name].seconds(*self.work[job.id]) - self.served_s[job.id]
            self.later(max(left_s, 0.01), self.finish, job.id, self.runs[job.id])
        if len(self.scheduler) and not self._will_look:
            self._will_look = True
            self.later(0.25, self.look)

    def finish(self, job_id: str, run: tuple[int, float]) -> None:
        if self.runs.get(job_id) == run and self.place[job_id] == "running":
            running, rng = self.scheduler.running[job_id], self.rng
            if rng.random() < 0.9:
                cached = rng.choice([None, 0.0, running.expected_cache.tokens, running.job.prompt_tokens])
                calls = rng.random() < 0.5
                self.scheduler.answered(job_id, *self.work[job_id], cached, calls_tool=calls, now=self.now)
            self.end(job_id, "served", served=rng.random() < 0.97)

    def end(self, job_id: str, how: str, *, served: bool) -> None:
        compared = job_id if how == "served" else None
        self.scheduler.arrival_order.ended(job_id, compared, self.rng.choice([0.0, 0.5]))
        self.scheduler.finish(job_id, self.now, served=served)
        self.place[job_id] = how

    def look(self) -> None:
        """Report the progress of running jobs, and preempt those that the scheduler names."""
        self._will_look, scheduler, rng = False, self.scheduler, self.rng
        if not self.cuts or not scheduler.policy.preemptive:
            return
        for job_id, run in scheduler.running.items():
            if self.place[job_id] != "running":
                continue
            job, speed, age_s = run.job, self.speeds[run.server_id], self.now - self.runs[job_id][1]
            prompt_tokens, tokens = self.work[job.id]
            answers_s = self.served_s[job.id] + age_s - prompt_tokens / speed.prefill
            if answers_s < 0.0 and not job.done_tokens:
                scheduler.progress(job.id, 0.0, age_s / 2.0, 0.0, PromptRead(age_s, 0.1))
            else:
                done = min(tokens, max(answers_s * speed.decode, job.done_tokens))
                scheduler.progress(job.id, done, 0.05, rng.choice([0.0, 0.0, 0.3]))
        for preempt in scheduler.preemptions(self.now):
            job = preempt.job
            self.trace.append(("cut", job.id, preempt.server_id))
            if self.place[job.id] == "running":
                assert not preempt.spared
                assert not job.interactive or preempt.reason is Reason.POLICY or preempt.stops_s is not None
                assert not job.interactive or job.preemptions < most_preemptions(
                    MAX_PREEMPTIONS, preempt.kept_tokens
                )
                self.place[job.id] = "stopping"
                self.later(rng.choice([0.0, 0.3]), self.stopped, job.id)

    def stopped(self, job_id: str) -> None:
        if self.place[job_id] == "stopping":
            run = self.scheduler.running[job_id]
            if self.rng.random() < 0.5:
                cache = self.scheduler.fleet.servers[run.server_id].cache
                cache.left(job_id, run.job.prompt_tokens + run.job.done_tokens)
            self.served_s[job_id] += self.now - self.runs[job_id][1]
            self.scheduler.requeue(job_id, self.now, preempted=True)
            self.place[job_id] = "waiting"

    def leave(self, job_id: str) -> None:
        if self.place[job_id] == "releasing":
            self.end(job_id, "left", served=self.rng.random() < 0.5)

    # -- trouble

    def operate(self) -> None:
        """Do one thing that an operator, a client or a server may do, and plan the next one."""
        if self.number >= self.jobs:
            return
        self.later(self.rng.expovariate(0.2), self.operate)
        what = self.rng.choice(OPERATIONS)
        waiting = [each for each, place in self.place.items() if place == "waiting"]
        running = [each for each, place in self.place.items() if place == "running"]
        if waiting and hasattr(self, f"on_waiting_{what}"):
            getattr(self, f"on_waiting_{what}")(self.rng.choice(waiting))
        elif running and hasattr(self, f"on_running_{what}"):
            getattr(self, f"on_running_{what}")(self.rng.choice(running))
        elif hasattr(self, f"on_{what}"):
            getattr(self, f"on_{what}")()

    def on_waiting_hold(self, job_id: str) -> None:
        self.scheduler.hold(job_id, self.now)
        self.later(self.rng.expovariate(0.1), self.release, job_id)

    def release(self, job_id: str) -> None:
        self.scheduler.release(job_id, self.now)

    def on_waiting_promote(self, job_id: str) -> None:
        assert self.scheduler.promote(job_id, self.now)

    def on_waiting_reprioritise(self, job_id: str) -> None:
        assert self.scheduler.reprioritise(job_id, self.rng.randint(-2, 2), self.now)

    def on_waiting_cancel(self, job_id: str) -> None:
        assert self.scheduler.cancel(job_id, self.now)
        self.place[job_id] = "canceled"

    def on_running_cancel(self, job_id: str) -> None:
        self.place[job_id] = "releasing"
        self.later(self.rng.choice([0.0, 2.0]), self.leave, job_id)

    def on_waiting_reestimate(self, job_id: str) -> None:
        cost_s = self.rng.lognormvariate(1.0, 1.0)
        new = {"p_long": self.rng.random(), "cost_s": cost_s}
        assert self.scheduler.reestimate(
            job_id, self.now, **new, tokens=10.0 * cost_s, tokens_q90=20.0 * cost_s
        )

    def on_running_broken(self, job_id: str) -> None:
        able = self.rng.choice([None, frozenset[str](), frozenset(self.rng.choice(sorted(self.speeds)))])
        self.scheduler.requeue(job_id, self.now, able=able)
        self.served_s[job_id], self.place[job_id] = 0.0, "waiting"

    def on_running_spare(self, job_id: str) -> None:
        self.scheduler.spare(job_id)

    def on_running_think(self, job_id: str) -> None:
        self.scheduler.thought(job_id, 20.0, 40.0, 90.0, self.now)

    def on_pause(self) -> None:
        self.scheduler.pause()
        self.later(self.rng.expovariate(0.2), self.scheduler.resume)

    def on_policy(self) -> None:
        self.scheduler.set_policy(POLICIES[self.rng.choice(list(POLICIES))], self.now)

    def on_tau(self) -> None:
        self.scheduler.clients.tau_s = self.rng.choice([None, 1.0, 60.0])

    def on_tenants(self) -> None:
        limits = [Tenant(), Tenant(2.0), Tenant(inf, 0.5), Tenant(None, 3.0, 1), Tenant(max_running=2)]
        self.tenants = {name: self.rng.choice(limits) for name in self.rng.sample(["gold", "bob", "eve"], 2)}
        self.scheduler.set_tenants(self.tenants, self.now, priority_of=lambda job: max(0, job.priority))

    def on_urgency(self) -> None:
        for job in [*self.scheduler, *(run.job for run in self.scheduler.running.values())][:2]:
            by = self.rng.choice([UrgencySource.OPERATOR, UrgencySource.PREDICTOR])
            self.scheduler.set_urgency(job.id, self.rng.choice([None, 0, 4]), by, self.now)

    def on_terms(self) -> None:
        for job in [*self.scheduler, *(run.job for run in self.scheduler.running.values())][-2:]:
            terms = Terms(self.rng.choice(["", "bob", "eve"]), 0, self.rng.choice([0, 10]))
            self.scheduler.set_terms(job.id, terms, self.now)

    def on_able(self) -> None:
        self.scheduler.set_able(lambda job: job.able if int(job.id) % 3 else frozenset(), self.now)

    def on_resize(self) -> None:
        name = self.rng.choice(sorted(self.up or self.sizes))
        self.sizes[name] = max(1, self.sizes[name] + self.rng.choice([-1, 1]))
        self.scheduler.fleet.set_slots(name, self.sizes[name] if name in self.up else 0)

    def on_last_resort(self) -> None:
        name = self.rng.choice(sorted(self.up or self.sizes))
        self.scheduler.fleet.set_slots(name, self.sizes[name] if name in self.up else 0, last_resort=True)
        self.later(20.0, self.back, name)

    def on_outage(self) -> None:
        """Take a server away: what it runs fails, or waits for another."""
        name = self.rng.choice(sorted(self.sizes))
        self.up.discard(name)
        self.scheduler.fleet.set_slots(name, 0)
        for job_id in [each for each, run in self.scheduler.running.items() if run.server_id == name]:
            if self.place[job_id] == "running" and self.rng.random() < 0.7:
                self.on_running_broken(job_id)
            elif self.place[job_id] == "running":
                self.end(job_id, "failed", served=False)
        self.later(self.rng.expovariate(0.1), self.back, name)

    def back(self, name: str) -> None:
        self.up.add(name)
        self.scheduler.fleet.set_slots(name, self.sizes[name])

    # -- checks

    def check(self) -> None:
        """Check that each job is in one place, that all counts agree, and that no slot idles for long."""
        scheduler, places = self.scheduler, self.place.items()
        waiting, running = list(scheduler), [run.job for run in scheduler.running.values()]
        assert {job.id for job in waiting} == {each for each, place in places if place == "waiting"}
        busy = {each for each, place in places if place in ("running", "stopping", "releasing")}
        assert scheduler.running.keys() == busy
        assert {each for server in scheduler.fleet.servers.values() for each in server.running} == busy
        assert scheduler.queue.interactive == sum(not job.background_levels for job in waiting)
        clients = Counter(job.client for job in waiting), Counter(job.client for job in running)
        names = clients[0].keys() | clients[1].keys()
        assert scheduler.clients.counts == {name: (clients[0][name], clients[1][name]) for name in names}
        assert all(isfinite(job.key) for job in waiting)
        self.check_sessions(waiting, running)
        self.check_idle(waiting)

    def check_sessions(self, waiting: list[Job], running: list[Job]) -> None:
        known = self.scheduler.sessions.known
        at = [Counter(job.session for job in jobs if job.session) for jobs in (waiting, running)]
        for each in known.values():
            assert (each.waiting, each.running) == (at[0][each.id], at[1][each.id])
        parents = Counter(known[job.session].parent for job in (*waiting, *running) if job.session in known)
        assert all(each.busy == parents[each.id] for each in known.values())

    def check_idle(self, waiting: list[Job]) -> None:
        scheduler, now = self.scheduler, self.now
        decision = Decision(scheduler.queue, scheduler.fleet, scheduler.guard, now)
        for server in scheduler.fleet.servers.values():
            able = [] if scheduler.paused or len(server.running) >= server.slots else waiting
            swaps_to = scheduler.fleet.residency.swapping_to(server.id)
            able = [
                job
                for job in able
                if job.ready
                and now >= job.not_before_s
                and not scheduler.clients.is_limited(job.client)
                and scheduler.fleet.may_take(server.id, job)
                and scheduler.fleet.open_to(job, server, now)
                and server.has_room(job)
                and (not swaps_to or job.affinity in (*swaps_to, ""))
            ]
            if not able or server.shared_tokens < inf:
                self.idle_since.pop(server.id, None)
                continue
            assert now - self.idle_since.setdefault(server.id, now) <= LONGEST_IDLE_S, f"{server.id}: {able}"
            if not scheduler.fleet.residency.prices:
                assert scheduler.deferring
                assert len(able) <= MAX_PASSED, f"{server.id} idles beside {able}"
                assert not any(job.promoted or decision.is_overdue(job) for job in able)
