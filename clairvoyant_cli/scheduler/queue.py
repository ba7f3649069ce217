"""The queue and its decisions.

Rule 1: no I/O and no clock. `now` is an argument, in seconds; a decision is a return value.
Rule 2: a job is in exactly one state: waiting, held, running or gone.
Rule 3: `next` leaves no slot idle while a job waits that may use it. A job may not if it is held, may not run
on that server (`Fleet`: others only, or a last resort), its client is at its limit of running jobs, its
earliest start has not come, or its session does not have its turn (rule 7). Three more cases keep a slot idle
for a while: each of the few waiting jobs is predicted to end sooner on another server (`placement`; not if it
is past tau or promoted); the model that it needs would be loaded in place of one that answers, or that was
loaded a moment ago (`_open_to`); the first job does not fit into the KV cache that the slots share.
Rule 4: waiting jobs are in one list, which a decision scans once for each distinct view of servers: those
with other models loaded, or to which other jobs are pinned. One view of 1,024 jobs takes some 0.4 ms.
Rule 5: when the queue is full, the newest waiting job of the client that has most of them is dropped, the
arriving one counted; if others have as many as its client, that is the arriving one.
Rule 6: a job's age counts from its arrival; a preemption does not restart tau.
Rule 7: a job of a session that does not have its turn is parked: it does not start (see `sessions`).
Exceptions: promoted jobs, the most urgent ones, and policies without a guard.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from copy import copy, deepcopy
from functools import cache, partial
from heapq import heapify, heappop, heapreplace
from itertools import count, islice
from math import inf
from operator import attrgetter
from typing import NamedTuple, Unpack

from clairvoyant_cli.scheduler.arrival_order import ArrivalOrder
from clairvoyant_cli.scheduler.fairness import EVERYBODY, Accounts, Tenant, rules_for
from clairvoyant_cli.scheduler.job import (
    FIRST,
    ClientFullError,
    Dispatch,
    Estimates,
    Job,
    Move,
    MoveKind,
    Preempt,
    PromptRead,
    QueueFullError,
    Reason,
    Terms,
    Thought,
)
from clairvoyant_cli.scheduler.newcomers import Newcomers
from clairvoyant_cli.scheduler.placement import MAX_PASSED, Fleet, Placement, ServerSlots, ServerSpeed
from clairvoyant_cli.scheduler.policy import DEFAULT_TAU_S, FixedRate, Policy, TailRate, tuned
from clairvoyant_cli.scheduler.preemption import may_be_cut, worthwhile
from clairvoyant_cli.scheduler.residency import Residency
from clairvoyant_cli.scheduler.sessions import Sessions
from clairvoyant_cli.scheduler.urgency import Claims, UrgencySource, level_beyond_share, level_of, outranks

MAX_BACK_S = DEFAULT_TAU_S  # a background job may come forward after tau, and after this where tau is longer
MAX_REPRICED = 8  # at most this many waiting jobs are priced again when a prompt is read
REPRICE_SHARE = 0.05  # a change of less than this share of a job's cost does not move it
FORWARD_AFTER = 3  # a background job past tau comes forward after this many starts since one has ended

LAST = 1 << 60  # the sequence number of a job that would join the queue

IN_ORDER = attrgetter("rank", "key", "seq")

Excess = dict[tuple[str, bool], float]
"""Seconds of service beyond another client's, by client and whether the jobs are interactive."""


class Choice(NamedTuple):
    """A job that a server would start, and its order among the choices of others: rank, key, sequence."""

    order: tuple[float, float, int]
    job: Job
    reason: Reason


