"""The queue and its decisions.

Rule 1: no I/O and no clock. `now` is an argument, in seconds; a decision is a return value.
Rule 2: a job is in exactly one state: waiting, held, running or gone.
Rule 3: `next` leaves no slot idle while an unheld job that may use it waits. Exceptions: the queue is paused;
each of the few waiting jobs is predicted to end sooner on another worker (`placement`); or its earliest start
has not come. A job past tau or promoted never waits for a better worker. A job may not use a worker that it
cannot run on (`Fleet`), nor any slot while its client is at its limit of running jobs.
Rule 4: an operation costs O(log n) amortised in the jobs of a lane, and O(lanes + workers). There is a lane
for each affinity, set of workers and client with its own tau or slot limit (and cost band, under hrrn).
Rule 5: a full queue is shared between clients: see `queue_drop`.
Rule 6: a job's age counts from its arrival; a preemption does not restart tau.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from itertools import count, islice
from typing import Unpack

from clairvoyant_cli.scheduler.fairness import EVERYBODY, Accounts, Tenant
from clairvoyant_cli.scheduler.job import (
    ClientFullError,
    Dispatch,
    Estimates,
    Job,
    Move,
    MoveKind,
    Preempt,
    Reason,
)
from clairvoyant_cli.scheduler.placement import Fleet, WorkerSpeed
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.preemption import may_be_cut, spent, worthwhile
from clairvoyant_cli.scheduler.queue_drop import Crowds
from clairvoyant_cli.scheduler.queued_job import FIRST, QueuedJob
from clairvoyant_cli.scheduler.residency import Residency
from clairvoyant_cli.scheduler.urgency import Claims, Said, unbelieved
from clairvoyant_cli.scheduler.waiting_line import WaitingLine

MAX_BACK_S = 600.0
"""The longest that a background job waits behind others, where tau is longer or not set."""

FORWARD_EVERY = 4
"""At most one start in this many goes to a background job that has waited for tau."""


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
        self._line = WaitingLine(policy, self.fleet, tau_s, tenants or {}, everybody, self._is_believed)
        self.claims = Claims()
        self.accounts = Accounts()
        self._seq = count()
        self._promotions = count(1)
        self._waiting: dict[str, QueuedJob] = {}  # insertion order is arrival order
        self._running: dict[str, QueuedJob] = {}
        self._crowds = Crowds()
        self._back: deque[QueuedJob] = deque()  # background jobs, the oldest first
        self._since_forward = FORWARD_EVERY
        self._waited_for = 0  # waiting jobs that are not in the background

    def __repr__(self) -> str:
        counts = f"{len(self._waiting)} waiting, {len(self._running)} running"
        return f"<Scheduler {self.policy.name}: {counts}{' (paused)' if self.paused else ''}>"

    # -- jobs ---------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> Job | None:
        """Add a job to the queue; return the job dropped for it, None if there was room.

        Raises QueueFullError if the queue is full and no job can be dropped, ClientFullError if the client
        has reached its queue limit, ValueError if the id is in use.
        """
        client, rules = job.client, self._line.rules_of(job.client)
        if job.id in self:
            raise ValueError(f"a job {job.id!r} is in the queue already")
        crowd = self._crowds.get(client)
        if rules.max_waiting is not None and crowd is not None and crowd.waiting >= rules.max_waiting:
            raise ClientFullError
        self._line.now = now
        entry = QueuedJob(job, next(self._seq), job.rank, job.arrival_s, behind=job.stands_back)
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
        """Decide which job takes which free slot now and mark it running; None if nothing can start."""
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
        """Free the slot of a running job; KeyError if it is not running.

        `served` means that the worker ran it, so that its model is loaded there.
        """
        self.accounts.settle(self._stop(job_id, now, served=served), now)

    def progress(self, job_id: str, tokens_done: float, resume_s: float = 0.0, evicts_s: float = 0.0) -> None:
        """Record the progress of a running job and what a preemption now would cost: see `QueuedJob`.

        KeyError if it is not running.
        """
        entry = self._running[job_id]
        entry.done_tokens = tokens_done
        entry.resume_s, entry.evicts_s = resume_s, evicts_s
        if tokens_done > entry.slice_start_tokens:
            entry.owed_s = 0.0

    def owe(self, job_id: str, owed_s: float, now: float) -> None:
        """Set the cost of resuming a waiting job, in seconds; KeyError if it is not waiting."""
        entry = self._waiting[job_id]
        entry.owed_s = owed_s
        self._line.now = now
        self._line.drop(entry)
        self._place(entry)

    def spare(self, job_id: str) -> None:
        """Exempt a running job from preemption until it is requeued; KeyError if it is not running."""
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
        """Free the slot of a running job and queue it again; KeyError if it is not running.

        With `worker` it was preempted there and waits for that worker, which has its KV cache. Without, it
        was not taken up or broke off; `able` names the workers that can run it from now on, None leaves them
        as they were. `served` as in `finish`.
        """
        entry = self._stop(job_id, now, served=served)
        entry.queued_s, entry.spared = now, False
        if able is not None:
            entry.job = entry.job.run_by(able)
        if worker:
            entry.cuts += 1
            entry.owed_s, entry.resume_s = entry.resume_s, 0.0
            entry.job = replace(entry.job, worker=worker)
            self._stand_back(
                entry, entry.behind
            )  # if it was promoted from the background, it has had its turn
        entry.moves.append(Move(now, MoveKind.PREEMPTED if worker else MoveKind.RETURNED, worker))
        self._wait(entry)
        if entry.job.stands_back:
            self._back.appendleft(entry)

    def reestimate(self, job_id: str, now: float, **estimates: Unpack[Estimates]) -> bool:
        """Replace the predictions of a waiting job, its place and its client's charge; see `Job`.

        False if it is not waiting.
        """
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._line.now = now
        self._line.drop(entry)
        self.accounts.give_back(entry, now)
        entry.job = replace(entry.job, **estimates)
        self.accounts.charge(entry, now)
        entry.moves.append(Move(now, MoveKind.REESTIMATED))
        self._place(entry)
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Remove a waiting or held job; False if it is not in the queue."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
        self.accounts.settle(entry, now)
        return True

    def promote(self, job_id: str, now: float) -> bool:
        """Move a waiting job before all that are not promoted; False if it is not waiting."""
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
        """Set the priority of a waiting job, lower is sooner; False if it is not waiting."""
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
        """Set the urgency of a job; False if it is gone, or a predictor would overrule another source."""
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

    def _is_believed(self, entry: QueuedJob, now: float) -> bool:
        """Return whether a job may start by the urgency that its client claims; if not, drop the claim."""
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
        """Keep a waiting job from running until it is released; False if it is not waiting."""
        entry = self._waiting.get(job_id)
        if entry is None or entry.held:
            return False
        self._line.drop(entry)
        entry.held = True
        entry.moves.append(Move(now, MoveKind.HELD))
        return True

    def release(self, job_id: str, now: float) -> bool:
        """Return a held job to its place in the queue; False if it is not held."""
        entry = self._waiting.get(job_id)
        if entry is None or not entry.held:
            return False
        entry.held = False
        entry.moves.append(Move(now, MoveKind.RELEASED))
        self._place(entry)
        return True

    def preemptions(self, now: float) -> list[Preempt]:
        """Return the preemptions worth making now, the best first.

        For backends that can stop a job and resume it later. Call it once `next` starts nothing more; stop
        the jobs, `requeue` them, call `next` for the jobs that take their slots, and call it again.
        `may_be_cut` says which jobs qualify, except on a worker that is down or runs more than its slots. An
        interactive job past tau is not cut for a job that the guard would start after it.
        """
        policy = self.policy
        if self.paused or not self._waiting or not policy.interrupts:
            return []
        stations = self.fleet.stations.values()
        full = {each.name: list[QueuedJob]() for each in stations if len(each.running) == each.slots}
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
        able: list[tuple[QueuedJob, list[QueuedJob]]] = []
        for worker, running in full.items():
            choice = self._line.choose_for(worker, now) if running else None
            if choice is not None and now >= choice.entry.job.not_before_s:
                able.append((choice.entry, [e for e in running if self._may_pass(choice.entry, e, now)]))
        return worthwhile(able, policy, max(1, self._waited_for) / sum(self.slots.values())) if able else []

    def _may_pass(self, waiting: QueuedJob, running: QueuedJob, now: float) -> bool:
        """Return whether the guard would start `waiting` before `running`, were both waiting.

        Under `by_share` policies a flooding client's running jobs can always be passed.
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
        """Change the policy; promoted jobs stay in front."""
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
        """Change the clients' rules and apply them to waiting jobs. No job is dropped.

        `priority_of` returns the priority that a job may have from now on; the operator's settings stay.
        """
        self._line.now = now
        here = [*self._waiting.values(), *self._running.values()]  # running jobs may be requeued
        weights = {entry.job.client: self._line.rules_of(entry.job.client).weight for entry in here}
        self._line.tenants = dict(tenants)
        self._line.everybody = everybody
        for entry in here:
            entry.usage_s *= weights[entry.job.client] / self._line.rules_of(entry.job.client).weight
            if priority_of is not None and not entry.promoted and not entry.by_operator:
                self._rank(entry, priority_of(entry.job) + entry.job.stands_back, now)
        self._place_all()

    def _rank(self, entry: QueuedJob, priority: int, now: float) -> None:
        if entry.rank != priority:
            entry.rank = float(priority)
            entry.moves.append(Move(now, MoveKind.REPRIORITISED, str(priority)))

    def set_slots(
        self, worker: str, slots: int, *, apart: bool = False, weight: float = 1.0, at_once: int = 0
    ) -> None:
        """Set how many jobs a worker may have, 0 if it is down; running jobs are not affected.

        `at_once` is how many of these it serves concurrently; the others wait in its own queue.
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
        """Recompute which workers can run each job."""
        self._line.now = now
        for entry in (*self._waiting.values(), *self._running.values()):
            entry.job = entry.job.run_by(able(entry.job))
        self._place_all()

    def set_speed(self, worker: str, speed: WorkerSpeed, keeps: int = 1) -> None:
        """Set a worker's speed, and how many conversations its KV cache keeps per slot."""
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
    def running(self) -> Mapping[str, QueuedJob]:
        """The running jobs by id, in the order they started."""
        return self._running

    @property
    def deferring(self) -> bool:
        """Whether the last `next` left a slot free because waiting jobs wait for a better one."""
        return self._line.deferring

    @property
    def clients(self) -> dict[str, tuple[int, int]]:
        """The numbers of waiting and running jobs of each client that has any."""
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
        """Return the predicted seconds until a job would start, were it submitted now, and of its prefill.

        Jobs before it take the slots in order as they fall free; waiting for a better worker is ignored.
        O(n log n) in the waiting jobs.
        """
        self._line.now = now
        entry = QueuedJob(job, next(self._seq), job.rank, job.arrival_s)
        entry.key = self.policy.key(entry)
        place = self._line.place_of(entry)
        before = [e for e in self._waiting.values() if not e.held and self._line.place_of(e) < place]
        before.sort(key=self._line.place_of)
        return self.fleet.forecast(entry, before, now)

    def waiting(self, now: float | None = None) -> Iterator[QueuedJob]:
        """Yield the waiting jobs in the order of their starts, were none to age; held ones last.

        `now` defaults to the time of the last decision.
        """
        yield from self._line.in_order(self._waiting.values(), now)

    @property
    def line(self) -> WaitingLine:
        """The waiting jobs, lane by lane. Read only."""
        return self._line

    def under(self, policy: Policy, now: float, every: int = 1) -> "Scheduler":
        """Return an independent copy under another policy, for simulation.

        It runs the same jobs; of the unheld waiting jobs it has one in `every`, in order of arrival.
        """
        of = self._line
        trial = Scheduler(policy, workers={}, tau_s=self.tau_s, capacity=self.capacity)
        trial.fleet = self.fleet.copied()
        trial._line = WaitingLine(policy, trial.fleet, of.tau_s, of.tenants, of.everybody, trial._is_believed)
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
        """Return the predicted seconds of work pinned to a worker, waiting and running.

        For "", that of the jobs that wait for any worker.
        """
        station = self.fleet.stations.get(worker)
        return self._line.pinned_s().get(worker, 0.0) + (station.left_s(now) if station else 0.0)

    # -- moving entries -----------------------------------------------------------------------------

    def _wait(self, entry: QueuedJob) -> None:
        self._waiting[entry.job.id] = entry
        self._waited_for += not entry.job.stands_back
        client = entry.job.client
        self._crowds.join(client, self._line.rules_of(client).weight)
        self._place(entry)

    def _place(self, entry: QueuedJob) -> None:
        if not entry.promoted:
            entry.key = self.policy.key(entry)
        self._route(entry)
        if not entry.held:
            lane = self._line.push(entry)
            if not entry.promoted and not entry.cuts:  # a partial answer is never dropped
                self._crowds.place(entry, lane.band)

    def _let_forward(self, now: float) -> None:
        """Promote the oldest background job past tau, at most one in FORWARD_EVERY starts."""
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

    def _stand_back(self, entry: QueuedJob, levels: int) -> None:
        """Set the background levels of a job that is in no lane."""
        entry.job = replace(entry.job, stands_back=levels)
        if not entry.promoted and not entry.by_operator:
            entry.rank = entry.job.rank

    def _route(self, entry: QueuedJob) -> None:
        """Choose the worker that a job waits for, under a policy that routes; a valid choice stays."""
        among, routed = self.policy.candidates, entry.routed
        if among is None or entry.job.worker:
            entry.routed = ""
        elif not routed or not self.fleet.takes(routed, entry.job.able):
            waiting_s = self._line.pinned_s()
            entry.routed = self.fleet.route(entry, among, self._line.now, lambda to: waiting_s.get(to, 0.0))

    def _place_all(self) -> None:
        """Rebuild the order of the waiting jobs."""
        self._line.lanes.clear()
        self._crowds.reweigh(lambda client: self._line.rules_of(client).weight)
        for entry in self._waiting.values():
            self._place(entry)

    def _leave(self, entry: QueuedJob) -> None:
        del self._waiting[entry.job.id]
        self._waited_for -= not entry.job.stands_back
        self._crowds.leave(entry.job.client)
        self._line.drop(entry)

    def _stop(self, job_id: str, now: float, *, served: bool) -> QueuedJob:
        entry = self._running.pop(job_id)
        self.fleet.ended(entry, served=served)
        entry.served_s += now - entry.started_s
        self.claims.stopped(entry.job, entry.started_s, now)
        running, client = self._line.clients_running, entry.job.client
        running[client] -= 1
        if not running[client]:
            del running[client]
        return entry
