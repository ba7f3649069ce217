"""The queue and its decisions.

Rule 1: no I/O and no clock. `now` is an argument, in seconds; a decision is a return value.
Rule 2: a job is waiting, held, running or gone, and in exactly one of these at any time.
Rule 3: `next` never leaves a slot idle while an unheld job that may use it waits, unless paused, or unless
each of the few that wait is predicted to end sooner by waiting for another worker (`placement`) or is not to
start yet; whoever is past its tau or was promoted waits for no better one. A job may not use a slot of a
worker that it may not run on (`Fleet`), nor any while its client has all it may have.
Rule 4: every operation costs O(log n) amortised in the jobs of a lane and O(lanes + workers), and there is a
lane for each affinity, set of workers and client with a tau or slots of its own (and cost band, under hrrn).
Rule 5: a full queue is shared: see `crowd` for who gives way to a newcomer.
Rule 6: a job's age counts from its arrival, whatever happened to it since; a preemption does not restart tau.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import count, islice

from clairvoyant_cli.scheduler.fairness import EVERYBODY, Accounts, Tenant
from clairvoyant_cli.scheduler.job import ClientFullError, Dispatch, Job, Move, MoveKind, Preempt, Reason
from clairvoyant_cli.scheduler.placement import Fleet, Speed
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.preemption import may_be_cut, spent, worthwhile
from clairvoyant_cli.scheduler.queue_drop import Crowds
from clairvoyant_cli.scheduler.queued_job import FIRST, Entry
from clairvoyant_cli.scheduler.residency import Residency
from clairvoyant_cli.scheduler.urgency import Claims, Said, unbelieved
from clairvoyant_cli.scheduler.waiting_line import Line

MAX_BACK_S = 600.0
"""So long at most a job stands back, where tau is longer or there is none."""

FORWARD_EVERY = 4
"""Of so many starts at most one is for a job that stood back and has come forward."""


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
        self.capacity = capacity
        self.paused = False
        self.tau_firings = 0
        self.fleet = Fleet(workers, load_s or {})
        self._line = Line(policy, self.fleet, tau_s, tenants or {}, everybody, self._is_believed)
        self.claims = Claims()
        self.accounts = Accounts()
        self._seq = count()
        self._promotions = count(1)
        self._waiting: dict[str, Entry] = {}  # insertion order is arrival order
        self._running: dict[str, Entry] = {}
        self._crowds = Crowds()
        self._back: deque[Entry] = deque()  # those that stand back, the oldest first
        self._since_forward = FORWARD_EVERY
        self._waited_for = 0  # those that wait and do not stand back

    def __repr__(self) -> str:
        counts = f"{len(self._waiting)} waiting, {len(self._running)} running"
        return f"<Scheduler {self.policy.name}: {counts}{' (paused)' if self.paused else ''}>"

    # -- jobs ---------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> Job | None:
        """Take a job into the queue; return the one that gave way to it, None if there was room.

        QueueFullError if the queue is full and nobody gives way, ClientFullError if the client has all the
        places it may have; ValueError if the id is here already.
        """
        client, rules = job.client, self._line.rules_of(job.client)
        if job.id in self:
            raise ValueError(f"a job {job.id!r} is here already")
        crowd = self._crowds.get(client)
        if rules.max_waiting is not None and crowd is not None and crowd.waiting >= rules.max_waiting:
            raise ClientFullError
        self._line.now = now
        entry = Entry(job, next(self._seq), job.rank, job.arrival_s, behind=job.stands_back)
        entry.usage_s = self.accounts.used_s(client, now, waited_for=entry.waited_for) / rules.weight
        entry.key = self.policy.key(entry)
        displaced = None
        if len(self._waiting) >= self.capacity:
            displaced = self._crowds.make_room(
                entry, rules.weight, self.capacity, self._line.place_of, self._line.is_overdue
            )
            self.cancel(displaced.job.id, now)
        self.accounts.charge(entry, now)
        entry.moves.append(Move(now, MoveKind.SUBMITTED))
        self._wait(entry)
        if job.stands_back:
            self._back.append(entry)
        return None if displaced is None else displaced.job

    def next(self, now: float) -> Dispatch | None:
        """Decide which job takes which free slot now, and mark it running; None if nothing can start."""
        self._line.now = now
        self._line.deferring = False
        if self.paused or not self._waiting:
            return None
        self._let_forward(now)
        choice = self._line.choose(now, len(self._waiting))
        if choice is None:
            return None
        entry, worker, reason = choice
        if reason is Reason.TAU:
            self._line.had_turn(entry, now)
        self._leave(entry)
        self._since_forward += 1
        job = entry.job
        entry.reason = reason
        entry.slice_start_tokens = entry.done_tokens
        entry.moves.append(Move(now, MoveKind.DISPATCHED, reason))
        self._running[job.id] = entry
        self.fleet.started(entry, worker, now)
        self._line.clients_running[job.client] = self._line.clients_running.get(job.client, 0) + 1
        self.claims.started(job, now)
        if reason is Reason.TAU:
            self.tau_firings += 1
            self._line.since_promotion = 0
        else:
            self._line.since_promotion += 1
        return Dispatch(job, worker, reason, now - entry.queued_s)

    def finish(self, job_id: str, now: float, *, served: bool = True) -> None:
        """Give back the slot of a running job; KeyError if it does not run.

        `served` says that the worker did run it, so that what it needs is loaded there.
        """
        self.accounts.settle(self._stop(job_id, now, served=served), now)

    def progress(self, job_id: str, tokens_done: float, resume_s: float = 0.0, evicts_s: float = 0.0) -> None:
        """Take note of how far a running job is, and what it would cost to resume it, and besides, if it were
        preempted now: see `Entry`. KeyError if it does not run.
        """
        entry = self._running[job_id]
        entry.done_tokens = tokens_done
        entry.resume_s, entry.evicts_s = resume_s, evicts_s
        if tokens_done > entry.slice_start_tokens:
            entry.owed_s = 0.0

    def owe(self, job_id: str, owed_s: float, now: float) -> None:
        """Take note that resuming a waiting job costs something else by now; KeyError if it does not wait."""
        entry = self._waiting[job_id]
        entry.owed_s = owed_s
        self._line.now = now
        self._line.drop(entry)
        self._place(entry)

    def spare(self, job_id: str) -> None:
        """Let a running job not be cut before it ends or is requeued; KeyError if it does not run."""
        self._running[job_id].spared = True

    def requeue(
        self,
        job_id: str,
        now: float,
        *,
        served: bool = True,
        worker: str = "",
        able: frozenset[str] | None = None,
    ) -> None:
        """Give back the slot of a running job and let it wait again; KeyError if it does not run.

        With `worker` it was cut there and waits for it: its cache is there. Without, it was not taken up, or
        broke off; `able` can run it from now on, None: as before. `served` as in `finish`.
        """
        entry = self._stop(job_id, now, served=served)
        entry.queued_s, entry.spared = now, False
        if able is not None:
            entry.job = entry.job.run_by(able)
        if worker:
            entry.cuts += 1
            entry.owed_s, entry.resume_s = entry.resume_s, 0.0
            entry.job = replace(entry.job, worker=worker)
            self._stand_back(entry, entry.behind)  # where it came forward, it has had its turn
        entry.moves.append(Move(now, MoveKind.PREEMPTED if worker else MoveKind.RETURNED, worker))
        self._wait(entry)
        if entry.job.stands_back:
            self._back.appendleft(entry)

    def reestimate(
        self,
        job_id: str,
        now: float,
        *,
        p_long: float,
        cost_s: float,
        cost_high_s: float,
        tokens: float,
        tokens_q90: float,
    ) -> bool:
        """Predict a waiting job anew, as `Job` has it; its place and its client's charge follow.

        False if it does not wait.
        """
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._line.now = now
        self._line.drop(entry)
        self.accounts.give_back(entry, now)
        entry.job = replace(
            entry.job,
            p_long=p_long,
            cost_s=cost_s,
            cost_high_s=cost_high_s,
            tokens=tokens,
            tokens_q90=tokens_q90,
        )
        self.accounts.charge(entry, now)
        entry.moves.append(Move(now, MoveKind.REESTIMATED))
        self._place(entry)
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Remove a waiting or held job; False if it does not wait here (any more)."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
        self.accounts.settle(entry, now)
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
        """Say how urgent a job is; False if it is not here, or a predictor says so after somebody else."""
        entry = self._waiting.get(job_id) or self._running.get(job_id)
        if entry is None or (by is Said.PREDICTOR and entry.job.urgency_by != by):
            return False
        self._line.drop(entry)
        before, entry.job = entry.job, replace(entry.job, urgency=level, urgency_by=by)
        entry.moves.append(Move(now, MoveKind.URGENCY, f"{'none' if level is None else level} by {by}"))
        if job_id in self._waiting:
            self._place(entry)
        else:
            self.claims.exchanged(before, entry.job, entry.started_s, now)
        return True

    def _is_believed(self, entry: Entry, now: float) -> bool:
        """Say whether what would start may do so by the urgency that its client claims; if not, it has the
        level of one that claims none from now on.
        """
        if not self.policy.by_level or entry.promoted:
            return True
        client = entry.job.client
        share = self._crowds.share_of(client, self._line.rules_of(client).weight)
        if self.claims.believes(entry.job, share, self.slots.values(), now):
            return True
        self.claims.refuse(client, share, now)
        self.set_urgency(entry.job.id, unbelieved(entry.job), Said.SHARE, now)
        return False

    def hold(self, job_id: str, now: float) -> bool:
        """Keep a waiting job from running until it is released; False if it does not wait."""
        entry = self._waiting.get(job_id)
        if entry is None or entry.held:
            return False
        self._line.drop(entry)
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
        Stop the jobs, `requeue` them, ask `next` for those that take their slots, and ask again. `may_be_cut`
        says what may be, unless it runs on a worker that is down or runs more than it has slots for; what is
        past its tau and waited for is cut for nobody before whom the guard would start it.
        """
        policy = self.policy
        if self.paused or not self._waiting or not policy.interrupts:
            return []
        stations = self.fleet.stations.values()
        full = {each.name: list[Entry]() for each in stations if len(each.running) == each.slots}
        for entry in self._running.values():
            if entry.worker in full and may_be_cut(entry, policy):
                full[entry.worker].append(entry)
        preempts: list[Preempt] = []
        if policy.quantum_tokens is not None:
            for worker, running in full.items():
                waiting = sum(lane.live for lane in self._line.open_lanes(worker, now))
                room = min(waiting, len(self._waiting) - len(preempts))
                preempts += spent(running, policy, policy.quantum_tokens)[:room]
            return preempts
        able: list[tuple[Entry, list[Entry]]] = []
        for worker, running in full.items():
            choice = self._line.choose_for(worker, now) if running else None
            if choice is not None and now >= choice.entry.job.not_before_s:
                able.append((choice.entry, [e for e in running if self._may_pass(choice.entry, e, now)]))
        return worthwhile(able, policy, max(1, self._waited_for) / sum(self.slots.values())) if able else []

    def _may_pass(self, waiting: Entry, running: Entry, now: float) -> bool:
        """Say whether the guard would let one that waits start before a running job, did that wait too; of
        who floods the queue what runs by the policy makes way for others past its tau as well.
        """
        tau_s = self._line.tau_of(running.job.client)
        if tau_s is None or self.policy.by_share or waiting.promoted or not running.waited_for:
            return True
        return now - running.job.arrival_s <= tau_s or not self._line.guard_allows(running, waiting, now)

    # -- the operator -------------------------------------------------------------------------------

    def pause(self) -> None:
        """Start nothing more until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Start jobs again."""
        self.paused = False

    def set_policy(self, policy: Policy, now: float) -> None:
        """Order the waiting jobs by another policy; promoted ones stay in front."""
        self._line.now = now
        self._line.policy = policy
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
        self._line.now = now
        here = [*self._waiting.values(), *self._running.values()]  # what runs may come back
        weights = {entry.job.client: self._line.rules_of(entry.job.client).weight for entry in here}
        self._line.tenants = dict(tenants)
        self._line.everybody = everybody
        for entry in here:
            entry.usage_s *= weights[entry.job.client] / self._line.rules_of(entry.job.client).weight
            if priority_of is not None and not entry.promoted and not entry.by_operator:
                self._rank(entry, priority_of(entry.job) + entry.job.stands_back, now)
        self._place_all()

    def _rank(self, entry: Entry, priority: int, now: float) -> None:
        if entry.rank != priority:
            entry.rank = float(priority)
            entry.moves.append(Move(now, MoveKind.REPRIORITISED, str(priority)))

    def set_slots(
        self, worker: str, slots: int, *, apart: bool = False, weight: float = 1.0, at_once: int = 0
    ) -> None:
        """Set how many jobs a worker is given at once, 0 if it is down; what runs already is left alone.

        `at_once` says how many of these it answers together, where the others wait inside it.
        """
        self.fleet.set(worker, slots, apart=apart, weight=weight, at_once=at_once)
        for entry in self._waiting.values():
            if entry.routed == worker and not self.fleet.takes(worker, entry.job.able):
                self._line.drop(entry)
                self._place(entry)

    def remove_worker(self, worker: str) -> None:
        """Forget a worker; ValueError while it runs anything."""
        self.fleet.remove(worker)

    def set_able(self, able: Callable[[Job], frozenset[str]], now: float) -> None:
        """Let `able` say anew which workers can run each job that is here, as `Job` has it."""
        self._line.now = now
        for entry in (*self._waiting.values(), *self._running.values()):
            entry.job = entry.job.run_by(able(entry.job))
        self._place_all()

    def set_speed(self, worker: str, speed: Speed, keeps: int = 1) -> None:
        """Say how fast a worker is, and how many conversations its cache keeps for each of its slots."""
        station = self.fleet.stations[worker]
        station.speed, station.keeps = speed, keeps

    @property
    def policy(self) -> Policy:
        """What orders the waiting jobs."""
        return self._line.policy

    @property
    def tau_s(self) -> float | None:
        """Everybody's starvation timeout in seconds, None for no guard."""
        return self._line.tau_s

    @tau_s.setter
    def tau_s(self, tau_s: float | None) -> None:
        self._line.tau_s = tau_s

    # -- views --------------------------------------------------------------------------------------

    @property
    def running(self) -> Mapping[str, Entry]:
        """The running jobs by id, in the order they started."""
        return self._running

    @property
    def deferring(self) -> bool:
        """Whether a slot is left free since `next` was asked, as what waits does so for a better one."""
        return self._line.deferring

    @property
    def clients(self) -> dict[str, tuple[int, int]]:
        """How many jobs each client has waiting and running, of those that have any."""
        waiting = self._crowds.waiting()
        names = waiting.keys() | self._line.clients_running.keys()
        return {name: (waiting.get(name, 0), self._line.clients_running.get(name, 0)) for name in names}

    @property
    def slots(self) -> Mapping[str, int]:
        """The slots of each worker."""
        return self.fleet.slots

    @property
    def residency(self) -> Residency:
        """What each worker has loaded."""
        return self.fleet.residency

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._waiting or job_id in self._running

    def forecast(self, job: Job, now: float) -> tuple[float, float]:
        """Return in how many seconds a job would start if it were submitted now and nothing else came, and
        how long reading its prompt would take it there, both as predicted.

        Who stands before it takes the slots in order as they fall free; that some may wait for a better
        worker is left out. O(n log n) in those who wait.
        """
        self._line.now = now
        entry = Entry(job, next(self._seq), job.rank, job.arrival_s)
        entry.key = self.policy.key(entry)
        place = self._line.place_of(entry)
        before = [e for e in self._waiting.values() if not e.held and self._line.place_of(e) < place]
        before.sort(key=self._line.place_of)
        return self.fleet.forecast(entry, before, now)

    def waiting(self, now: float | None = None) -> Iterator[Entry]:
        """Yield the waiting jobs in the order they would start, were none to age; held ones last. `now` is
        that of the last decision, if it is not given.
        """
        yield from self._line.in_order(self._waiting.values(), now)

    @property
    def line(self) -> Line:
        """The waiting jobs, lane by lane: to look at."""
        return self._line

    def under(self, policy: Policy, now: float, every: int = 1) -> "Scheduler":
        """Return a scheduler of its own in which the same jobs run, and those that wait unheld (one of so
        many, in order of arrival) are ordered by another policy. It may be played on; this one stays.
        """
        of = self._line
        trial = Scheduler(policy, workers={}, tau_s=self.tau_s, capacity=self.capacity)
        trial.fleet = self.fleet.copied()
        trial._line = Line(policy, trial.fleet, of.tau_s, of.tenants, of.everybody, trial._is_believed)
        trial._line.now, trial._line.since_promotion = now, of.since_promotion
        trial._line.clients_running = dict(of.clients_running)
        for job_id, entry in self._running.items():
            trial._running[job_id] = trial.fleet.stations[entry.worker].running[job_id] = copy(entry)
        unheld = (entry for entry in self._waiting.values() if not entry.held)
        for entry in islice(unheld, 0, None, every):
            mine = copy(entry)
            mine.lane, mine.routed, mine.moves = None, "", []
            trial._wait(mine)
        return trial

    def backlog_s(self, worker: str, now: float) -> float:
        """Return the predicted seconds of work pinned to a worker, what waits for it and what it runs; of ""
        what waits for any.
        """
        station = self.fleet.stations.get(worker)
        return self._line.pinned_s().get(worker, 0.0) + (station.left_s(now) if station else 0.0)

    # -- moving entries -----------------------------------------------------------------------------

    def _wait(self, entry: Entry) -> None:
        self._waiting[entry.job.id] = entry
        self._waited_for += not entry.job.stands_back
        client = entry.job.client
        self._crowds.join(client, self._line.rules_of(client).weight)
        self._place(entry)

    def _place(self, entry: Entry) -> None:
        if not entry.promoted:
            entry.key = self.policy.key(entry)
        self._route(entry)
        if not entry.held:
            lane = self._line.push(entry)
            if not entry.promoted and not entry.cuts:  # half of an answer is never sent away
                self._crowds.place(entry, lane.band)

    def _let_forward(self, now: float) -> None:
        """Let one stand back no longer that has waited for tau, unless one came forward a few starts ago:
        none waits for ever, and no question behind a row of them.
        """
        back = self._back
        while back and (back[0].job.id not in self._waiting or not back[0].job.stands_back):
            back.popleft()
        if not back or self._since_forward < FORWARD_EVERY:
            return
        entry = back[0]
        tau_s = self._line.tau_of(entry.job.client)
        if now - entry.job.arrival_s <= (MAX_BACK_S if tau_s is None else min(tau_s, MAX_BACK_S)):
            return
        self._since_forward = 0
        self._line.drop(entry)
        self._stand_back(entry, 0)
        self._waited_for += 1
        entry.moves.append(Move(now, MoveKind.CAME_FORWARD))
        self._place(entry)

    def _stand_back(self, entry: Entry, levels: int) -> None:
        """Let what is in no lane stand so many levels back."""
        entry.job = replace(entry.job, stands_back=levels)
        if not entry.promoted and not entry.by_operator:
            entry.rank = entry.job.rank

    def _route(self, entry: Entry) -> None:
        """Choose the worker that a job waits for, under a policy that routes; a good choice stays."""
        among, routed = self.policy.candidates, entry.routed
        if among is None or entry.job.worker:
            entry.routed = ""
        elif not routed or not self.fleet.takes(routed, entry.job.able):
            waiting_s = self._line.pinned_s()
            entry.routed = self.fleet.route(entry, among, self._line.now, lambda to: waiting_s.get(to, 0.0))

    def _place_all(self) -> None:
        """Place every waiting job anew, after a change of what orders them."""
        self._line.lanes.clear()
        self._crowds.reweigh(lambda client: self._line.rules_of(client).weight)
        for entry in self._waiting.values():
            self._place(entry)

    def _leave(self, entry: Entry) -> None:
        del self._waiting[entry.job.id]
        self._waited_for -= not entry.job.stands_back
        self._crowds.leave(entry.job.client)
        self._line.drop(entry)

    def _stop(self, job_id: str, now: float, *, served: bool) -> Entry:
        entry = self._running.pop(job_id)
        self.fleet.ended(entry, served=served)
        entry.served_s += now - entry.started_s
        self.claims.stopped(entry.job, entry.started_s, now)
        running, client = self._line.clients_running, entry.job.client
        running[client] -= 1
        if not running[client]:
            del running[client]
        return entry
