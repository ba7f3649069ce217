"""The queue and its decisions.

Rule 1: no I/O and no clock. `now` is an argument, in seconds; a decision is a return value.
Rule 2: a job is waiting, held, running or gone, and in exactly one of these at any time.
Rule 3: `next` never leaves a slot idle while an unheld job that may use it waits, unless paused. A job may
not use a slot of a worker that it may not run on (`Fleet`), nor any while its client has all it may have.
Rule 4: every operation costs O(log n) amortised in the jobs of a lane and O(lanes) in the lanes, of which
there is one for each affinity, pinned worker and client that has a tau or a quota of slots of its own (and
cost band, under hrrn).
Rule 5: a full queue is shared: see `crowd` for who gives way to a newcomer.
Rule 6: a job's age counts from its arrival, whatever happened to it since; a preemption does not restart tau.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count

from clairvoyant_cli.scheduler.crowd import Crowds, Place
from clairvoyant_cli.scheduler.entry import FIRST, Choice, Entry, LaneId, Standing
from clairvoyant_cli.scheduler.fairness import EVERYBODY, ServiceCounters, Tenant
from clairvoyant_cli.scheduler.job import (
    ClientFullError,
    Dispatch,
    Job,
    Move,
    MoveKind,
    Preempt,
    Reason,
)
from clairvoyant_cli.scheduler.lane import Lane
from clairvoyant_cli.scheduler.placement import Fleet, Residency
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.preemption import may_be_cut, spent, worthwhile
from clairvoyant_cli.scheduler.urgency import Claims, Said

IDLE_LANES = 32
"""Beyond so many lanes, one that falls empty is forgotten."""


class Scheduler:
    """Jobs in, dispatch decisions out, for K slots on each of several workers."""

    def __init__(
        self,
        policy: Policy,
        *,
        workers: Mapping[str, int],
        tau_s: float | None = None,
        capacity: int = 1024,
        tenants: Mapping[str, Tenant] | None = None,
        everybody: Tenant = EVERYBODY,
        load_s: Mapping[str, float] | None = None,
    ) -> None:
        """Start empty.

        `workers` maps a backend's name to its slots; `tau_s` None means no guard; `tenants` holds the rules
        of the clients that have any, `everybody` those of each other client that has a name; `load_s` maps an
        affinity to the seconds it takes to load.
        """
        self.policy = policy
        self.tau_s = tau_s
        self.capacity = capacity
        self.paused = False
        self.tau_firings = 0
        self.residency = Residency(dict(load_s or {}))
        self._tenants = dict(tenants or {})
        self._everybody = everybody
        self.claims = Claims()
        self._counters = ServiceCounters()
        self._fleet = Fleet(workers)
        self._seq = count()
        self._promotions = count(1)
        self._since_promotion = 1 << 30
        self._now = 0.0
        self._waiting: dict[str, Entry] = {}  # insertion order is arrival order
        self._running: dict[str, Entry] = {}
        self._lanes: dict[LaneId, Lane] = {}
        self._crowds = Crowds()
        self._clients_running: dict[str, int] = {}

    def __repr__(self) -> str:
        state = " (paused)" if self.paused else ""
        counts = f"{len(self._waiting)} waiting, {len(self._running)} running"
        return f"<Scheduler {self.policy.name}: {counts}{state}>"

    # -- jobs ---------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> Job | None:
        """Take a job into the queue; return the one that gave way to it, None if there was room.

        QueueFullError if the queue is full and nobody gives way, ClientFullError if the client has all the
        places it may have; ValueError if the id is here already.
        """
        client, rules = job.client, self._rules(job.client)
        if job.id in self:
            raise ValueError(f"a job {job.id!r} is here already")
        crowd = self._crowds.get(client)
        if rules.max_waiting is not None and crowd is not None and crowd.waiting >= rules.max_waiting:
            raise ClientFullError
        self._now = now
        entry = Entry(job, next(self._seq), float(job.priority), job.arrival_s)
        if client:
            entry.usage_s = self._counters.used_s(client, now) / rules.weight
        entry.key = self.policy.key(entry)
        displaced = None
        if len(self._waiting) >= self.capacity:
            displaced = self._crowds.make_room(
                entry, rules.weight, self.capacity, self._place_of, self._overdue
            )
            self.cancel(displaced.job.id, now)
        if client:
            self._counters.charge(client, job.cost_s, now)
            entry.charged_s = now
        entry.moves.append(Move(now, MoveKind.SUBMITTED))
        self._wait(entry)
        return None if displaced is None else displaced.job

    def next(self, now: float) -> Dispatch | None:
        """Decide which job takes which free slot now, and mark it running; None if nothing can start."""
        self._now = now
        if self.paused or not self._waiting:
            return None
        choice = self._choose(now)
        if choice is None:
            return None
        entry, worker, reason = choice
        self._leave(entry)
        job = entry.job
        entry.worker = worker
        entry.reason = reason
        entry.started_s = now
        entry.slice_start_tokens = entry.done_tokens
        entry.moves.append(Move(now, MoveKind.DISPATCHED, reason))
        self._running[job.id] = entry
        self._fleet.busy[worker] += 1
        self._clients_running[job.client] = self._clients_running.get(job.client, 0) + 1
        self.claims.started(job, now)
        if self.residency.prices:
            self.residency.dispatched(worker, job.id, job.affinity, now)
        if reason is Reason.TAU:
            self.tau_firings += 1
            self._since_promotion = 0
        else:
            self._since_promotion += 1
        return Dispatch(job, worker, reason, now - entry.queued_s)

    def finish(self, job_id: str, now: float, *, served: bool = True) -> None:
        """Give back the slot of a running job; KeyError if it does not run.

        `served` says that the worker did run it, so that what it needs is loaded there.
        """
        entry = self._stop(job_id, now, served=served)
        client = entry.job.client
        if client:
            self._counters.give_back(client, entry.job.cost_s, entry.charged_s, now)
            self._counters.charge(client, entry.served_s, now)

    def progress(self, job_id: str, tokens_done: float, resume_s: float = 0.0) -> None:
        """Take note of how far a running job is, and what resuming it would cost if it were preempted now.

        KeyError if it does not run.
        """
        entry = self._running[job_id]
        entry.done_tokens = tokens_done
        entry.resume_s = resume_s
        if tokens_done > entry.slice_start_tokens:
            entry.owed_s = 0.0

    def spare(self, job_id: str) -> None:
        """Let a running job not be cut before it ends or is requeued; KeyError if it does not run."""
        self._running[job_id].spared = True

    def requeue(self, job_id: str, now: float, *, served: bool = True, worker: str = "") -> None:
        """Give back the slot of a running job and let it wait again; KeyError if it does not run.

        With `worker` it was cut there, and waits for that worker from now on: its cache and half its answer
        are there. Without, no worker took it up. `served` as in `finish`.
        """
        entry = self._stop(job_id, now, served=served)
        entry.queued_s = now
        entry.spared = False
        if worker:
            entry.cuts += 1
            entry.owed_s, entry.resume_s = entry.resume_s, 0.0
            entry.job = replace(entry.job, worker=worker)
        entry.moves.append(Move(now, MoveKind.PREEMPTED if worker else MoveKind.RETURNED, worker))
        self._wait(entry)

    def reestimate(
        self,
        job_id: str,
        now: float,
        *,
        p_long: float,
        cost_s: float,
        cost_q90_s: float,
        tokens: float,
        tokens_q90: float,
    ) -> bool:
        """Predict a waiting job anew, as `Job` has it; its place and its client's charge follow.

        False if it does not wait.
        """
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._now = now
        self._withdraw(entry)
        job = entry.job
        if job.client:
            self._counters.give_back(job.client, job.cost_s, entry.charged_s, now)
            self._counters.charge(job.client, cost_s, now)
            entry.charged_s = now
        entry.job = replace(
            job, p_long=p_long, cost_s=cost_s, cost_q90_s=cost_q90_s, tokens=tokens, tokens_q90=tokens_q90
        )
        entry.moves.append(Move(now, MoveKind.REESTIMATED))
        self._place(entry)
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Remove a waiting or held job; False if it does not wait here (any more)."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
        if entry.job.client:
            self._counters.give_back(entry.job.client, entry.job.cost_s, entry.charged_s, now)
        return True

    def promote(self, job_id: str, now: float) -> bool:
        """Put a waiting job before all that are not promoted; False if it does not wait."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
        entry.held = False
        entry.rank = FIRST
        entry.key = float(next(self._promotions))
        entry.moves.append(Move(now, MoveKind.PROMOTED))
        self._wait(entry)
        return True

    def reprioritise(self, job_id: str, priority: int, now: float) -> bool:
        """Give a waiting job another priority, lower is sooner; False if it does not wait."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
        entry.rank = float(priority)
        entry.by_operator = True
        entry.moves.append(Move(now, MoveKind.REPRIORITISED, str(priority)))
        self._wait(entry)
        return True

    def set_urgency(self, job_id: str, level: int | None, by: Said, now: float) -> bool:
        """Say how urgent a job is that waits or runs; False if it does neither."""
        entry = self._waiting.get(job_id) or self._running.get(job_id)
        if entry is None:
            return False
        self._withdraw(entry)
        before, entry.job = entry.job, replace(entry.job, urgency=level, urgency_by=by)
        entry.moves.append(Move(now, MoveKind.URGENCY, f"{'none' if level is None else level} by {by}"))
        if job_id in self._waiting:
            self._place(entry)
        else:
            self.claims.exchanged(before, entry.job, entry.started_s, now)
        return True

    def hold(self, job_id: str, now: float) -> bool:
        """Keep a waiting job from running until it is released; False if it does not wait."""
        entry = self._waiting.get(job_id)
        if entry is None or entry.held:
            return False
        self._withdraw(entry)
        entry.held = True
        entry.moves.append(Move(now, MoveKind.HELD))
        return True

    def release(self, job_id: str, now: float) -> bool:
        """Let a held job run again, at its old place; False if it is not held."""
        entry = self._waiting.get(job_id)
        if entry is None or not entry.held:
            return False
        entry.held = False
        entry.moves.append(Move(now, MoveKind.RELEASED))
        self._place(entry)
        return True

    def preemptions(self, now: float) -> list[Preempt]:
        """Return the preemptions worth making now, the best first; empty if there are none.

        Only a backend that can stop a job and resume it later should ask, once `next` starts nothing more.
        Stop the jobs, `requeue` them, ask `next` for those that take their slots, and ask again. Never cut is
        what `spare` names, what tau or the operator started, what was cut as often as may be, what runs on a
        worker that is down or runs more than it has slots for; and what is past its tau is cut for nobody
        before whom the guard would start it.
        """
        policy = self.policy
        if self.paused or not self._waiting or not policy.interrupts:
            return []
        slots, busy = self._fleet.slots, self._fleet.busy
        full = {worker: list[Entry]() for worker, count in slots.items() if busy[worker] == count}
        for entry in self._running.values():
            if entry.worker in full and may_be_cut(entry, policy):
                full[entry.worker].append(entry)
        preempts: list[Preempt] = []
        if policy.quantum_tokens is not None:
            for worker, running in full.items():
                waiting = sum(lane.live for lane in self._open_lanes(worker, now))
                room = min(waiting, len(self._waiting) - len(preempts))
                preempts += spent(running, policy, policy.quantum_tokens)[:room]
            return preempts
        able: list[tuple[Entry, list[Entry]]] = []
        for worker, running in full.items():
            choice = self._choose_for(worker, now) if running else None
            if choice is not None:
                able.append((choice.entry, [e for e in running if self._may_pass(choice.entry, e, now)]))
        return worthwhile(able, policy, len(self._waiting) / sum(slots.values())) if able else []

    def _may_pass(self, waiting: Entry, running: Entry, now: float) -> bool:
        """Say whether the guard would let one that waits start before a running job, did that wait too."""
        guard, tau_s = self.policy.guard, self._tau_of(running.job.client)
        if guard is None or tau_s is None or waiting.promoted:
            return True
        age_s, other_s = now - running.job.arrival_s, now - waiting.job.arrival_s
        return age_s <= tau_s or not guard.allows(age_s, other_s, self._since_promotion)

    # -- the operator -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Start nothing more until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Start jobs again."""
        self.paused = False

    def set_policy(self, policy: Policy, now: float) -> None:
        """Order the waiting jobs by another policy; promoted ones stay in front."""
        self._now = now
        self.policy = policy
        self._place_all()

    def set_tenants(
        self,
        tenants: Mapping[str, Tenant],
        now: float,
        everybody: Tenant = EVERYBODY,
        priority_of: Callable[[Job], int] | None = None,
    ) -> None:
        """Give clients other rules; what waits follows them. Nothing that waits or runs is sent away.

        `priority_of` says what priority a job may have from now on; what the operator promoted or set stays.
        """
        self._now = now
        here = [*self._waiting.values(), *self._running.values()]  # what runs may come back
        weights = {entry.job.client: self._rules(entry.job.client).weight for entry in here}
        self._tenants = dict(tenants)
        self._everybody = everybody
        for entry in here:
            entry.usage_s *= weights[entry.job.client] / self._rules(entry.job.client).weight
            if priority_of is not None and not entry.promoted and not entry.by_operator:
                self._rank(entry, priority_of(entry.job), now)
        self._place_all()

    def _rank(self, entry: Entry, priority: int, now: float) -> None:
        if entry.rank != priority:
            entry.rank = float(priority)
            entry.moves.append(Move(now, MoveKind.REPRIORITISED, str(priority)))

    def set_slots(self, worker: str, slots: int, *, apart: bool = False, weight: float = 1.0) -> None:
        """Set how many jobs a worker runs at once, 0 if it is down; what runs already is left alone."""
        self._fleet.set(worker, slots, apart=apart, weight=weight)

    def remove_worker(self, worker: str) -> None:
        """Forget a worker; ValueError while it runs anything."""
        self._fleet.remove(worker)

    def set_able(self, able: Callable[[Job], frozenset[str]], now: float) -> None:
        """Let `able` say anew which workers can run each job that is here, as `Job` has it."""
        self._now = now
        for entry in (*self._waiting.values(), *self._running.values()):
            entry.job = replace(entry.job, able=able(entry.job))
        self._place_all()

    # -- views --------------------------------------------------------------------------------------

    @property
    def running(self) -> Mapping[str, Entry]:
        """The running jobs by id, in the order they started."""
        return self._running

    @property
    def clients(self) -> dict[str, tuple[int, int]]:
        """How many jobs each client has waiting and running, of those that have any."""
        waiting = self._crowds.waiting()
        names = waiting.keys() | self._clients_running.keys()
        return {name: (waiting.get(name, 0), self._clients_running.get(name, 0)) for name in names}

    @property
    def slots(self) -> Mapping[str, int]:
        """The slots of each worker."""
        return self._fleet.slots

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._waiting or job_id in self._running

    def waiting(self) -> Iterator[Entry]:
        """Yield the waiting jobs in the order they would start, were none to age; held ones last."""
        yield from sorted(self._waiting.values(), key=lambda e: (e.held, *self._place_of(e)))

    def backlog_s(self, worker: str, now: float) -> float:
        """Return the predicted seconds of work pinned to a worker: what waits for it and what it runs."""
        waiting_s = sum(lane.cost_s for lane in self._lanes.values() if lane.id.pinned_to == worker)
        running = (e for e in self._running.values() if e.worker == worker)
        return waiting_s + sum(max(e.job.cost_s - (now - e.started_s), 0.0) for e in running)

    # -- moving entries -----------------------------------------------------------------------------

    def _wait(self, entry: Entry) -> None:
        self._waiting[entry.job.id] = entry
        client = entry.job.client
        self._crowds.join(client, self._rules(client).weight)
        self._place(entry)

    def _place(self, entry: Entry) -> None:
        if not entry.promoted:
            entry.key = self.policy.key(entry)
        if not entry.held:
            lane = self._lane_for(entry)
            entry.lane = lane.id
            lane.push(entry)
            if not entry.promoted and not entry.cuts:  # half of an answer is never sent away
                self._crowds.place(entry, lane.id.band)

    def _place_all(self) -> None:
        """Place every waiting job anew, after a change of what orders them."""
        self._lanes.clear()
        self._crowds.reweigh(lambda client: self._rules(client).weight)
        for entry in self._waiting.values():
            self._place(entry)

    def _leave(self, entry: Entry) -> None:
        del self._waiting[entry.job.id]
        self._crowds.leave(entry.job.client)
        self._withdraw(entry)

    def _withdraw(self, entry: Entry) -> None:
        lane_id, entry.lane = entry.lane, None
        if lane_id is None:
            return
        lane = self._lanes[lane_id]
        lane.drop(entry)
        if not lane.live and len(self._lanes) > IDLE_LANES:
            del self._lanes[lane_id]

    def _stop(self, job_id: str, now: float, *, served: bool) -> Entry:
        entry = self._running.pop(job_id)
        if served:
            self.residency.loaded(entry.worker, job_id)
        else:
            self.residency.not_loaded(entry.worker, job_id)
        entry.served_s += now - entry.started_s
        self._fleet.busy[entry.worker] -= 1
        self.claims.stopped(entry.job, entry.started_s, now)
        client = entry.job.client
        self._clients_running[client] -= 1
        if not self._clients_running[client]:
            del self._clients_running[client]
        return entry

    def _lane_for(self, entry: Entry) -> Lane:
        job = entry.job
        client = job.client if self._rules(job.client).apart else ""
        band = self.policy.band(entry) if self.policy.band is not None else 0
        lane_id = LaneId(job.worker, job.affinity, client, band, frozenset() if job.worker else job.able)
        lane = self._lanes.get(lane_id)
        if lane is None:
            lane = self._lanes[lane_id] = Lane(lane_id, aged=self.policy.guarded)
        return lane

    def _rules(self, client: str) -> Tenant:
        found = self._tenants.get(client)
        if found is not None:
            return found
        return self._everybody if client else EVERYBODY

    # -- choosing -----------------------------------------------------------------------------------

    def _choose(self, now: float) -> tuple[Entry, str, Reason] | None:
        best: Choice | None = None
        chosen = ""
        for worker in self._fleet.free():
            choice = self._choose_for(worker, now)
            if choice is not None and (best is None or choice.order[:3] < best.order[:3]):
                best, chosen = choice, worker
        return None if best is None else (best.entry, chosen, best.reason)

    def _choose_for(self, worker: str, now: float) -> Choice | None:
        """Return what a slot of this worker would start now, by the operator, by tau or by policy."""
        while lanes := self._open_lanes(worker, now):
            standing = min(self._standings(lanes, worker, now))
            entry = standing[-1]
            if self._is_believed(entry, now):
                break
            self.claims.refused.add(entry.job.client)
            self.set_urgency(entry.job.id, None, Said.SHARE, now)
        else:
            return None
        if entry.promoted:
            return Choice(standing, entry, Reason.PROMOTED)
        if self.policy.guard is not None:
            overdue = self._longest_overdue(lanes, now)
            if overdue is not None and overdue is not entry:
                longest_s, displaced_s = now - overdue.job.arrival_s, now - entry.job.arrival_s
                if self.policy.guard.allows(longest_s, displaced_s, self._since_promotion):
                    price_s = self.residency.price_s(worker, overdue.job.affinity)
                    return Choice((FIRST, price_s, overdue.seq, overdue), overdue, Reason.TAU)
        return Choice(standing, entry, Reason.POLICY)

    def _is_believed(self, entry: Entry, now: float) -> bool:
        """Say whether what would start may do so by the urgency that its client claims."""
        if not self.policy.by_level or entry.promoted:
            return True
        client = entry.job.client
        share = self._crowds.share_of(client, self._rules(client).weight)
        return self.claims.believes(entry.job, share, self._fleet.slots.values(), now)

    def _open_lanes(self, worker: str, now: float) -> list[Lane]:
        """Return the lanes a slot of this worker may serve.

        While what is loaded must stay, only what needs nothing else; a job the operator promoted goes anyway.
        """
        every, shares = self._lanes.values(), worker not in self._fleet.apart
        lanes = [e for e in every if e.live and ((e.for_all and shares) or self._may_serve(e.id, worker))]
        if len(lanes) > 1 and self.residency.must_stay(worker, now):
            price_s = self.residency.price_s
            stays = [n for n in lanes if price_s(worker, n.id.affinity) == 0.0 or n.first().promoted]
            return stays or lanes
        return lanes

    def _may_serve(self, lane_id: LaneId, worker: str) -> bool:
        if not self._fleet.may_take(worker, lane_id):
            return False
        if not lane_id.client:
            return True
        limit = self._rules(lane_id.client).max_running
        return limit is None or self._clients_running.get(lane_id.client, 0) < limit

    def _standings(self, lanes: list[Lane], worker: str, now: float) -> list[Standing]:
        """Return the heads of the lanes, each with what orders it at this moment."""
        heads = [lane.first() for lane in lanes]
        score = self.policy.score
        if score is not None:
            return [(e.rank, e.key if e.rank == FIRST else score(e, now), e.seq, e) for e in heads]
        if not self.policy.in_seconds or not self.residency.prices:
            return [(e.rank, e.key, e.seq, e) for e in heads]
        price_s = self.residency.price_s
        return [(e.rank, e.key + price_s(worker, e.job.affinity), e.seq, e) for e in heads]

    def _place_of(self, entry: Entry) -> Place:
        """Return what orders a waiting job at this moment, were none to age: the lowest starts first."""
        score = self.policy.score
        if score is None or entry.promoted:
            return entry.rank, entry.key, entry.seq
        return entry.rank, score(entry, self._now), entry.seq

    def _overdue(self, entry: Entry) -> bool:
        """Say whether a waiting job is past its tau."""
        if not self.policy.guarded:
            return False
        tau_s = self._tau_of(entry.job.client)
        return tau_s is not None and self._now - entry.job.arrival_s > tau_s

    def _tau_of(self, client: str) -> float | None:
        own = self._rules(client).tau_s if client else None
        return self.tau_s if own is None else own

    def _longest_overdue(self, lanes: list[Lane], now: float) -> Entry | None:
        """Return the job furthest past its tau, None if none is."""
        longest, most_s = None, 0.0
        for lane in lanes:
            tau_s = self._tau_of(lane.id.client)
            if tau_s is None:
                continue
            entry = lane.longest_waiting()
            overdue_s = now - entry.job.arrival_s - tau_s
            if overdue_s > most_s:
                longest, most_s = entry, overdue_s
        return longest
