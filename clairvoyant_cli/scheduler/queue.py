"""The scheduler: what happens to jobs, in the order in which it happens.

Rule 1: no I/O and no clock. `now` is an argument, in seconds; a decision is a return value.
Rule 2: a job is in exactly one state: waiting, held, running or gone.
Rule 3: `next` leaves no slot idle while a job waits that may use it, but for the cases that `choosing` names.
A job may not if it is held, may not run on that server (`Fleet`: others only, or a last resort), its client
is at its limit of running jobs, its earliest start has not come, or its session does not have its turn
(`waiting`).
Rule 4: waiting jobs are in one list, which a decision scans once for each distinct view of servers: those
with other models loaded, or to which other jobs are pinned. One view of 1,024 jobs takes some 0.4 ms.
Rule 5: when the queue is full, the newest waiting job of the client that has most of them is dropped, the
arriving one counted; if others have as many as its client, that is the arriving one.
Rule 6: a job's age counts from its arrival; a preemption does not restart tau.
Rule 7: what does not say that it changes something can be called any number of times. What ends by the time
alone, a session's turn, ends when a job joins and before one is chosen.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import count
from typing import Unpack

from clairvoyant_cli.scheduler import preemption
from clairvoyant_cli.scheduler.arrival_order import ArrivalOrder
from clairvoyant_cli.scheduler.choosing import Choice, Decision, StarvationGuard
from clairvoyant_cli.scheduler.fairness import EVERYBODY, Clients, Tenant
from clairvoyant_cli.scheduler.job import (
    FIRST,
    ClientFullError,
    Estimates,
    Job,
    Move,
    MoveKind,
    PromptRead,
    Run,
    Terms,
    Thought,
)
from clairvoyant_cli.scheduler.newcomers import Newcomers
from clairvoyant_cli.scheduler.placement import Fleet
from clairvoyant_cli.scheduler.policy import Policy, TailRate, tuned
from clairvoyant_cli.scheduler.sessions import Sessions
from clairvoyant_cli.scheduler.urgency import Claims, UrgencySource, level_beyond_share
from clairvoyant_cli.scheduler.waiting import WaitingJobs, set_background

LAST = 1 << 60  # the sequence number of a job that would join the queue


class Scheduler:
    """Jobs in, dispatch decisions out, for K slots on each of several servers.

    What is reported of a running job, or of one that waits, raises KeyError if it is not running, or not
    waiting.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        servers: Mapping[str, int],
        tau_s: float | None = None,
        capacity: int = 1024,
        tenants: Mapping[str, Tenant] | None = None,
        everybody: Tenant = EVERYBODY,
        load_s: Mapping[str, float] | None = None,
    ) -> None:
        """Start empty.

        `servers` maps a backend's name to its slots; `tau_s` is everybody's starvation timeout, None for no
        guard; `tenants` holds the rules of the clients that have any, `everybody` those of each other client
        that has a name; `load_s` maps an affinity to the seconds it takes to load.
        """
        self.tail = TailRate()
        self.capacity = capacity
        self.paused = False
        self.deferring = False  # the last `next` left a slot free: jobs wait for a better one, or a time
        self.arrival_order = ArrivalOrder()
        self.fleet = Fleet(servers, load_s or {})
        self.clients = Clients(tenants or {}, everybody, tau_s)
        self.claims = Claims()
        self.newcomers = Newcomers()
        self.sessions = Sessions(self.fleet)
        self.guard = StarvationGuard(self.clients)
        self.queue = WaitingJobs(self.clients, self.sessions, tuned(policy, self.tail.rate, self.tail.slots))
        self.running: dict[str, Run] = {}  # by job, in the order of their starts
        self.now = 0.0  # the time of the last operation
        self._followed = (-1, False)  # the state of servers and queue that the replay of arrivals has
        self._seq = count()

    def __repr__(self) -> str:
        counts = f"{len(self)} waiting, {len(self.running)} running"
        return f"<Scheduler {self.policy.name}: {counts}{' (paused)' if self.paused else ''}>"

    def __len__(self) -> int:
        return len(self.queue.jobs)

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the waiting jobs, in the order in which they joined."""
        return iter(self.queue.jobs.values())

    def __contains__(self, job_id: str) -> bool:
        return job_id in self.queue.jobs or job_id in self.running

    # -- jobs ---------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> Job | None:
        """Add a job to the queue; return the job dropped for it, None if there was room.

        Raises QueueFullError if the queue is full and this job is the one to drop, ClientFullError if the
        client has reached its queue limit, ValueError if the id is in use.
        """
        client, queue = job.client, self.queue
        limits = self.clients.limits_of(client)
        if job.id in queue.jobs or job.id in self.running:
            raise ValueError(f"a job {job.id!r} is in the queue already")
        if limits.max_waiting is not None and self.clients.waiting[client] >= limits.max_waiting:
            raise ClientFullError
        self.now = now
        self.sessions.expire(now, queue.parked)
        _admit(job, next(self._seq))
        self.fleet.price(job)
        displaced = None
        if len(queue.jobs) >= self.capacity:
            displaced = queue.displaced_by(client)
            self.cancel(displaced.id, now)
        job.session = self.sessions.arrived(job, now)
        job.moves.append(Move(now, MoveKind.SUBMITTED))
        queue.add(job, now)
        self.newcomers.came(job)
        self.tail.arrivals_s.append(now)
        self.arrival_order.arrived(job, at_grant=limits.max_running is not None)
        return displaced

    def next(self, now: float) -> Run | None:
        """Decide which job takes which free slot now, and return its run; None if nothing can start."""
        self.now, self.deferring, queue = now, False, self.queue
        if self._followed != (state := (self.fleet.changes, self.paused)):
            self._followed = state
            self.arrival_order.follow(self.slots, now, paused=self.paused)
        if self.paused or not queue.jobs:
            return None
        self.sessions.expire(now, max(queue.parked, 1))  # a job waits, parked or not
        if 0 < queue.interactive < len(queue.jobs):
            queue.let_forward(now)
        if queue.parked:
            queue.give_turns(now)
        free, choice = self.fleet.free(), None
        while free:
            decision = self._decision(now, for_good=True)
            choice = decision.choose(free)
            self.deferring = decision.deferring
            if choice is None or not choice[0].background_levels or not queue.must_park(choice[0], now):
                break
            queue.place(choice[0], now)  # it came before the session that it would evict
        if choice is None:
            self.deferring = self.deferring or queue.parked > 0
            return None
        job, server_id, reason = choice
        self.guard.started(job, reason, now)
        queue.remove(job)
        queue.starts_since_background += 1
        job.moves.append(Move(now, MoveKind.DISPATCHED, reason))
        run = self.running[job.id] = self.fleet.started(job, server_id, reason, now)
        self.arrival_order.granted(job, self.fleet.servers[server_id], run.expected_cache.tokens, now)
        if self.sessions.started(job, server_id, now):
            queue.place_turns(now)
        if job.urgency_by:
            self.claims.charged(run, now)
        self.clients.count_running(run, 1, now)
        if queue.jobs and job.prefix.hashes:
            queue.reprice(run, self.fleet, now)
        return run

    def finish(self, job_id: str, now: float, *, served: bool = True) -> None:
        """Free the slot of a running job.

        `served` means that the server ran it, so that its model is loaded there.
        """
        job = self._stop(job_id, now, served=served).job
        if not job.interactive:
            self.queue.starts_since_background = 0
        self.arrival_order.freed(job_id, now, over=True, served=served)
        self.sessions.left_slot(job, now, waits=False)
        if served and self.tail.served(job.served_s, max(1, self.fleet.slots), now):
            self.queue.policy = tuned(self.policy, self.tail.rate, self.tail.slots)
            if self.policy.boosts:
                self.queue.place_all(self.now)

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
        """Record what a running job's server says of its answer, in tokens.

        `cached_tokens` of its prompt came from the KV cache, None if unknown. Return a line for the log if it
        read much again because the beginning of the prompt changed, else "".
        """
        run = self.running[job_id]
        job, cache = run.job, self.fleet.servers[run.server_id].cache
        cache.answered(job_id, prompt_tokens, tokens)
        self.arrival_order.answered(job_id, prompt_tokens, tokens)
        session, news = self.sessions.known.get(job.session), ""
        if cached_tokens is not None:
            cache.learn_cached(run.expected_cache, cached_tokens)
            if session is not None:
                session.cache_reported = True
            news = self.sessions.read_again(run, prompt_tokens, cached_tokens, now)
        else:
            cached_tokens = min(run.expected_cache.tokens, prompt_tokens)
        self.sessions.answered(job, prompt_tokens, cached_tokens, tokens, calls_tool=calls_tool)
        if session is None or not session.agent:
            cache.other_tokens, cache.other_s = prompt_tokens + tokens, now
        return news

    def progress(
        self,
        job_id: str,
        tokens_done: float,
        resume_s: float = 0.0,
        evicts_s: float = 0.0,
        prefill: PromptRead | None = None,
    ) -> None:
        """Record the tokens of a running job, and what preempting it now would cost in seconds; see `Run`.

        `prefill` is given if it may be preempted because its prompt is still being read.
        """
        run = self.running[job_id]
        job, run.resume_s, run.evicts_s = run.job, resume_s, evicts_s
        job.done_tokens = tokens_done
        job.read_s, run.stops_s = (0.0, None) if prefill is None else prefill
        if tokens_done > run.slice_start_tokens or prefill is not None:
            job.owed_s = 0.0

    def thought(
        self, job_id: str, tokens: float, answer_tokens: float, answer_q90: float, now: float
    ) -> None:
        """Record that a job has stopped thinking after `tokens`, and how long its answer should be."""
        run = self.running[job_id]
        run.job.thought = Thought(tokens, answer_tokens, answer_q90)
        self.fleet.thought(run, answer_tokens, now)

    def began(self, job_id: str, now: float) -> None:
        """Record that a running job begins after a wait inside its server."""
        self.running[job_id].began_s = now

    def set_resume_cost(self, job_id: str, owed_s: float, now: float) -> None:
        """Set the cost of resuming a waiting job, in seconds."""
        job = self.queue.jobs[job_id]
        job.owed_s = owed_s
        self.now = now
        self.queue.place(job, now)

    def spare(self, job_id: str) -> None:
        """Exempt a running job from preemption until it is requeued."""
        self.running[job_id].spared = True

    def requeue(
        self, job_id: str, now: float, *, preempted: bool = False, able: frozenset[str] | None = None
    ) -> None:
        """Free the slot of a running job and queue it again.

        If it was `preempted`, it waits for its server if it has begun to answer. If not, it was not taken up
        or broke off; `able` names the servers that can run it from now on, None leaves them as they were.
        """
        run = self._stop(job_id, now, served=preempted)
        job = run.job
        self.arrival_order.freed(job_id, now, over=not preempted, served=preempted)
        if not preempted:
            self.arrival_order.arrived(job, at_grant=True)
        self.sessions.left_slot(job, now, waits=True)
        job.queued_s, job.run = now, None
        if not job.done_tokens:
            self.fleet.servers[run.server_id].cache.dropped(job_id)
        if able is not None:
            job.run_by(able)
        if preempted:
            job.preemptions += 1
            job.owed_s = run.resume_s
            if run.stops_s is None:  # it had begun to answer
                job.pinned = run.server_id
            # If it was promoted from the background, it has had its turn.
            set_background(job, job.levels_at_arrival)
        else:
            job.read_s, job.thought = 0.0, None
        kind, where = (MoveKind.PREEMPTED, run.server_id) if preempted else (MoveKind.RETURNED, "")
        job.moves.append(Move(now, kind, where))
        self.queue.add(job, self.now)

    def _stop(self, job_id: str, now: float, *, served: bool) -> Run:
        run = self.running.pop(job_id)
        self.fleet.ended(run, served=served)
        run.ended_s, took_s = now, now - run.started_s
        run.job.served_s += took_s
        if run.job.urgency_by:
            self.claims.charged(run, now, -1.0, took_s)
        self.clients.count_running(run, -1, now, received_s=took_s)
        return run

    def reestimate(self, job_id: str, now: float, **estimates: Unpack[Estimates]) -> bool:
        """Replace the predictions of a waiting job, its place and its client's charge; see `Job`.

        False if it is not waiting.
        """
        job = self.queue.jobs.get(job_id)
        if job is None:
            return False
        self.now = now
        job.saved_s = 0.0
        for name, value in estimates.items():
            setattr(job, name, value)
        self.fleet.price(job)
        self.queue.place(job, now)
        job.moves.append(Move(now, MoveKind.REESTIMATED))
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Remove a waiting or held job; False if it is not in the queue."""
        job = self.queue.jobs.get(job_id)
        if job is None:
            return False
        self.queue.remove(job)
        self.arrival_order.left(job_id)
        self.sessions.left_queue(job)
        return True

    def promote(self, job_id: str, now: float) -> bool:
        """Move a waiting job before all that are not promoted; False if it is not waiting."""
        return self._set_rank(job_id, FIRST, Move(now, MoveKind.PROMOTED))

    def reprioritise(self, job_id: str, priority: int, now: float) -> bool:
        """Set the priority of a waiting job, lower is sooner; False if it is not waiting."""
        return self._set_rank(job_id, float(priority), Move(now, MoveKind.REPRIORITISED, str(priority)))

    def _set_rank(self, job_id: str, rank: float, move: Move) -> bool:
        job = self.queue.jobs.get(job_id)
        if job is None:
            return False
        if rank == FIRST:
            self.queue.promote(job)
        else:
            job.by_operator, job.rank = True, rank
        job.moves.append(move)
        self.queue.place(job, self.now)
        return True

    def hold(self, job_id: str, now: float) -> bool:
        """Keep a waiting job from running until it is released; False if it is not waiting."""
        job = self.queue.jobs.get(job_id)
        if job is None or job.held:
            return False
        job.held = True
        self.arrival_order.held(job)
        job.moves.append(Move(now, MoveKind.HELD))
        return True

    def release(self, job_id: str, now: float) -> bool:
        """Return a held job to its place in the queue; False if it is not held."""
        job = self.queue.jobs.get(job_id)
        if job is None or not job.held:
            return False
        job.held = False
        job.moves.append(Move(now, MoveKind.RELEASED))
        self.queue.place(job, self.now)
        return True

    def set_urgency(self, job_id: str, level: int | None, by: UrgencySource, now: float) -> bool:
        """Set the urgency of a job; False if it is gone, or a predictor would overrule another source."""
        run = self.running.get(job_id)
        job = self.queue.jobs.get(job_id) if run is None else run.job
        if job is None or (by is UrgencySource.PREDICTOR and job.urgency_by != by):
            return False
        if run is not None:
            self.claims.charged(run, now, -1.0)
        job.urgency, job.urgency_by = level, by
        job.moves.append(Move(now, MoveKind.URGENCY, f"{'none' if level is None else level} by {by}"))
        if run is not None:
            self.claims.charged(run, now)
        else:
            self.queue.place(job, self.now)
        return True

    def preemptions(self, now: float) -> list[Run]:
        """Return the runs worth preempting now, the best first.

        For backends that can stop a job and resume it later. Call it once `next` starts nothing more; stop
        the jobs, `requeue` them, call `next` for the jobs that take their slots, and call it again.
        `may_be_preempted` says which jobs qualify, except on a server that is down or runs more than its
        slots, or while a prompt is read where a model is loaded before or after. An interactive job past tau
        is not preempted for a job that the guard would start after it.
        """
        if self.paused or not len(self) or not self.policy.preemptive:
            return []
        return preemption.preemptions(self._decision(now, for_good=True))

    def _decision(self, now: float, *, for_good: bool) -> Decision:
        """Return what servers would start now; `for_good`, claims beyond a client's share are dropped."""
        may_claim = self._may_claim if for_good and self.policy.by_level else None
        return Decision(self.queue, self.fleet, self.guard, now, may_claim)

    def _may_claim(self, job: Job, now: float) -> bool:
        """Return whether a job may start by the urgency that its client claims; if not, drop the claim."""
        share = self.clients.share_of(job.client)
        if job.promoted or self.claims.within_share(job, share, self.fleet.slots, now):
            return True
        self.set_urgency(job.id, level_beyond_share(job), UrgencySource.SHARE, now)
        return False

    # -- views --------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self.queue.policy

    @property
    def slots(self) -> dict[str, int]:
        return {name: server.slots for name, server in self.fleet.servers.items()}

    def waiting(self, now: float | None = None) -> list[Job]:
        """Return the waiting jobs in the order of their starts, were none to age; held ones last. `now` is by
        default the time of the last operation.
        """
        return self.queue.in_order(self.now if now is None else now)

    def waiting_with(self, job: Job, now: float) -> tuple[list[Job], Job]:
        """Return the waiting jobs in order as if a job had joined them now, and this job among them."""
        if job.id in self.queue.jobs:
            return self.waiting(now), self.queue.jobs[job.id]
        joins = copy(job)
        _admit(joins, LAST)
        joins.key, joins.share_key = self.policy.key(joins), self.policy.seconds(joins)
        return self.queue.in_order(now, [joins]), joins

    def next_up(self, now: float) -> Choice | None:
        """Return what would start now if each server had a free slot, None if nothing may.

        Claims of urgency are not decided by this.
        """
        return self._decision(now, for_good=False).next_up()

    # -- the operator and the servers -----------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def set_policy(self, policy: Policy, now: float) -> None:
        """Change the policy; promoted jobs stay in front."""
        self.now = now
        self.queue.policy = tuned(policy, self.tail.rate, self.tail.slots)
        self.newcomers.forget()
        self.clients.turn_s.clear()
        self.queue.place_all(now)

    def set_tenants(
        self,
        tenants: Mapping[str, Tenant],
        now: float,
        everybody: Tenant = EVERYBODY,
        priority_of: Callable[[Job], int] | None = None,
        levels_of: Callable[[Job], int] | None = None,
    ) -> None:
        """Change the clients' rules and apply them to waiting jobs. No job is dropped.

        `priority_of` returns the priority that a job may have from now on, `levels_of` its background levels;
        None leaves them as they are, and the operator's settings stay.
        """
        self.now = now
        self.clients.set_rules(tenants, everybody)
        self.clients.turn_s.clear()
        for job in self._jobs():  # running ones may be requeued
            priority = job.priority if priority_of is None else priority_of(job)
            levels = job.levels_at_arrival if levels_of is None else levels_of(job)
            self._set_terms(job, Terms(job.client, priority, levels), now)
        self.queue.place_all(now)

    def set_terms(self, job_id: str, terms: Terms, now: float) -> bool:
        """Make a waiting or running job another client's, with its charges; False if it is neither."""
        run = self.running.get(job_id)
        job = self.queue.jobs.get(job_id) if run is None else run.job
        if job is None:
            return False
        self.now = now
        self._set_terms(job, terms, now)
        if run is None:
            self.queue.place(job, now)
        return True

    def _set_terms(self, job: Job, terms: Terms, now: float) -> None:
        client, priority, levels = terms
        if (job.client, job.levels_at_arrival) != (client, levels):
            self._count(job, -1, now)
            self.sessions.renamed(job, client, now)
            job.client, job.background_levels, job.levels_at_arrival = client, levels, levels
            self._count(job, 1, now)
        rank = priority + job.background_levels
        if job.rank != rank and not job.promoted and not job.by_operator:
            job.priority, job.rank = priority, float(rank)
            job.moves.append(Move(now, MoveKind.REPRIORITISED, str(rank)))

    def _count(self, job: Job, more: int, now: float) -> None:
        """Count a waiting or running job, and what it costs, for its client; with -1, take that back."""
        if (run := self.running.get(job.id)) is not None:
            self.claims.charged(run, now, more)
            self.clients.count_running(run, more, now)
        else:
            self.queue.count(job, more)

    def set_able(self, able: Callable[[Job], frozenset[str]], now: float) -> None:
        self.now = now
        for job in self._jobs():
            job.run_by(able(job))
        self.queue.place_all(now)

    def _jobs(self) -> list[Job]:
        """Return all jobs, the waiting ones first."""
        return [*self, *(run.job for run in self.running.values())]


def _admit(job: Job, seq: int) -> None:
    job.seq, job.rank, job.queued_s = seq, float(job.own_rank), job.arrival_s
    job.levels_at_arrival = job.background_levels