class Scheduler:
    """Jobs in, dispatch decisions out, for K slots on each of several servers.

    What is told of a running job, or of one that waits, raises KeyError if it is not running, or not waiting.
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
        tail_weight: float = 1.0,
    ) -> None:
        """Start empty.

        `servers` maps a backend's name to its slots; `tau_s` is everybody's starvation timeout, None for no
        guard; `tenants` holds the rules of the clients that have any, `everybody` those of each other client
        that has a name; `load_s` maps an affinity to the seconds it takes to load; `tail_weight` is a
        factor on the rate of policies that boost.
        """
        self.tail = TailRate(tail_weight)
        self.policy = tuned(policy, self.tail.rate, self.tail.slots)
        self.tau_s = tau_s
        self.capacity = capacity
        self.tenants = dict(tenants or {})
        self.everybody = everybody
        self.paused = False
        self.arrival_order = ArrivalOrder()
        self.tau_firings = 0
        self.since_promotion = 1 << 30  # starts by policy since the last one by tau
        self.deferring = (
            False  # the last `next` left a slot free: waiting jobs wait for a better one, or a time
        )
        self.fleet = Fleet(servers, load_s or {})
        self.claims = Claims()
        self.accounts = Accounts()
        self.newcomers = Newcomers()
        self.sessions = Sessions(self.fleet)
        self.running: dict[str, Job] = {}  # in the order of their starts
        self.interactive = 0  # waiting jobs that are not in the background
        self._now = 0.0  # the time of the last operation
        self._seq = count()
        self._promotions = count(1)
        self._waiting: dict[str, Job] = {}  # in the order in which they joined
        self._by_client = Counter[str]()  # waiting jobs of each client
        self._clients_running: dict[str, int] = {}
        self._turn_s: dict[str, float] = {}  # when a client that still waits had its last start by tau
        self._since_forward = FORWARD_AFTER
        self._parked = 0

    def __repr__(self) -> str:
        counts = f"{len(self._waiting)} waiting, {len(self.running)} running"
        return f"<Scheduler {self.policy.name}: {counts}{' (paused)' if self.paused else ''}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the waiting jobs, in the order in which they joined."""
        return iter(self._waiting.values())

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._waiting or job_id in self.running

    # -- jobs ---------------------------------------------------------------------------------------

    def submit(self, job: Job, now: float) -> Job | None:
        """Add a job to the queue; return the job dropped for it, None if there was room.

        Raises QueueFullError if the queue is full and this job is the one to drop, ClientFullError if the
        client has reached its queue limit, ValueError if the id is in use.
        """
        client, rules = job.client, self.rules_of(job.client)
        if job.id in self:
            raise ValueError(f"a job {job.id!r} is in the queue already")
        if rules.max_waiting is not None and self._by_client[client] >= rules.max_waiting:
            raise ClientFullError
        self._now = now
        self._admit(job, next(self._seq))
        self.fleet.price(job)
        displaced = None
        if len(self._waiting) >= self.capacity:
            displaced = self._one_too_many(client)
            self.cancel(displaced.id, now)
        job.session = self.sessions.arrived(job, now)
        job.moves.append(Move(now, MoveKind.SUBMITTED))
        self._wait(job)
        self.newcomers.came(job)
        self.tail.arrived(now)
        self.arrival_order.arrived(job, at_grant=rules.max_running is not None)
        return displaced

    def _admit(self, job: Job, seq: int) -> None:
        job.seq, job.rank, job.queued_s = seq, float(job.own_rank), job.arrival_s
        job.levels_at_arrival = job.background_levels

    def _one_too_many(self, client: str) -> Job:
        """Return the waiting job to drop for a new one of a client; QueueFullError if that is the new one."""
        most = max(self._by_client.values(), default=0)
        if most > self._by_client[client] + 1:
            # A partial answer is never dropped, nor what the operator has promoted or holds.
            crowd = (
                job
                for job in self._waiting.values()
                if self._by_client[job.client] == most and not (job.cuts or job.promoted or job.held)
            )
            newest = max(crowd, key=lambda job: (job.arrival_s, job.seq), default=None)
            if newest is not None:
                return newest
        raise QueueFullError

    def next(self, now: float) -> Dispatch | None:
        """Decide which job takes which free slot now and mark it running; None if nothing can start."""
        self._now = now
        self.deferring = False
        self.arrival_order.look(self.slots, now, paused=self.paused)
        if self.paused or not self._waiting:
            return None
        self._let_forward(now)
        if self._parked:
            self._give_turns(now)
        choice = self.choose(now)
        while choice is not None and choice[0].background_levels and self._must_park(choice[0]):
            self._place(choice[0])  # it came before the session that it would evict
            choice = self.choose(now)
        if choice is None:
            self.deferring = self.deferring or self._parked > 0
            return None
        job, server_id, reason = choice
        if reason is Reason.TAU:
            self._turn_s[job.client] = now
        self._leave(job)
        self._since_forward += 1
        job.reason = reason
        job.slice_start_tokens = job.done_tokens
        job.moves.append(Move(now, MoveKind.DISPATCHED, reason))
        self.running[job.id] = job
        self.fleet.started(job, server_id, now)
        self.arrival_order.granted(job, self.fleet.servers[server_id], now)
        if self.sessions.started(job, server_id, now):  # what a turn costs has changed
            for each in self._waiting.values():
                if each.ready and self._is_in_order(each):
                    self._place(each)
        self._count(job, 1, now)
        self._reprice(job, server_id, now)
        if reason is Reason.TAU:
            self.tau_firings += 1
            self.since_promotion = 0
        else:
            self.since_promotion += 1
        return Dispatch(job, server_id, reason, now - job.queued_s)

    def finish(self, job_id: str, now: float, *, served: bool = True) -> None:
        """Free the slot of a running job.

        `served` means that the server ran it, so that its model is loaded there.
        """
        job = self._stop(job_id, now, served=served)
        if not job.interactive:
            self._since_forward = 0
        self.arrival_order.freed(job_id, now, over=True, served=served)
        self.sessions.left_slot(job, now, waits=False)
        if served and self.tail.served(job.served_s, max(1, sum(self.slots.values())), now):
            self.policy = tuned(self.policy, self.tail.rate, self.tail.slots)
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
        """Record what a running job's server says of its answer, in tokens.

        `cached_tokens` of its prompt came from the KV cache, None if unknown. Return a line for the log if it
        read much again because the beginning of the prompt changed, else "".
        """
        job = self.running[job_id]
        cache = self.fleet.servers[job.server_id].cache
        cache.answered(job_id, prompt_tokens, tokens)
        self.arrival_order.answered(job_id, prompt_tokens, tokens)
        session, news = self.sessions.of(job), ""
        if cached_tokens is not None:
            cache.told(job.expected, cached_tokens)
            news = self.sessions.read_again(job, prompt_tokens, cached_tokens, now)
        else:
            cached_tokens = min(job.expected.tokens, prompt_tokens)
        self.sessions.answered(job, prompt_tokens, cached_tokens, tokens, calls_tool=calls_tool)
        if session is None or not session.agent:
            cache.note_other(prompt_tokens + tokens, now)
        return news

    def progress(
        self,
        job_id: str,
        tokens_done: float,
        resume_s: float = 0.0,
        evicts_s: float = 0.0,
        prefill: PromptRead | None = None,
    ) -> None:
        """Record the tokens of a running job, and what cutting it now would cost in seconds; see `Job`.

        `prefill` is given if it may be cut because its prompt is still being read.
        """
        job = self.running[job_id]
        job.done_tokens, job.resume_s, job.evicts_s = tokens_done, resume_s, evicts_s
        job.read_s, job.stops_s = (0.0, None) if prefill is None else prefill
        if tokens_done > job.slice_start_tokens or prefill is not None:
            job.owed_s = 0.0

    def thought(
        self, job_id: str, tokens: float, answer_tokens: float, answer_q90: float, now: float
    ) -> None:
        """Record that a job has stopped thinking after `tokens`, and how long its answer should be."""
        job = self.running[job_id]
        job.thought = Thought(tokens, answer_tokens, answer_q90)
        self.fleet.thought(job, job.thought, now)

    def began(self, job_id: str, now: float) -> None:
        """Record that a running job begins after a wait inside its server."""
        self.running[job_id].began_s = now

    def set_resume_cost(self, job_id: str, owed_s: float, now: float) -> None:
        """Set the cost of resuming a waiting job, in seconds."""
        job = self._waiting[job_id]
        job.owed_s = owed_s
        self._now = now
        self._place(job)

    def spare(self, job_id: str) -> None:
        """Exempt a running job from preemption until it is requeued."""
        self.running[job_id].spared = True

    def requeue(
        self,
        job_id: str,
        now: float,
        *,
        served: bool = True,
        server_id: str = "",
        able: frozenset[str] | None = None,
    ) -> None:
        """Free the slot of a running job and queue it again.

        With `server_id` it was preempted there, and waits for that server if it has begun to answer. Without,
        it was not taken up or broke off; `able` names the servers that can run it from now on, None leaves
        them as they were. `served` as in `finish`.
        """
        job = self._stop(job_id, now, served=served)
        self.arrival_order.freed(job_id, now, over=not server_id, served=served)
        if not server_id:
            self.arrival_order.arrived(job, at_grant=True)
        self.sessions.left_slot(job, now, waits=True)
        job.queued_s, job.spared = now, False
        if not job.done_tokens:
            self.fleet.servers[job.server_id].cache.dropped(job_id)
        if able is not None:
            job.run_by(able)
        if server_id:
            job.cuts += 1
            job.owed_s, job.resume_s = job.resume_s, 0.0
            if job.stops_s is None:  # it had begun to answer
                job.pinned = server_id
            job.stops_s = None
            # If it was promoted from the background, it has had its turn.
            self._set_background(job, job.levels_at_arrival)
        else:
            job.read_s, job.stops_s, job.thought = 0.0, None, None
        job.moves.append(Move(now, MoveKind.PREEMPTED if server_id else MoveKind.RETURNED, server_id))
        self._wait(job)

    def reestimate(self, job_id: str, now: float, **estimates: Unpack[Estimates]) -> bool:
        """Replace the predictions of a waiting job, its place and its client's charge; see `Job`.

        False if it is not waiting.
        """
        job = self._waiting.get(job_id)
        if job is None:
            return False
        self._now = now
        job.saved_s = 0.0
        for name, value in estimates.items():
            setattr(job, name, value)
        self.fleet.price(job)
        self._place(job)
        job.moves.append(Move(now, MoveKind.REESTIMATED))
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Remove a waiting or held job; False if it is not in the queue."""
        job = self._waiting.get(job_id)
        if job is None:
            return False
        self._leave(job)
        self.arrival_order.left(job_id, now)
        self.sessions.left_queue(job)
        return True

    def promote(self, job_id: str, now: float) -> bool:
        """Move a waiting job before all that are not promoted; False if it is not waiting."""
        return self._set_rank(job_id, FIRST, Move(now, MoveKind.PROMOTED))

    def reprioritise(self, job_id: str, priority: int, now: float) -> bool:
        """Set the priority of a waiting job, lower is sooner; False if it is not waiting."""
        return self._set_rank(job_id, float(priority), Move(now, MoveKind.REPRIORITISED, str(priority)))

    def _set_rank(self, job_id: str, rank: float, move: Move) -> bool:
        job = self._waiting.get(job_id)
        if job is None:
            return False
        if rank == FIRST:
            job.held, job.key = False, float(next(self._promotions))
        else:
            job.by_operator = True
        job.rank = rank
        job.moves.append(move)
        self._place(job)
        return True

    def hold(self, job_id: str, now: float) -> bool:
        """Keep a waiting job from running until it is released; False if it is not waiting."""
        job = self._waiting.get(job_id)
        if job is None or job.held:
            return False
        job.held = True
        self.arrival_order.held(job, now)
        job.moves.append(Move(now, MoveKind.HELD))
        return True

    def release(self, job_id: str, now: float) -> bool:
        """Return a held job to its place in the queue; False if it is not held."""
        job = self._waiting.get(job_id)
        if job is None or not job.held:
            return False
        job.held = False
        job.moves.append(Move(now, MoveKind.RELEASED))
        self._place(job)
        return True

    def preemptions(self, now: float) -> list[Preempt]:
        """Return the preemptions worth making now, the best first.

        For backends that can stop a job and resume it later. Call it once `next` starts nothing more; stop
        the jobs, `requeue` them, call `next` for the jobs that take their slots, and call it again.
        `may_be_cut` says which jobs qualify, except on a server that is down or runs more than its slots, or
        while a prompt is read where a model is loaded before or after. An interactive job past tau is not cut
        for a job that the guard would start after it.
        """
        policy = self.policy
        if self.paused or not self._waiting or not policy.preemptive:
            return []
        victims = dict[ServerSlots, list[Job]]()
        for server in self.fleet.servers.values():
            running = [each for each in server.running.values() if may_be_cut(each, policy)]
            if running and len(server.running) == server.slots:
                victims[server] = running
        able = [
            (choice.job, [each for each in victims[server] if self._may_pass(choice.job, each, now)])
            for server, choice in self._choices(victims, now)
            if now >= choice.job.not_before_s
        ]
        if not able:
            return []
        waiters = max(1, self.interactive) / sum(self.slots.values())
        return worthwhile(able, policy, waiters, self.excess_s(now))

    def _may_pass(self, waiting: Job, running: Job, now: float) -> bool:
        """Return whether the guard would start `waiting` before `running`, were both waiting.

        Under `by_share` policies another client's running jobs can always be passed.
        """
        loads = self.residency.swaps(running.server_id, running.id, waiting.affinity)
        if running.stops_s is not None and (loads or self._is_in_order(waiting)):
            return False
        tau_s = self.tau_of(running.client)
        if tau_s is None or waiting.promoted or not running.interactive:
            return True
        if self.policy.by_share and waiting.client != running.client:
            return True
        return now - running.arrival_s <= tau_s or not self._guard_allows(running, waiting, now)

    # -- views --------------------------------------------------------------------------------------

    @property
    def clients(self) -> dict[str, tuple[int, int]]:
        """The numbers of waiting and running jobs of each client that has any."""
        waiting, running = self._by_client, self._clients_running
        names = waiting.keys() | running.keys()
        return {name: (waiting[name], running.get(name, 0)) for name in names}

    @property
    def slots(self) -> dict[str, int]:
        return {name: server.slots for name, server in self.fleet.servers.items()}

    @property
    def residency(self) -> Residency:
        return self.fleet.residency

    def waiting(self, now: float | None = None) -> list[Job]:
        """Return the waiting jobs in the order of their starts, were none to age; held ones last. `now` is by
        default the time of the last operation.
        """
        return list(self._in_order(self._waiting.values(), self._now if now is None else now))

    def waiting_with(self, job: Job, now: float) -> tuple[list[Job], Job]:
        """Return the waiting jobs in order as if a job had joined them now, and this job among them."""
        if job.id in self._waiting:
            return self.waiting(now), self._waiting[job.id]
        joins = copy(job)
        self._admit(joins, LAST)
        self._set_keys(joins, joins)
        return list(self._in_order([*self._waiting.values(), joins], now)), joins

    def _in_order(self, jobs: Iterable[Job], now: float) -> Iterable[Job]:
        """Return jobs in the order of their starts. Where clients share, each start counts for its client."""
        ordered = sorted(jobs, key=attrgetter("held", "parked", "rank", "key", "seq"))
        excess_s = self.excess_s(now)
        return _in_turns(ordered, excess_s, self.weight_of) if excess_s else ordered

    def excess_s(self, now: float) -> Excess:
        """Return how much more service each client had than the one that had least, in seconds per weight.

        Nothing where there is one client, or the policy does not share.
        """
        names = self._by_client.keys() | self._clients_running.keys()
        if not self.policy.by_share or len(names) < 2:
            return {}
        found: Excess = {}
        for interactive in (True, False) if self.interactive < len(self._waiting) else (True,):
            used_s = {
                name: self.accounts.used_s(name, now, interactive=interactive) / self.weight_of(name)
                for name in names
            }
            least_s = min(used_s.values())
            found |= {(name, interactive): used - least_s for name, used in used_s.items()}
        return found

    def weight_of(self, client: str) -> float:
        return self.rules_of(client).weight

    def rules_of(self, client: str) -> Tenant:
        return rules_for(client, self.tenants, self.everybody) if client else EVERYBODY

    def tau_of(self, client: str) -> float | None:
        own = self.rules_of(client).tau_s if client else None
        return self.tau_s if own is None else own

    def is_overdue(self, job: Job) -> bool:
        """Return whether a waiting job is past its tau; background jobs are not while others wait."""
        if not self.policy.guarded or (job.background_levels and self.interactive):
            return False
        tau_s = self.tau_of(job.client)
        return tau_s is not None and self._now - job.arrival_s > tau_s

    def is_limited(self, client: str) -> bool:
        """Return whether a client has all the slots that it may have."""
        limit = self.rules_of(client).max_running
        return limit is not None and self._clients_running.get(client, 0) >= limit

    def takers(self, job: Job) -> list[ServerSlots]:
        """Return the available servers that may serve a waiting job; none if it is held or parked."""
        servers = self.fleet.servers.values() if job.ready else ()
        return [each for each in servers if each.slots and self.fleet.may_take(each.id, job)]

    # -- choosing -----------------------------------------------------------------------------------

    def choose(self, now: float) -> tuple[Job, str, Reason] | None:
        """Return the job to start now, its server and the reason; None if nothing can start.

        Takes the first job in order and finds the server where it is predicted to end first; a job that
        should wait for a busy server is passed over. A server whose KV cache has no room for the first job
        starts none after it, so that each has its turn.
        """
        free = self.fleet.free()
        if not free:
            return None
        passed, ahead_s = dict[str, tuple[Job, Placement]](), self._pinned_s()
        while (first := self._first(free, now, passed)) is not None:
            server, (_, job, reason) = first
            able = [
                each
                for each in free
                if each is server
                or (self.fleet.may_take(each.id, job) and self.fleet.open_to(job, each, now))
            ]
            roomy = [each for each in able if each.has_room(job)]
            if not roomy:
                free = [each for each in free if each not in able]
                continue
            verdict = self.fleet.best(job, now, roomy, ahead_s)
            there = verdict.waits_for
            if reason is Reason.POLICY and now < job.not_before_s:
                passed[job.id] = job, verdict._replace(gain_s=inf)
            elif there is None or reason is not Reason.POLICY or self.is_overdue(job):
                return job, verdict.server.id, reason
            else:
                passed[job.id] = job, verdict
                ahead_s[there.id] = ahead_s.get(there.id, 0.0) + verdict.takes_s
            if len(passed) == MAX_PASSED < len(self._waiting):
                job, verdict = min(passed.values(), key=lambda each: each[1].gain_s)
                return job, verdict.server.id, Reason.POLICY
        self.deferring = bool(passed) or any(self.fleet.answers_fresh(each, now) for each in free)
        return None

    def next_up(self, now: float) -> Choice | None:
        """Return what would start now if each server had a free slot, None if nothing may.

        Claims of urgency are not decided by this.
        """
        up = [each for each in self.fleet.servers.values() if each.slots]
        first = self._first(up, now, for_good=False)
        return None if first is None else first[1]

    def _first(
        self,
        servers: Iterable[ServerSlots],
        now: float,
        passed: Container[str] = (),
        *,
        for_good: bool = True,
    ) -> tuple[ServerSlots, Choice] | None:
        """Return the first choice over all servers, without the jobs passed over, and its server."""
        choices = self._choices(servers, now, passed, for_good=for_good)
        return min(choices, key=lambda each: each[1].order, default=None)

    def _choices(
        self,
        servers: Iterable[ServerSlots],
        now: float,
        passed: Container[str] = (),
        *,
        for_good: bool = True,
    ) -> Iterator[tuple[ServerSlots, Choice]]:
        """Yield each server that would start a job now, and its choice.

        Unless `for_good`, claims of urgency are accepted without a check.
        """
        several = len(self.fleet.servers) > 1
        apart = several and any(e.pinned or e.able for e in self._waiting.values())
        excess_s = self.excess_s(now)
        found = dict[tuple[object, ...], Choice | None]()
        for server in servers:
            alone = server.id if apart or server.last_resort or server.model_slots else ""
            view = (alone, *self.residency.view(server.id, now))
            if view not in found:  # equal servers make the same choice
                found[view] = self._choice(server, now, passed, excess_s, for_good=for_good)
            if (choice := found[view]) is not None:
                yield server, choice

    def _choice(
        self, server: ServerSlots, now: float, passed: Container[str], excess_s: Excess, *, for_good: bool
    ) -> Choice | None:
        """Return what a slot would start now: promoted, by tau or by policy."""
        while jobs := self._open_to(server, now):
            others = [each for each in jobs if each.id not in passed] if passed else jobs
            choice = self._first_of(others, server.id, excess_s)
            if choice is None:
                return None
            job = choice.job
            if not for_good or self._may_claim(job, now):
                break
        else:
            return None
        overdue = None if job.promoted else self._longest_overdue(jobs, now)
        if overdue is not None and overdue is not job and self._guard_allows(overdue, job, now):
            price_s = self.residency.price_s(server.id, overdue.affinity)
            return Choice((FIRST, price_s, overdue.seq), overdue, Reason.TAU)
        return choice

    def _first_of(self, jobs: list[Job], server_id: str, excess_s: Excess) -> Choice | None:
        """Return the first of waiting jobs by policy. Loading a model counts. Of several clients, that is the
        first by `share_key` of each one's first.
        """
        policy, price_s = self.policy, _free
        order: Callable[[Job], tuple[float, float, int]] = IN_ORDER
        if policy.in_seconds and self.residency.prices:
            price_s = cache(partial(self.residency.price_s, server_id))

            def with_load(job: Job) -> tuple[float, float, int]:
                load_s = price_s(job.affinity)
                if load_s and policy.boosts and not job.promoted:
                    return job.rank, policy.key(job, load_s), job.seq
                return job.rank, job.key + load_s, job.seq

            order = with_load

        def between_clients(job: Job) -> tuple[float, float, int]:
            return job.rank, _share_key(job, excess_s) + price_s(job.affinity), job.seq

        if excess_s:
            of = defaultdict[tuple[str, bool], list[Job]](list)
            for job in jobs:
                of[job.client, not job.levels_at_arrival].append(job)
            jobs, order = [min(each, key=order) for each in of.values()], between_clients
        if not jobs:
            return None
        job = min(jobs, key=order)
        return Choice(order(job), job, Reason.PROMOTED if job.promoted else Reason.POLICY)

    def _open_to(self, server: ServerSlots, now: float) -> list[Job]:
        """Return the waiting jobs that a slot may serve.

        While the loaded model must stay, only jobs that need no other; promoted jobs are exempt. While a
        server waits to swap, only jobs that need what it will load: others would prolong the wait.
        """
        server_id, shares, may_take = server.id, not server.last_resort, self.fleet.may_take
        limited, full = {client for client in self._clients_running if self.is_limited(client)}, server.full()
        jobs = [
            e
            for e in self._waiting.values()
            if not e.held
            and not e.parked
            and e.client not in limited
            and e.affinity not in full
            and ((shares and not (e.pinned or e.able)) or may_take(server_id, e))
        ]
        if there := self.residency.swapping_to(server_id):
            return [e for e in jobs if not e.affinity or e.affinity in there]
        if self.residency.must_stay(server_id, now):
            price_s = cache(partial(self.residency.price_s, server_id))
            keep = [e for e in jobs if e.promoted or not price_s(e.affinity)]
            return keep if self.fleet.answers_fresh(server, now) else keep or jobs
        return jobs

    def _longest_overdue(self, jobs: Iterable[Job], now: float) -> Job | None:
        """Return the job furthest past its tau, None if none is or the policy has no guard. Background jobs
        count where no others wait.

        Under `by_share` policies, a start by tau restarts its client's tau while several clients wait.
        """
        if not self.policy.guarded:
            return None
        oldest, others = dict[str, Job](), self.interactive > 0  # the oldest of each client
        for job in jobs:
            if not (others and job.background_levels):
                first = oldest.get(job.client)
                if first is None or (job.arrival_s, job.seq) < (first.arrival_s, first.seq):
                    oldest[job.client] = job
        turn_s = self._turn_s if self.policy.by_share and len(oldest) > 1 else {}
        late = (
            (now - max(job.arrival_s, turn_s.get(client, -inf)) - tau_s, -job.seq, job)
            for client, job in oldest.items()
            if (tau_s := self.tau_of(client)) is not None
        )
        late_s, _, longest = max(late, default=(0.0, 0, None))
        return longest if late_s > 0.0 else None

    def _guard_allows(self, overdue: Job, other: Job, now: float) -> bool:
        """Return whether the guard starts a job past tau before the job that the policy would start.

        The guard's ration does not apply between two jobs of one client if the other is first only by a claim
        of urgency: without keys, anyone may use that client's name.
        """
        policy, since = self.policy, self.since_promotion
        if policy.guard is None:
            return False
        client = other.client
        if policy.by_level and client == overdue.client != "" and outranks(other, overdue):
            since = policy.guard.every
        return policy.guard.allows(now - overdue.arrival_s, now - other.arrival_s, since)

    def _pinned_s(self) -> dict[str, float]:
        """Return the predicted seconds of work waiting for each server; under "", for any server."""
        pinned_s = dict[str, float]()
        for job in self._waiting.values() if len(self.fleet.servers) > 1 else ():
            if job.ready:
                pinned_s[job.pinned_to] = pinned_s.get(job.pinned_to, 0.0) + job.cost_s
        return pinned_s

    def _may_claim(self, job: Job, now: float) -> bool:
        """Return whether a job may start by the urgency that its client claims; if not, drop the claim."""
        if not self.policy.by_level or job.promoted:
            return True
        client = job.client
        weights = (self.rules_of(name).weight for name in {*self._by_client, client})
        share = self.rules_of(client).weight / sum(weights)
        if self.claims.within_share(job, share, self.slots.values(), now):
            return True
        self.set_urgency(job.id, level_beyond_share(job), UrgencySource.SHARE, now)
        return False

    # -- the operator -------------------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def set_policy(self, policy: Policy, now: float) -> None:
        """Change the policy; promoted jobs stay in front."""
        self._now = now
        self.policy = tuned(policy, self.tail.rate, self.tail.slots)
        self.newcomers.forget()
        self._turn_s.clear()
        self._place_all()

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
        self._now = now
        self.tenants = dict(tenants)
        self.everybody = everybody
        self._turn_s.clear()
        for job in (*self._waiting.values(), *self.running.values()):  # running jobs may be requeued
            priority = job.priority if priority_of is None else priority_of(job)
            levels = job.levels_at_arrival if levels_of is None else levels_of(job)
            self._set_terms(job, Terms(job.client, priority, levels), now)
        self._place_all()

    def set_terms(self, job_id: str, terms: Terms, now: float) -> bool:
        """Make a waiting or running job another client's, with its charges; False if it is neither."""
        job = self._waiting.get(job_id) or self.running.get(job_id)
        if job is None:
            return False
        self._now = now
        self._set_terms(job, terms, now)
        if job_id in self._waiting:
            self._place(job)
        return True

    def _set_terms(self, job: Job, terms: Terms, now: float) -> None:
        client, priority, levels = terms
        if (job.client, job.levels_at_arrival) != (client, levels):
            self._count(job, -1, now)
            self.sessions.renamed(job, client, now)
            job.client, job.levels_at_arrival, job.background_levels = client, levels, levels
            self._count(job, 1, now)
        rank = priority + job.background_levels
        if job.rank != rank and not job.promoted and not job.by_operator:
            job.priority, job.rank = priority, float(rank)
            job.moves.append(Move(now, MoveKind.REPRIORITISED, str(rank)))

    def set_slots(
        self, server_id: str, slots: int, *, last_resort: bool = False, weight: float = 1.0, at_once: int = 0
    ) -> None:
        """Set how many jobs a server may have, 0 if it is down; running jobs are not affected.

        `at_once` is how many of these it serves concurrently; the others wait in its own queue.
        """
        self.fleet.set(server_id, slots, last_resort=last_resort, weight=weight, at_once=at_once)

    def set_able(self, able: Callable[[Job], frozenset[str]], now: float) -> None:
        self._now = now
        for job in (*self._waiting.values(), *self.running.values()):
            job.run_by(able(job))
        self._place_all()

    def set_speed(self, server_id: str, speed: ServerSpeed) -> None:
        self.fleet.servers[server_id].speed = speed

    def under(self, policy: Policy, now: float, every: int = 1) -> "Scheduler":
        """Return an independent copy under another policy, for simulation.

        It runs the same jobs; of the unheld waiting jobs it has one in `every`, in order of arrival.
        """
        trial = Scheduler(
            policy, servers={}, tau_s=self.tau_s, tenants=self.tenants, everybody=self.everybody
        )
        trial.tail = FixedRate(self.tail)
        trial.policy = tuned(policy, trial.tail.rate, trial.tail.slots)
        trial.fleet, trial._now, trial.since_promotion = self.fleet.copied(), now, self.since_promotion
        trial.accounts = deepcopy(self.accounts)
        trial._clients_running, trial._since_forward = dict(self._clients_running), self._since_forward
        for job_id, job in self.running.items():
            trial.running[job_id] = trial.fleet.servers[job.server_id].running[job_id] = copy(job)
        unheld = (job for job in self._waiting.values() if not job.held)
        for job in islice(unheld, 0, None, every):
            mine = copy(job)
            mine.parked, mine.moves = False, []
            trial._wait(mine)
        return trial

    def set_urgency(self, job_id: str, level: int | None, by: UrgencySource, now: float) -> bool:
        """Set the urgency of a job; False if it is gone, or a predictor would overrule another source."""
        job = self._waiting.get(job_id) or self.running.get(job_id)
        if job is None or (by is UrgencySource.PREDICTOR and job.urgency_by != by):
            return False
        is_running = job_id in self.running
        if is_running:
            self.claims.charged(job, now, -1.0)
        job.urgency, job.urgency_by = level, by
        job.moves.append(Move(now, MoveKind.URGENCY, f"{'none' if level is None else level} by {by}"))
        if is_running:
            self.claims.charged(job, now)
        else:
            self._place(job)
        return True

    # -- moving jobs -----------------------------------------------------------------------------

    def _wait(self, job: Job) -> None:
        self._waiting[job.id] = job
        self._count_waiting(job, 1)
        self._place(job)

    def _count(self, job: Job, more: int, now: float) -> None:
        """Count a waiting or running job, and what it costs, for its client; with -1, take that back."""
        if job.id in self.running:
            self.claims.charged(job, now, more)
            self.accounts.charged(job, now, more)
            self._count_running(job.client, more)
        else:
            self._count_waiting(job, more)

    def _count_waiting(self, job: Job, more: int) -> None:
        client = job.client
        self.interactive += more * (not job.background_levels)
        self._by_client[client] += more
        if not self._by_client[client]:
            del self._by_client[client]
            self._turn_s.pop(client, None)  # its later jobs start with a full tau

    def _count_running(self, client: str, more: int) -> None:
        running = self._clients_running
        running[client] = running.get(client, 0) + more
        if not running[client]:
            del running[client]

    def _place(self, job: Job) -> None:
        """Give a waiting job the key and the turn that it has by now."""
        if not job.promoted:
            self._set_keys(job, job)
        self._unpark(job)
        job.parked = self._must_park(job)
        self._parked += job.parked
        if job.ready and self._is_in_order(job):
            usual_s = self.sessions.usual_s
            usual = copy(job)
            usual.cost_s = usual.cost_high_s = usual_s
            self._set_keys(job, usual)

    def _set_keys(self, job: Job, like: Job) -> None:
        """Give a job the place of one like another."""
        job.key, job.share_key = self.policy.key(like), self.policy.seconds(like)

    def _is_in_order(self, job: Job) -> bool:
        """Return whether a waiting job goes by its arrival among the turns of sessions."""
        policy = self.policy
        if job.promoted or job.cuts or not (policy.guarded and policy.in_seconds):
            return False
        return self.sessions.in_order(job, self._now, self._parked)

    def _unpark(self, job: Job) -> None:
        self._parked -= job.parked
        job.parked = False

    def _must_park(self, job: Job) -> bool:
        """Return whether a waiting job's session must wait for its turn; if not, it has one from now on."""
        policy = self.policy
        if job.promoted or job.cuts or not policy.guarded:
            return False
        if policy.by_level and level_of(job) <= 1:
            return False
        if not self.sessions.may_run(job, self._now, self._parked):
            return True
        if not job.held:
            self.sessions.begin_turn(job, self._now)
        return False

    def _give_turns(self, now: float) -> None:
        """Give parked sessions their turns: first those that may run by now, fairly between clients and the
        oldest family of a client first, then the one that has been parked for too long.
        """
        parked = [job for job in self._waiting.values() if job.parked and not job.held]
        used_s = {e.client: self.accounts.used_s(e.client, now) / self.weight_of(e.client) for e in parked}
        parked.sort(key=lambda e: (used_s[e.client], self.sessions.family(e), e.seq))
        for job in parked:
            self._place(job)
        still = [e for e in parked if e.parked and (of := self.sessions.of(e)) and of.agent]
        longest = min(still, key=lambda job: job.arrival_s, default=None)
        if longest is None:
            return
        tau_s = self.tau_of(longest.client)
        if self.sessions.overdue(longest, now, tau_s, (job for job in still)):
            self.sessions.take_turn(longest, now)
            self._place(longest)

    def _reprice(self, job: Job, server_id: str, now: float) -> None:
        """Compute again what the waiting jobs cost that share the beginning of a prompt that is read now."""
        root = job.prefix.hashes[:1]
        sharing = (e for e in self._waiting.values() if e.prefix.hashes[:1] == root) if root else ()
        for job in list(islice(sharing, MAX_REPRICED)):
            less_s = self.fleet.saves_s(server_id, job)
            if job.cuts or less_s <= REPRICE_SHARE * job.cost_s:
                continue
            job.saves(less_s)
            self._place(job)

    def _let_forward(self, now: float) -> None:
        """Promote the oldest background job past tau, if none has ended in FORWARD_AFTER starts. Where none
        but background jobs wait, they are in the usual order.
        """
        if self._since_forward < FORWARD_AFTER or self.interactive in (0, len(self._waiting)):
            return
        back = (each for each in self._waiting.values() if each.background_levels)
        job = min(back, key=lambda each: (each.arrival_s, each.seq))
        tau_s = self.tau_of(job.client)
        if now - job.arrival_s <= (MAX_BACK_S if tau_s is None else min(tau_s, MAX_BACK_S)):
            return
        self._since_forward = 0
        self._set_background(job, 0)
        self.interactive += 1
        job.moves.append(Move(now, MoveKind.CAME_FORWARD))
        self._place(job)

    def _set_background(self, job: Job, levels: int) -> None:
        """Set the background levels of a job, before it is placed."""
        job.background_levels = levels
        if not job.promoted and not job.by_operator:
            job.rank = float(job.own_rank)

    def _place_all(self) -> None:
        for job in self._waiting.values():
            self._place(job)

    def _leave(self, job: Job) -> None:
        del self._waiting[job.id]
        self._unpark(job)
        self._count_waiting(job, -1)

    def _stop(self, job_id: str, now: float, *, served: bool) -> Job:
        job = self.running.pop(job_id)
        self.fleet.ended(job, served=served)
        job.served_s += now - job.started_s
        self.claims.stopped(job, now)
        self.accounts.stopped(job, now)
        self._count_running(job.client, -1)
        return job


def _free(affinity: str) -> float:
    return 0.0


def _share_key(job: Job, excess_s: Excess) -> float:
    """Return what orders the first jobs of several clients."""
    return job.key if job.promoted else job.share_key + excess_s.get((job.client, job.interactive), 0.0)


def _in_turns(ordered: Iterable[Job], excess_s: Excess, weight_of: Callable[[str], float]) -> Iterator[Job]:
    """Merge the orders of several clients: each start adds to the service of its client."""
    had_s, queues = dict(excess_s), dict[tuple[str, bool], deque[Job]]()
    for job in ordered:
        queues.setdefault((job.client, job.interactive), deque()).append(job)

    def head(of: tuple[str, bool]) -> tuple[bool, bool, float, float, int, tuple[str, bool]]:
        job = queues[of][0]
        return job.held, job.parked, job.rank, _share_key(job, had_s), job.seq, of

    heads = [head(of) for of in queues]
    heapify(heads)
    while heads:
        of = heads[0][-1]
        job = queues[of].popleft()
        yield job
        had_s[of] = had_s.get(of, 0.0) + job.cost_s / weight_of(job.client)
        if queues[of]:
            heapreplace(heads, head(of))
        else:
            heappop(heads)
