"""The queue and its decisions.

Rule 1: no I/O and no clock. `now` is an argument, in seconds; a decision is a return value.
Rule 2: a job is in exactly one state: waiting, held, running or gone.
Rule 3: `next` leaves no slot idle while an unheld job that may use it waits. Exceptions: the queue is paused;
each of the few waiting jobs is predicted to end sooner on another worker (`placement`); its earliest start
has not come; or the first job does not fit into the KV cache that the slots share. A job past tau or promoted
never waits for a better worker. A job may not use a worker that it cannot run on (`Fleet`), nor any slot
while its client is at its limit of running jobs.
Rule 4: an operation costs O(log n) amortised in the jobs of a lane, and O(lanes + workers). There is a lane
for each affinity, set of workers and client with its own tau or slot limit.
Rule 5: when the queue is full, the newest waiting job of the client that has most of them is dropped, the
arriving one counted; if others have as many as its client, that is the arriving one.
Rule 6: a job's age counts from its arrival; a preemption does not restart tau.
Rule 7: a job of a session that does not have its turn is parked: it is in no lane (see `sessions`).
Exceptions: promoted jobs, the most urgent ones, and policies without a guard.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Unpack

from clairvoyant_cli.scheduler.fairness import EVERYBODY, Tenant
from clairvoyant_cli.scheduler.job import (
    ClientFullError,
    Dispatch,
    Estimates,
    Job,
    Move,
    MoveKind,
    Preempt,
    QueueFullError,
    Reason,
)
from clairvoyant_cli.scheduler.placement import WorkerSpeed
from clairvoyant_cli.scheduler.policy import Policy, tuned
from clairvoyant_cli.scheduler.preemption import may_be_cut, spent, worthwhile
from clairvoyant_cli.scheduler.queue_state import QueueState
from clairvoyant_cli.scheduler.queued_job import FIRST, Prefill, QueuedJob, Thought
from clairvoyant_cli.scheduler.waiting_line import WaitingLine


class Scheduler(QueueState):
    """Jobs in, dispatch decisions out, for K slots on each of several workers."""

    # -- jobs ---------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> Job | None:
        """Add a job to the queue; return the job dropped for it, None if there was room.

        Raises QueueFullError if the queue is full and this job is the one to drop, ClientFullError if the
        client has reached its queue limit, ValueError if the id is in use.
        """
        client, rules = job.client, self.line.rules_of(job.client)
        if job.id in self:
            raise ValueError(f"a job {job.id!r} is in the queue already")
        if rules.max_waiting is not None and self._by_client[client] >= rules.max_waiting:
            raise ClientFullError
        self.line.now = now
        job = self.fleet.priced(job)
        entry = QueuedJob(job, next(self._seq), job.rank, job.arrival_s, behind=job.stands_back)
        entry.usage_s = self.accounts.used_s(client, now, waited_for=entry.waited_for) / rules.weight
        entry.key = self.policy.key(entry)
        displaced = None
        if len(self._waiting) >= self.capacity:
            displaced = self._one_too_many(client)
            self.cancel(displaced.id, now)
        entry.job = job = replace(job, session=self.sessions.arrived(job, now))
        self.accounts.charge(entry, now)
        entry.moves.append(Move(now, MoveKind.SUBMITTED))
        self._wait(entry)
        self.newcomers.came(entry)
        self.tail.arrived(now)
        if self.books is not None:
            self.books.arrived(job, at_grant=rules.max_running is not None)
        if job.stands_back:
            self._back.append(entry)
        return displaced

    def _one_too_many(self, client: str) -> Job:
        """Return the waiting job to drop for a new one of a client; QueueFullError if that is the new one."""
        most = max(self._by_client.values(), default=0)
        if most > self._by_client[client] + 1:
            # A partial answer is never dropped, nor what the operator has promoted or holds.
            crowd = (
                entry
                for entry in self._waiting.values()
                if self._by_client[entry.job.client] == most
                and not (entry.cuts or entry.promoted or entry.held)
            )
            newest = max(crowd, key=lambda entry: (entry.job.arrival_s, entry.seq), default=None)
            if newest is not None:
                return newest.job
        raise QueueFullError

    def next(self, now: float) -> Dispatch | None:
        """Decide which job takes which free slot now and mark it running; None if nothing can start."""
        self.line.now = now
        self.line.deferring = False
        if self.books is not None:
            self.books.look(self.slots, now, paused=self.paused)
        if self.paused or not self._waiting:
            return None
        self._let_forward(now)
        if self._parked:
            self._give_turns(now)
        choice = self.line.choose(now, len(self._waiting))
        while choice is not None and choice[0].job.stands_back and self._must_park(choice[0]):
            self.line.drop(choice[0])  # it came before the session that it would evict
            self._place(choice[0])
            choice = self.line.choose(now, len(self._waiting))
        if choice is None:
            self.line.deferring = self.line.deferring or bool(self._parked)
            return None
        entry, worker, reason = choice
        if reason is Reason.TAU:
            self.line.had_turn(entry, now)
        self._leave(entry)
        self._since_forward += 1
        job = entry.job
        entry.reason = reason
        entry.slice_start_tokens = entry.done_tokens
        entry.moves.append(Move(now, MoveKind.DISPATCHED, reason))
        self.running[job.id] = entry
        self.fleet.started(entry, worker, now)
        if self.books is not None:
            self.books.granted(job.id, self.fleet.stations[worker], now, entry.expected.tokens)
        if self.sessions.started(job, worker, now):
            self._place_turns()
        self.line.clients_running[job.client] = self.line.clients_running.get(job.client, 0) + 1
        self.claims.started(job, now)
        self._reprice(job, worker, now)
        if reason is Reason.TAU:
            self.tau_firings += 1
            self.line.since_promotion = 0
        else:
            self.line.since_promotion += 1
        return Dispatch(job, worker, reason, now - entry.queued_s)

    def finish(self, job_id: str, now: float, *, served: bool = True) -> None:
        """Free the slot of a running job; KeyError if it is not running.

        `served` means that the worker ran it, so that its model is loaded there.
        """
        entry = self._stop(job_id, now, served=served)
        if self.books is not None:
            self.books.freed(job_id, now, over=True, served=served)
        self.sessions.left_slot(entry.job, now, waits=False)
        self.accounts.settle(entry, now)
        if served and self.tail.served(entry.served_s, max(1, sum(self.slots.values())), now):
            self.line.policy = tuned(self.policy, self.tail.rate, self.tail.slots)
            if self.policy.boosts:
                self._place_all()

    def answered(
        self,
        job_id: str,
        prompt_tokens: float,
        tokens: float,
        cached_tokens: float | None,
        *,
        calls_tool: bool,
        now: float,
    ) -> str:
        """Record what a running job's server says of its answer, in tokens; KeyError if it is not running.

        `cached_tokens` of its prompt came from the KV cache, None if unknown. Return a line for the log if it
        read much again because the beginning of the prompt changed, else "".
        """
        news = ""
        entry = self.running[job_id]
        cache = self.fleet.stations[entry.worker].cache
        cache.answered(job_id, prompt_tokens, tokens)
        if self.books is not None:
            self.books.answered(job_id, prompt_tokens, tokens)
        if cached_tokens is None:
            cached_tokens = min(entry.expected.tokens, prompt_tokens)
        else:
            cache.told(entry.expected, cached_tokens)
            news = self.sessions.read_again(entry.job, prompt_tokens, cached_tokens, now)
        read_tokens = max(prompt_tokens - cached_tokens, 0.0)
        self.sessions.answered(entry.job, read_tokens, cached_tokens, tokens, calls_tool=calls_tool)
        session = self.sessions.of(entry.job)
        if session is None or not session.agent:
            cache.note_other(prompt_tokens + tokens, now)
        return news

    def progress(
        self,
        job_id: str,
        tokens_done: float,
        resume_s: float = 0.0,
        evicts_s: float = 0.0,
        prefill: Prefill | None = None,
    ) -> None:
        """Record the tokens of a running job, and what cutting it now would cost in seconds; see `QueuedJob`.

        `prefill` is given if it may be cut because its prompt is still being read. KeyError if it is not
        running.
        """
        entry = self.running[job_id]
        entry.done_tokens, entry.resume_s, entry.evicts_s = tokens_done, resume_s, evicts_s
        entry.read_s, entry.stops_s = (0.0, None) if prefill is None else prefill
        if tokens_done > entry.slice_start_tokens or prefill is not None:
            entry.owed_s = 0.0

    def thought(
        self, job_id: str, tokens: float, answer_tokens: float, answer_q90: float, now: float
    ) -> None:
        """Record that a running job has stopped thinking after `tokens`, and how long its answer should be.

        KeyError if it is not running.
        """
        entry = self.running[job_id]
        entry.thought = Thought(tokens, answer_tokens, answer_q90)
        self.fleet.thought(entry, entry.thought, now)

    def began(self, job_id: str, now: float) -> None:
        """Record that a running job begins after a wait inside its worker; KeyError if it is not running."""
        entry = self.running[job_id]
        entry.began_s = now
        self.fleet.stations[entry.worker].note_ends()

    def owe(self, job_id: str, owed_s: float, now: float) -> None:
        """Set the cost of resuming a waiting job, in seconds; KeyError if it is not waiting."""
        entry = self._waiting[job_id]
        entry.owed_s = owed_s
        self.line.now = now
        self.line.drop(entry)
        self._place(entry)

    def spare(self, job_id: str) -> None:
        """Exempt a running job from preemption until it is requeued; KeyError if it is not running."""
        self.running[job_id].spared = True

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

        With `worker` it was preempted there, and waits for that worker if it has begun to answer. Without, it
        was not taken up or broke off; `able` names the workers that can run it from now on, None leaves them
        as they were. `served` as in `finish`.
        """
        entry = self._stop(job_id, now, served=served)
        if self.books is not None:
            self.books.freed(job_id, now, over=False, served=served, returned=not worker)
        self.sessions.left_slot(entry.job, now, waits=True)
        entry.queued_s, entry.spared = now, False
        if not entry.done_tokens:
            self.fleet.stations[entry.worker].cache.dropped(job_id)
        if able is not None:
            entry.job = entry.job.run_by(able)
        if worker:
            entry.cuts += 1
            entry.owed_s, entry.resume_s = entry.resume_s, 0.0
            if entry.stops_s is None:  # it had begun to answer
                entry.job = replace(entry.job, worker=worker)
            entry.stops_s = None
            # If it was promoted from the background, it has had its turn.
            self._stand_back(entry, entry.behind)
        else:
            entry.read_s, entry.stops_s, entry.thought = 0.0, None, None
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
        self.line.now = now
        self._exchange(entry, self.fleet.priced(replace(entry.job, saved_s=0.0, **estimates)), now)
        entry.moves.append(Move(now, MoveKind.REESTIMATED))
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Remove a waiting or held job; False if it is not in the queue."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
        if self.books is not None:
            self.books.left(job_id, now)
        self.sessions.left_queue(entry.job)
        self.accounts.settle(entry, now)
        return True

    def promote(self, job_id: str, now: float) -> bool:
        """Move a waiting job before all that are not promoted; False if it is not waiting."""
        return self._set_rank(job_id, FIRST, Move(now, MoveKind.PROMOTED))

    def reprioritise(self, job_id: str, priority: int, now: float) -> bool:
        """Set the priority of a waiting job, lower is sooner; False if it is not waiting."""
        return self._set_rank(job_id, float(priority), Move(now, MoveKind.REPRIORITISED, str(priority)))

    def _set_rank(self, job_id: str, rank: float, move: Move) -> bool:
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
        if rank == FIRST:
            entry.held, entry.key = False, float(next(self._promotions))
        else:
            entry.by_operator = True
        entry.rank = rank
        entry.moves.append(move)
        self._wait(entry)
        return True

    def hold(self, job_id: str, now: float) -> bool:
        """Keep a waiting job from running until it is released; False if it is not waiting."""
        entry = self._waiting.get(job_id)
        if entry is None or entry.held:
            return False
        self.line.drop(entry)
        entry.held = True
        if self.books is not None:
            self.books.held(job_id, now)
        entry.moves.append(Move(now, MoveKind.HELD))
        return True

    def release(self, job_id: str, now: float) -> bool:
        """Return a held job to its place in the queue; False if it is not held."""
        entry = self._waiting.get(job_id)
        if entry is None or not entry.held:
            return False
        entry.held = False
        if self.books is not None:
            self.books.released(job_id, now)
        entry.moves.append(Move(now, MoveKind.RELEASED))
        self._place(entry)
        return True

    def preemptions(self, now: float) -> list[Preempt]:
        """Return the preemptions worth making now, the best first.

        For backends that can stop a job and resume it later. Call it once `next` starts nothing more; stop
        the jobs, `requeue` them, call `next` for the jobs that take their slots, and call it again.
        `may_be_cut` says which jobs qualify, except on a worker that is down or runs more than its slots, or
        while a prompt is read where a model is loaded before or after. An
        interactive job past tau is not cut for a job that the guard would start after it.
        """
        policy = self.policy
        if self.paused or not self._waiting or not (policy.interrupts or policy.stops_reading):
            return []
        stations = self.fleet.stations.values()
        full = {each.name: list[QueuedJob]() for each in stations if len(each.running) == each.slots}
        for entry in self.running.values():
            if entry.worker in full and may_be_cut(entry, policy):
                full[entry.worker].append(entry)
        preempts: list[Preempt] = []
        if policy.quantum_tokens is not None:
            for worker, running in full.items():
                waiting = sum(lane.live for lane in self.line.open_lanes(worker, now))
                room = min(waiting, len(self._waiting) - len(preempts))
                preempts += spent(running, policy, policy.quantum_tokens)[:room]
            return preempts
        able: list[tuple[QueuedJob, list[QueuedJob]]] = []
        for worker, running in full.items():
            choice = self.line.choose_for(worker, now) if running else None
            if choice is not None and now >= choice.entry.job.not_before_s:
                able.append((choice.entry, [e for e in running if self._may_pass(choice.entry, e, now)]))
        return worthwhile(able, policy, max(1, self.waited_for) / sum(self.slots.values())) if able else []

    def _may_pass(self, waiting: QueuedJob, running: QueuedJob, now: float) -> bool:
        """Return whether the guard would start `waiting` before `running`, were both waiting.

        Under `by_share` policies a flooding client's running jobs can always be passed.
        """
        loads = self.residency.swaps(running.worker, running.job.id, waiting.job.affinity)
        if running.stops_s is not None and (loads or self._is_in_order(waiting)):
            return False
        tau_s = self.line.tau_of(running.job.client)
        if tau_s is None or self.policy.by_share or waiting.promoted or not running.waited_for:
            return True
        return now - running.job.arrival_s <= tau_s or not self.line.guard_allows(running, waiting, now)

    # -- the operator -------------------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def set_policy(self, policy: Policy, now: float) -> None:
        """Change the policy; promoted jobs stay in front."""
        self.line.now = now
        self.line.policy = tuned(policy, self.tail.rate, self.tail.slots)
        self.newcomers.forget()
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
        self.line.now = now
        here = [*self._waiting.values(), *self.running.values()]  # running jobs may be requeued
        weights = {entry.job.client: self.line.rules_of(entry.job.client).weight for entry in here}
        self.line.tenants = dict(tenants)
        self.line.everybody = everybody
        for entry in here:
            entry.usage_s *= weights[entry.job.client] / self.line.rules_of(entry.job.client).weight
            if priority_of is not None and not entry.promoted and not entry.by_operator:
                rank = priority_of(entry.job) + entry.job.stands_back
                if entry.rank != rank:
                    entry.rank = float(rank)
                    entry.moves.append(Move(now, MoveKind.REPRIORITISED, str(rank)))
        self._place_all()

    def set_slots(
        self, worker: str, slots: int, *, apart: bool = False, weight: float = 1.0, at_once: int = 0
    ) -> None:
        """Set how many jobs a worker may have, 0 if it is down; running jobs are not affected.

        `at_once` is how many of these it serves concurrently; the others wait in its own queue.
        """
        self.fleet.set(worker, slots, apart=apart, weight=weight, at_once=at_once)
        for entry in self._waiting.values():
            if entry.routed == worker and not self.fleet.takes(worker, entry.job.able):
                self.line.drop(entry)
                self._place(entry)

    def set_able(self, able: Callable[[Job], frozenset[str]], now: float) -> None:
        self.line.now = now
        for entry in (*self._waiting.values(), *self.running.values()):
            entry.job = entry.job.run_by(able(entry.job))
        self._place_all()

    def set_speed(self, worker: str, speed: WorkerSpeed) -> None:
        self.fleet.stations[worker].speed = speed

    def under(self, policy: Policy, now: float, every: int = 1) -> "Scheduler":
        """Return an independent copy under another policy, for simulation.

        It runs the same jobs; of the unheld waiting jobs it has one in `every`, in order of arrival.
        """
        of, policy = self.line, tuned(policy, self.tail.rate, self.tail.slots)
        trial = Scheduler(policy, workers={}, tau_s=self.tau_s, capacity=self.capacity)
        trial.fleet = self.fleet.copied()
        trial.line = WaitingLine(policy, trial.fleet, of.tau_s, of.tenants, of.everybody, trial._may_claim)
        trial.line.now, trial.line.since_promotion = now, of.since_promotion
        trial.line.clients_running = dict(of.clients_running)
        for job_id, entry in self.running.items():
            trial.running[job_id] = trial.fleet.stations[entry.worker].running[job_id] = copy(entry)
        unheld = (entry for entry in self._waiting.values() if not entry.held)
        for entry in islice(unheld, 0, None, every):
            mine = copy(entry)
            mine.lane, mine.routed, mine.moves = None, "", []
            trial._wait(mine)
        return trial
