"""The queue and its decisions.

Rule 1: no I/O and no clock. `now` is an argument, in seconds; a decision is a return value.
Rule 2: a job is in exactly one state: waiting, held, running or gone.
Rule 3: `next` leaves no slot idle while an unheld job that may use it waits. Exceptions: the queue is paused;
each of the few waiting jobs is predicted to end sooner on another worker (`placement`); its earliest start
has not come; or the first job does not fit into the KV cache that the slots share. A job past tau or promoted
never waits for a better worker. A job may not use a worker that it cannot run on (`Fleet`), nor any slot
while its client is at its limit of running jobs.
Rule 4: waiting jobs are in one list, which a decision scans once for each distinct view of workers: those
with other models loaded, or to which other jobs are pinned. One view of 1,024 jobs takes some 0.4 ms.
Rule 5: when the queue is full, the newest waiting job of the client that has most of them is dropped, the
arriving one counted; if others have as many as its client, that is the arriving one.
Rule 6: a job's age counts from its arrival; a preemption does not restart tau.
Rule 7: a job of a session that does not have its turn is parked: it does not start (see `sessions`).
Exceptions: promoted jobs, the most urgent ones, and policies without a guard.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cache, partial
from itertools import count, islice
from math import inf
from operator import attrgetter
from typing import NamedTuple, Unpack

from clairvoyant_cli.scheduler.arrival_order import ArrivalOrder
from clairvoyant_cli.scheduler.fairness import EVERYBODY, Accounts, Tenant, rules_for
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
from clairvoyant_cli.scheduler.newcomers import Newcomers
from clairvoyant_cli.scheduler.placement import MAX_PASSED, Fleet, Placement, Station, WorkerSpeed
from clairvoyant_cli.scheduler.policy import Policy, tuned
from clairvoyant_cli.scheduler.preemption import may_be_cut, spent, worthwhile
from clairvoyant_cli.scheduler.queued_job import FIRST, Prefill, QueuedJob, Thought
from clairvoyant_cli.scheduler.residency import Residency
from clairvoyant_cli.scheduler.sessions import Sessions
from clairvoyant_cli.scheduler.tail_rate import TailRate
from clairvoyant_cli.scheduler.urgency import Claims, Said, level_beyond_share, level_of, outranks

MAX_BACK_S = 600.0  # the longest that a background job waits behind others, where tau is longer or not set
MAX_REPRICED = 8  # at most this many waiting jobs are priced again when a prompt is read
REPRICE_SHARE = 0.05  # a change of less than this share of a job's cost does not move it
FORWARD_EVERY = 4  # at most one start in this many goes to a background job that has waited for tau

_PLACE = attrgetter("rank", "key", "seq")


class Choice(NamedTuple):
    """A job that a worker would start, and its order among the choices of others: rank, key, sequence."""

    order: tuple[float, float, int]
    entry: QueuedJob
    reason: Reason


class Scheduler:
    """Jobs in, dispatch decisions out, for K slots on each of several workers.

    What is told of a running job, or of one that waits, raises KeyError if it is not running, or not waiting.
    """

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

        `workers` maps a backend's name to its slots; `tau_s` is everybody's starvation timeout, None for no
        guard; `tenants` holds the rules of the clients that have any, `everybody` those of each other client
        that has a name; `load_s` maps an affinity to the seconds it takes to load.
        """
        self.policy = policy
        self.tau_s = tau_s
        self.capacity = capacity
        self.tenants = dict(tenants or {})
        self.everybody = everybody
        self.paused = False
        self.books = ArrivalOrder()
        self.tau_firings = 0
        self.since_promotion = 1 << 30  # starts by policy since the last one by tau
        self.deferring = False  # the last `next` left a slot free: the waiting jobs wait for a better one
        self.fleet = Fleet(workers, load_s or {})
        self.claims = Claims()
        self.accounts = Accounts()
        self.newcomers = Newcomers()
        self.tail = TailRate()
        self.sessions = Sessions(self.fleet)
        self.running: dict[str, QueuedJob] = {}  # in the order of their starts
        self.waited_for = 0  # waiting jobs that are not in the background
        self._now = 0.0  # the time of the last operation
        self._seq = count()
        self._promotions = count(1)
        self._waiting: dict[str, QueuedJob] = {}  # in the order in which they joined
        self._by_client = Counter[str]()  # waiting jobs of each client
        self._clients_running: dict[str, int] = {}
        self._turn_s: dict[str, float] = {}  # when a client that still waits had its last start by tau
        self._since_forward = FORWARD_EVERY
        self._parked = 0

    def __repr__(self) -> str:
        counts = f"{len(self._waiting)} waiting, {len(self.running)} running"
        return f"<Scheduler {self.policy.name}: {counts}{' (paused)' if self.paused else ''}>"

    def __len__(self) -> int:
        return len(self._waiting)

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
        self.books.arrived(job, at_grant=rules.max_running is not None)
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
        self._now = now
        self.deferring = False
        self.books.look(self.slots, now, paused=self.paused)
        if self.paused or not self._waiting:
            return None
        self._let_forward(now)
        if self._parked:
            self._give_turns(now)
        choice = self.choose(now)
        while choice is not None and choice[0].job.stands_back and self._must_park(choice[0]):
            self._place(choice[0])  # it came before the session that it would evict
            choice = self.choose(now)
        if choice is None:
            self.deferring = self.deferring or self._parked > 0
            return None
        entry, worker, reason = choice
        if reason is Reason.TAU:
            self._turn_s[entry.job.client] = now
        self._leave(entry)
        self._since_forward += 1
        job = entry.job
        entry.reason = reason
        entry.slice_start_tokens = entry.done_tokens
        entry.moves.append(Move(now, MoveKind.DISPATCHED, reason))
        self.running[job.id] = entry
        self.fleet.started(entry, worker, now)
        self.books.granted(job.id, self.fleet.stations[worker], now, entry.expected.tokens)
        if self.sessions.started(job, worker, now):  # what a turn costs has changed
            for each in self._waiting.values():
                if each.ready and self._is_in_order(each):
                    self._place(each)
        self._clients_running[job.client] = self._clients_running.get(job.client, 0) + 1
        self.claims.started(job, now)
        self._reprice(job, worker, now)
        if reason is Reason.TAU:
            self.tau_firings += 1
            self.since_promotion = 0
        else:
            self.since_promotion += 1
        return Dispatch(job, worker, reason, now - entry.queued_s)

    def finish(self, job_id: str, now: float, *, served: bool = True) -> None:
        """Free the slot of a running job.

        `served` means that the worker ran it, so that its model is loaded there.
        """
        entry = self._stop(job_id, now, served=served)
        self.books.freed(job_id, now, over=True, served=served)
        self.sessions.left_slot(entry.job, now, waits=False)
        self.accounts.settle(entry, now)
        if served and self.tail.served(entry.served_s, max(1, sum(self.slots.values())), now):
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
        entry = self.running[job_id]
        cache = self.fleet.stations[entry.worker].cache
        cache.answered(job_id, prompt_tokens, tokens)
        self.books.answered(job_id, prompt_tokens, tokens)
        session, news = self.sessions.of(entry.job), ""
        if cached_tokens is not None:
            cache.told(entry.expected, cached_tokens)
            news = self.sessions.read_again(entry.job, prompt_tokens, cached_tokens, now)
        else:
            cached_tokens = min(entry.expected.tokens, prompt_tokens)
        self.sessions.answered(entry.job, prompt_tokens, cached_tokens, tokens, calls_tool=calls_tool)
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

        `prefill` is given if it may be cut because its prompt is still being read.
        """
        entry = self.running[job_id]
        entry.done_tokens, entry.resume_s, entry.evicts_s = tokens_done, resume_s, evicts_s
        entry.read_s, entry.stops_s = (0.0, None) if prefill is None else prefill
        if tokens_done > entry.slice_start_tokens or prefill is not None:
            entry.owed_s = 0.0

    def thought(
        self, job_id: str, tokens: float, answer_tokens: float, answer_q90: float, now: float
    ) -> None:
        """Record that a job has stopped thinking after `tokens`, and how long its answer should be."""
        entry = self.running[job_id]
        entry.thought = Thought(tokens, answer_tokens, answer_q90)
        self.fleet.thought(entry, entry.thought, now)

    def began(self, job_id: str, now: float) -> None:
        """Record that a running job begins after a wait inside its worker."""
        self.running[job_id].began_s = now

    def owe(self, job_id: str, owed_s: float, now: float) -> None:
        """Set the cost of resuming a waiting job, in seconds."""
        entry = self._waiting[job_id]
        entry.owed_s = owed_s
        self._now = now
        self._place(entry)

    def spare(self, job_id: str) -> None:
        """Exempt a running job from preemption until it is requeued."""
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
        """Free the slot of a running job and queue it again.

        With `worker` it was preempted there, and waits for that worker if it has begun to answer. Without, it
        was not taken up or broke off; `able` names the workers that can run it from now on, None leaves them
        as they were. `served` as in `finish`.
        """
        entry = self._stop(job_id, now, served=served)
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

    def reestimate(self, job_id: str, now: float, **estimates: Unpack[Estimates]) -> bool:
        """Replace the predictions of a waiting job, its place and its client's charge; see `Job`.

        False if it is not waiting.
        """
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._now = now
        self._exchange(entry, self.fleet.priced(replace(entry.job, saved_s=0.0, **estimates)), now)
        entry.moves.append(Move(now, MoveKind.REESTIMATED))
        return True

    def cancel(self, job_id: str, now: float) -> bool:
        """Remove a waiting or held job; False if it is not in the queue."""
        entry = self._waiting.get(job_id)
        if entry is None:
            return False
        self._leave(entry)
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
        if rank == FIRST:
            entry.held, entry.key = False, float(next(self._promotions))
        else:
            entry.by_operator = True
        entry.rank = rank
        entry.moves.append(move)
        self._place(entry)
        return True

    def hold(self, job_id: str, now: float) -> bool:
        """Keep a waiting job from running until it is released; False if it is not waiting."""
        entry = self._waiting.get(job_id)
        if entry is None or entry.held:
            return False
        entry.held = True
        self.books.held(job_id, now)
        entry.moves.append(Move(now, MoveKind.HELD))
        return True

    def release(self, job_id: str, now: float) -> bool:
        """Return a held job to its place in the queue; False if it is not held."""
        entry = self._waiting.get(job_id)
        if entry is None or not entry.held:
            return False
        entry.held = False
        self.books.released(job_id, now)
        entry.moves.append(Move(now, MoveKind.RELEASED))
        self._place(entry)
        return True

    def preemptions(self, now: float) -> list[Preempt]:
        """Return the preemptions worth making now, the best first.

        For backends that can stop a job and resume it later. Call it once `next` starts nothing more; stop
        the jobs, `requeue` them, call `next` for the jobs that take their slots, and call it again.
        `may_be_cut` says which jobs qualify, except on a worker that is down or runs more than its slots, or
        while a prompt is read where a model is loaded before or after. An interactive job past tau is not cut
        for a job that the guard would start after it.
        """
        policy = self.policy
        if self.paused or not self._waiting or not (policy.interrupts or policy.stops_reading):
            return []
        victims = dict[Station, list[QueuedJob]]()
        for station in self.fleet.stations.values():
            running = [each for each in station.running.values() if may_be_cut(each, policy)]
            if running and len(station.running) == station.slots:
                victims[station] = running
        if policy.quantum_tokens is not None:
            preempts = list[Preempt]()
            for station, running in victims.items():
                room = min(len(self._open_to(station, now)), len(self._waiting) - len(preempts))
                preempts += spent(running, policy, policy.quantum_tokens)[:room]
            return preempts
        able = [
            (choice.entry, [each for each in victims[station] if self._may_pass(choice.entry, each, now)])
            for station, choice in self._choices(victims, now)
            if now >= choice.entry.job.not_before_s
        ]
        return worthwhile(able, policy, max(1, self.waited_for) / sum(self.slots.values())) if able else []

    def _may_pass(self, waiting: QueuedJob, running: QueuedJob, now: float) -> bool:
        """Return whether the guard would start `waiting` before `running`, were both waiting.

        Under `by_share` policies a flooding client's running jobs can always be passed.
        """
        loads = self.residency.swaps(running.worker, running.job.id, waiting.job.affinity)
        if running.stops_s is not None and (loads or self._is_in_order(waiting)):
            return False
        tau_s = self.tau_of(running.job.client)
        if tau_s is None or self.policy.by_share or waiting.promoted or not running.waited_for:
            return True
        return now - running.job.arrival_s <= tau_s or not self._guard_allows(running, waiting, now)

    # -- views --------------------------------------------------------------------------------------

    @property
    def clients(self) -> dict[str, tuple[int, int]]:
        """The numbers of waiting and running jobs of each client that has any."""
        waiting, running = self._by_client, self._clients_running
        names = waiting.keys() | running.keys()
        return {name: (waiting[name], running.get(name, 0)) for name in names}

    @property
    def slots(self) -> dict[str, int]:
        return {name: station.slots for name, station in self.fleet.stations.items()}

    @property
    def residency(self) -> Residency:
        return self.fleet.residency

    def forecast(self, job: Job, now: float) -> tuple[float, float]:
        """Return the predicted seconds until a job would start, waiting or submitted now, and of its prefill.

        Jobs before it take the slots in order as they fall free; waiting for a better worker is ignored.
        O(n log n) in the waiting jobs.
        """
        self._now = now
        entry = QueuedJob(job, next(self._seq), job.rank, job.arrival_s)
        entry.key = self.policy.key(entry)
        others = (e for e in self._waiting.values() if not e.held and e.job.id != job.id)
        before = sorted((e for e in others if _PLACE(e) < _PLACE(entry)), key=_PLACE)
        return self.fleet.forecast(entry, before, now)

    def waiting(self) -> list[QueuedJob]:
        """Return the waiting jobs in the order of their starts, were none to age; held ones last."""
        return sorted(self._waiting.values(), key=attrgetter("held", "parked", "rank", "key", "seq"))

    def rules_of(self, client: str) -> Tenant:
        return rules_for(client, self.tenants, self.everybody) if client else EVERYBODY

    def tau_of(self, client: str) -> float | None:
        own = self.rules_of(client).tau_s if client else None
        return self.tau_s if own is None else own

    def is_overdue(self, entry: QueuedJob) -> bool:
        """Return whether a waiting job is past its tau; background jobs never are."""
        if not self.policy.guarded or entry.job.stands_back:
            return False
        tau_s = self.tau_of(entry.job.client)
        return tau_s is not None and self._now - entry.job.arrival_s > tau_s

    def is_limited(self, client: str) -> bool:
        """Return whether a client has all the slots that it may have."""
        limit = self.rules_of(client).max_running
        return limit is not None and self._clients_running.get(client, 0) >= limit

    def takers(self, entry: QueuedJob) -> list[Station]:
        """Return the available workers that may serve a waiting job; none if it is held or parked."""
        stations = self.fleet.stations.values() if entry.ready else ()
        return [each for each in stations if each.slots and self.fleet.may_take(each.name, entry)]

    # -- choosing -----------------------------------------------------------------------------------

    def choose(self, now: float) -> tuple[QueuedJob, str, Reason] | None:
        """Return the job to start now, its worker and the reason; None if nothing can start.

        Takes the first job in order and finds the worker where it is predicted to end first; a job that
        should wait for a busy worker is passed over. A worker whose KV cache has no room for the first job
        starts none after it, so that each has its turn.
        """
        free = self.fleet.free()
        if not free:
            return None
        passed, ahead_s = dict[str, tuple[QueuedJob, Placement]](), self._pinned_s()
        while (first := self._first(free, now, passed)) is not None:
            station, (_, entry, reason) = first
            able = [
                each
                for each in free
                if each is station
                or (self.fleet.may_take(each.name, entry) and self.fleet.open_to(entry, each, now))
            ]
            roomy = [each for each in able if each.has_room(entry.job)]
            if not roomy:
                free = [each for each in free if each not in able]
                continue
            verdict = self.fleet.best(entry, now, roomy, ahead_s)
            there = verdict.waits_for
            if reason is Reason.POLICY and now < entry.job.not_before_s:
                passed[entry.job.id] = entry, verdict._replace(gain_s=inf)
            elif there is None or reason is not Reason.POLICY or self.is_overdue(entry):
                return entry, verdict.station.name, reason
            else:
                passed[entry.job.id] = entry, verdict
                ahead_s[there.name] = ahead_s.get(there.name, 0.0) + verdict.takes_s
            if len(passed) == MAX_PASSED < len(self._waiting):
                entry, verdict = min(passed.values(), key=lambda each: each[1].gain_s)
                return entry, verdict.station.name, Reason.POLICY
        self.deferring = bool(passed)
        return None

    def next_up(self, now: float) -> Choice | None:
        """Return what would start now if each worker had a free slot, None if nothing may.

        Claims of urgency are not decided by this.
        """
        up = [each for each in self.fleet.stations.values() if each.slots]
        first = self._first(up, now, for_good=False)
        return None if first is None else first[1]

    def _first(
        self, stations: Iterable[Station], now: float, passed: Container[str] = (), *, for_good: bool = True
    ) -> tuple[Station, Choice] | None:
        """Return the first choice over all stations, without the jobs passed over, and its station."""
        choices = self._choices(stations, now, passed, for_good=for_good)
        return min(choices, key=lambda each: each[1].order, default=None)

    def _choices(
        self, stations: Iterable[Station], now: float, passed: Container[str] = (), *, for_good: bool = True
    ) -> Iterator[tuple[Station, Choice]]:
        """Yield the stations that would start something now, with what a slot of theirs would start.

        Unless `for_good`, claims of urgency are accepted without a check.
        """
        apart = any(e.job.worker or e.routed or e.job.able for e in self._waiting.values())
        found = dict[tuple[object, ...], Choice | None]()
        for station in stations:
            alone = station.name if apart or station.apart else ""
            view = (alone, *self.residency.view(station.name, now))
            if view not in found:  # equal workers make the same choice
                found[view] = self._choice(station, now, passed, for_good=for_good)
            if (choice := found[view]) is not None:
                yield station, choice

    def _choice(
        self, station: Station, now: float, passed: Container[str], *, for_good: bool
    ) -> Choice | None:
        """Return what a slot would start now: promoted, by tau or by policy."""
        order = self._order_on(station.name)
        while jobs := self._open_to(station, now):
            others = [each for each in jobs if each.job.id not in passed] if passed else jobs
            entry = min(others, key=order, default=None)
            if entry is None:
                return None
            if not for_good or self._may_claim(entry, now):
                break
        else:
            return None
        if entry.promoted:
            return Choice(order(entry), entry, Reason.PROMOTED)
        overdue = self._longest_overdue(jobs, now)
        if overdue is not None and overdue is not entry and self._guard_allows(overdue, entry, now):
            price_s = self.residency.price_s(station.name, overdue.job.affinity)
            return Choice((FIRST, price_s, overdue.seq), overdue, Reason.TAU)
        return Choice(order(entry), entry, Reason.POLICY)

    def _order_on(self, worker: str) -> Callable[[QueuedJob], tuple[float, float, int]]:
        """Return what orders waiting jobs on a worker, the first lowest; loading a model counts."""
        if not self.policy.in_seconds or not self.residency.prices:
            return _PLACE
        price_s = cache(partial(self.residency.price_s, worker))
        return lambda entry: (entry.rank, entry.key + price_s(entry.job.affinity), entry.seq)

    def _open_to(self, station: Station, now: float) -> list[QueuedJob]:
        """Return the waiting jobs that a slot may serve.

        While the loaded model must stay, only jobs that need no other; promoted jobs are exempt.
        """
        worker, shares, may_take = station.name, not station.apart, self.fleet.may_take
        limited = {client for client in self._clients_running if self.is_limited(client)}
        jobs = [
            e
            for e in self._waiting.values()
            if not e.held
            and not e.parked
            and e.job.client not in limited
            and ((shares and not (e.job.worker or e.routed or e.job.able)) or may_take(worker, e))
        ]
        if self.residency.must_stay(worker, now):
            price_s = cache(partial(self.residency.price_s, worker))
            return [e for e in jobs if e.promoted or not price_s(e.job.affinity)] or jobs
        return jobs

    def _longest_overdue(self, jobs: Iterable[QueuedJob], now: float) -> QueuedJob | None:
        """Return the interactive job furthest past its tau, None if none is or the policy has no guard.

        Under `by_share` policies, a start by tau restarts its client's tau while several clients wait.
        """
        oldest = dict[str, QueuedJob]()  # of each client
        for entry in jobs if self.policy.guarded else ():
            job = entry.job
            if not job.stands_back:
                first = oldest.setdefault(job.client, entry)
                if (job.arrival_s, entry.seq) < (first.job.arrival_s, first.seq):
                    oldest[job.client] = entry
        turn_s = self._turn_s if self.policy.by_share and len(oldest) > 1 else {}
        late = (
            (now - max(entry.job.arrival_s, turn_s.get(client, -inf)) - tau_s, -entry.seq, entry)
            for client, entry in oldest.items()
            if (tau_s := self.tau_of(client)) is not None
        )
        late_s, _, longest = max(late, default=(0.0, 0, None))
        return longest if late_s > 0.0 else None

    def _guard_allows(self, overdue: QueuedJob, other: QueuedJob, now: float) -> bool:
        """Return whether the guard starts a job past tau before the job that the policy would start.

        The guard's ration does not apply between two jobs of one client if the other is first only by a claim
        of urgency: without keys, anyone may use that client's name.
        """
        policy, since = self.policy, self.since_promotion
        if policy.guard is None:
            return False
        client = other.job.client
        if policy.by_level and client == overdue.job.client != "" and outranks(other.job, overdue.job):
            since = policy.guard.every
        return policy.guard.allows(now - overdue.job.arrival_s, now - other.job.arrival_s, since)

    def _pinned_s(self) -> dict[str, float]:
        """Return the predicted seconds of work waiting for each worker; under "", for any worker."""
        pinned_s = dict[str, float]()
        for entry in self._waiting.values() if len(self.fleet.stations) > 1 else ():
            if entry.ready:
                pinned_s[entry.pinned_to] = pinned_s.get(entry.pinned_to, 0.0) + entry.job.cost_s
        return pinned_s

    def _may_claim(self, entry: QueuedJob, now: float) -> bool:
        """Return whether a job may start by the urgency that its client claims; if not, drop the claim."""
        if not self.policy.by_level or entry.promoted:
            return True
        client = entry.job.client
        weights = (self.rules_of(name).weight for name in {*self._by_client, client})
        share = self.rules_of(client).weight / sum(weights)
        if self.claims.within_share(entry.job, share, self.slots.values(), now):
            return True
        self.set_urgency(entry.job.id, level_beyond_share(entry.job), Said.SHARE, now)
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
        self._now = now
        here = [*self._waiting.values(), *self.running.values()]  # running jobs may be requeued
        weights = {entry.job.client: self.rules_of(entry.job.client).weight for entry in here}
        self.tenants = dict(tenants)
        self.everybody = everybody
        for entry in here:
            entry.usage_s *= weights[entry.job.client] / self.rules_of(entry.job.client).weight
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
                self._place(entry)

    def set_able(self, able: Callable[[Job], frozenset[str]], now: float) -> None:
        self._now = now
        for entry in (*self._waiting.values(), *self.running.values()):
            entry.job = entry.job.run_by(able(entry.job))
        self._place_all()

    def set_speed(self, worker: str, speed: WorkerSpeed) -> None:
        self.fleet.stations[worker].speed = speed

    def under(self, policy: Policy, now: float, every: int = 1) -> "Scheduler":
        """Return an independent copy under another policy, for simulation.

        It runs the same jobs; of the unheld waiting jobs it has one in `every`, in order of arrival.
        """
        policy = tuned(policy, self.tail.rate, self.tail.slots)
        trial = Scheduler(
            policy, workers={}, tau_s=self.tau_s, tenants=self.tenants, everybody=self.everybody
        )
        trial.fleet, trial._now, trial.since_promotion = self.fleet.copied(), now, self.since_promotion
        trial._clients_running, trial._since_forward = dict(self._clients_running), self._since_forward
        for job_id, entry in self.running.items():
            trial.running[job_id] = trial.fleet.stations[entry.worker].running[job_id] = copy(entry)
        unheld = (entry for entry in self._waiting.values() if not entry.held)
        for entry in islice(unheld, 0, None, every):
            mine = copy(entry)
            mine.parked, mine.routed, mine.moves = False, "", []
            trial._wait(mine)
        return trial

    def set_urgency(self, job_id: str, level: int | None, by: Said, now: float) -> bool:
        """Set the urgency of a job; False if it is gone, or a predictor would overrule another source."""
        entry = self._waiting.get(job_id) or self.running.get(job_id)
        if entry is None or (by is Said.PREDICTOR and entry.job.urgency_by != by):
            return False
        before, entry.job = entry.job, replace(entry.job, urgency=level, urgency_by=by)
        entry.moves.append(Move(now, MoveKind.URGENCY, f"{'none' if level is None else level} by {by}"))
        if job_id in self._waiting:
            self._place(entry)
        else:
            self.claims.exchanged(before, entry.job, entry.started_s, now)
        return True

    # -- moving entries -----------------------------------------------------------------------------

    def _wait(self, entry: QueuedJob) -> None:
        self._waiting[entry.job.id] = entry
        self.waited_for += not entry.job.stands_back
        self._by_client[entry.job.client] += 1
        self._place(entry)

    def _place(self, entry: QueuedJob, pinned_s: Mapping[str, float] | None = None) -> None:
        """Give a waiting job the key, the worker and the turn that it has by now."""
        if not entry.promoted:
            entry.key = self.policy.key(entry)
        self._route(entry, pinned_s)
        self._unpark(entry)
        entry.parked = self._must_park(entry)
        self._parked += entry.parked
        if entry.ready and self._is_in_order(entry):
            usual = replace(entry.job, cost_s=self.sessions.usual_s, cost_high_s=self.sessions.usual_s)
            entry.key = self.policy.key(replace(entry, job=usual))

    def _is_in_order(self, entry: QueuedJob) -> bool:
        """Return whether a waiting job goes by its arrival among the turns of sessions."""
        policy = self.policy
        if entry.promoted or entry.cuts or not (policy.guarded and policy.in_seconds):
            return False
        return self.sessions.in_order(entry.job, self._now, self._parked)

    def _unpark(self, entry: QueuedJob) -> None:
        self._parked -= entry.parked
        entry.parked = False

    def _must_park(self, entry: QueuedJob) -> bool:
        """Return whether a waiting job's session must wait for its turn; if not, it has one from now on."""
        job, policy = entry.job, self.policy
        if entry.promoted or entry.cuts or not policy.guarded:
            return False
        if policy.by_level and level_of(job) <= 1:
            return False
        if not self.sessions.may_run(job, self._now, self._parked):
            return True
        if not entry.held:
            self.sessions.begin_turn(job, self._now)
        return False

    def _give_turns(self, now: float) -> None:
        """Give parked sessions their turns: first those that may run by now, fairly between clients and the
        oldest family of a client first, then the one that has been parked for too long.
        """
        parked = [entry for entry in self._waiting.values() if entry.parked and not entry.held]
        parked.sort(key=lambda entry: entry.usage_s, reverse=True)
        least_s = {entry.job.client: entry.usage_s for entry in parked}
        parked.sort(key=lambda e: (least_s[e.job.client], self.sessions.family(e.job), e.usage_s, e.seq))
        for entry in parked:
            self._place(entry)
        still = [e for e in parked if e.parked and (of := self.sessions.of(e.job)) and of.agent]
        longest = min(still, key=lambda entry: entry.job.arrival_s, default=None)
        if longest is None:
            return
        tau_s = self.tau_of(longest.job.client)
        if self.sessions.overdue(longest.job, now, tau_s, (entry.job for entry in still)):
            self.sessions.take_turn(longest.job, now)
            self._place(longest)

    def _reprice(self, job: Job, worker: str, now: float) -> None:
        """Compute again what the waiting jobs cost that share the beginning of a prompt that is read now."""
        root = job.prefix.hashes[:1]
        sharing = (e for e in self._waiting.values() if e.job.prefix.hashes[:1] == root) if root else ()
        for entry in list(islice(sharing, MAX_REPRICED)):
            priced = self.fleet.priced_on(worker, entry.job)
            if entry.cuts or entry.job.cost_s - priced.cost_s <= REPRICE_SHARE * entry.job.cost_s:
                continue
            self._exchange(entry, priced, now)

    def _exchange(self, entry: QueuedJob, job: Job, now: float) -> None:
        """Replace a waiting job by one of other costs, its place and its client's charge."""
        self.accounts.give_back(entry, now)
        entry.job = job
        self.accounts.charge(entry, now)
        self._place(entry)

    def _let_forward(self, now: float) -> None:
        """Promote the oldest background job past tau, at most one in FORWARD_EVERY starts."""
        if self._since_forward < FORWARD_EVERY or self.waited_for == len(self._waiting):
            return
        back = (each for each in self._waiting.values() if each.job.stands_back)
        entry = min(back, key=lambda each: (each.job.arrival_s, each.seq))
        tau_s = self.tau_of(entry.job.client)
        if now - entry.job.arrival_s <= (MAX_BACK_S if tau_s is None else min(tau_s, MAX_BACK_S)):
            return
        self._since_forward = 0
        self._stand_back(entry, 0)
        self.waited_for += 1
        entry.moves.append(Move(now, MoveKind.CAME_FORWARD))
        self._place(entry)

    def _stand_back(self, entry: QueuedJob, levels: int) -> None:
        """Set the background levels of a job, before it is placed."""
        entry.job = replace(entry.job, stands_back=levels)
        if not entry.promoted and not entry.by_operator:
            entry.rank = entry.job.rank

    def _route(self, entry: QueuedJob, pinned_s: Mapping[str, float] | None) -> None:
        """Choose the worker that a job waits for, under a policy that routes; a valid choice stays."""
        among, routed = self.policy.candidates, entry.routed
        if among is None or entry.job.worker:
            entry.routed = ""
        elif not routed or not self.fleet.takes(routed, entry.job.able):
            entry.routed = ""
            pinned_s = self._pinned_s() if pinned_s is None else pinned_s
            entry.routed = self.fleet.route(entry, among, self._now, pinned_s)

    def _place_all(self) -> None:
        self._turn_s.clear()
        pinned_s = dict[str, float]()  # by those that are placed
        for entry in self._waiting.values():
            self._place(entry, pinned_s)
            if entry.ready:
                pinned_s[entry.pinned_to] = pinned_s.get(entry.pinned_to, 0.0) + entry.job.cost_s

    def _leave(self, entry: QueuedJob) -> None:
        client = entry.job.client
        del self._waiting[entry.job.id]
        self._unpark(entry)
        self.waited_for -= not entry.job.stands_back
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]
            self._turn_s.pop(client, None)  # its later jobs start with a full tau

    def _stop(self, job_id: str, now: float, *, served: bool) -> QueuedJob:
        entry = self.running.pop(job_id)
        self.fleet.ended(entry, served=served)
        entry.served_s += now - entry.started_s
        self.claims.stopped(entry.job, entry.started_s, now)
        running, client = self._clients_running, entry.job.client
        running[client] -= 1
        if not running[client]:
            del running[client]
        return entry
