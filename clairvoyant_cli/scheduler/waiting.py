"""The jobs that wait: where each stands, and whether its session lets it start.

A job has a key from the policy, fixed when it joins or changes; the lowest starts first. Two things change
its place. A job of a session that does not have its turn is parked: it does not start (see `sessions`).
Promoted jobs, the most urgent ones, and policies without a guard are exempt. And where the cache is known to
hold all sessions that have a turn, no order saves a reread: their jobs get the key of an average turn, and
so go by arrival. Example: two agents whose prompts both stay in the cache. One asks 3 s of work and one 9 s;
shortest first would let the first ask ten times while the second waits.

A background job waits behind all others. One that is past tau comes forward: it gets the rank of an
interactive job once none in the background has ended in the last `FORWARD_AFTER` starts.
"""

from collections.abc import Iterable
from copy import copy
from itertools import count, islice
from math import inf
from operator import attrgetter

from clairvoyant_cli.scheduler.fairness import Clients, Excess
from clairvoyant_cli.scheduler.job import FIRST, Job, Move, MoveKind, QueueFullError, Run
from clairvoyant_cli.scheduler.placement import Fleet
from clairvoyant_cli.scheduler.policy import DEFAULT_TAU_S, Policy
from clairvoyant_cli.scheduler.sessions import Sessions
from clairvoyant_cli.scheduler.urgency import level_of

MAX_BACK_S = DEFAULT_TAU_S  # a background job may come forward after tau, and after this where tau is longer
MAX_REPRICED = 8  # at most this many waiting jobs are priced again when a prompt is read
REPRICE_SHARE = 0.05  # a change of less than this share of a job's cost does not move it
FORWARD_AFTER = 3  # a background job past tau comes forward after this many starts since one has ended


class WaitingJobs:
    """The waiting jobs of a scheduler, in the order in which they joined."""

    def __init__(self, clients: Clients, sessions: Sessions, policy: Policy) -> None:
        self.policy = policy
        self.jobs: dict[str, Job] = {}
        self.interactive = 0  # jobs that are not in the background
        self.parked = 0  # jobs whose session waits for its turn
        self.starts_since_background = FORWARD_AFTER  # starts since a background job has ended
        self._clients, self._sessions = clients, sessions
        self._promotions = count(1)

    def add(self, job: Job, now: float) -> None:
        self.jobs[job.id] = job
        self.count(job, 1)
        self.place(job, now)

    def remove(self, job: Job) -> None:
        del self.jobs[job.id]
        self.parked -= job.parked
        job.parked = False
        self.count(job, -1)

    def count(self, job: Job, more: int) -> None:
        self.interactive += more * (not job.background_levels)
        clients, client = self._clients, job.client
        clients.waiting[client] += more
        if not clients.waiting[client]:
            del clients.waiting[client]
            clients.turn_s.pop(client, None)  # its later jobs start with a full tau

    def displaced_by(self, client: str) -> Job:
        """Return the waiting job to drop for a new one of a client; QueueFullError if that is the new one."""
        waiting = self._clients.waiting
        most = max(waiting.values(), default=0)
        if most > waiting[client] + 1:
            # A partial answer is never dropped, nor what the operator has promoted or holds.
            crowd = (
                job
                for job in self.jobs.values()
                if waiting[job.client] == most and not (job.preemptions or job.promoted or job.held)
            )
            newest = max(crowd, key=lambda job: (job.arrival_s, job.seq), default=None)
            if newest is not None:
                return newest
        raise QueueFullError

    def excess_s(self, now: float) -> Excess:
        """Return how much more service each client had than the one that had least, in seconds per weight.

        Nothing where there is one client, or the policy does not share.
        """
        clients = self._clients
        if not self.policy.by_share or len({*clients.waiting, *clients.running}) < 2:
            return {}
        return clients.excess_s(now, (True, False) if self.interactive < len(self.jobs) else (True,))

    def in_order(self, now: float, joins: Iterable[Job] = ()) -> list[Job]:
        """Return the jobs in the order of their starts, were none to age, as if `joins` had joined; held ones
        last. Where clients share, each start counts for its client.
        """
        everything = [*self.jobs.values(), *joins]
        ordered = sorted(everything, key=attrgetter("held", "parked", "rank", "key", "seq"))
        excess_s = self.excess_s(now)
        return list(self._clients.in_turns(ordered, excess_s)) if excess_s else ordered

    def pinned_s(self) -> dict[str, float]:
        """Return the predicted seconds of work waiting for each server; under "", for any server."""
        found = dict[str, float]()
        for job in self.jobs.values():
            if job.ready:
                only = job.pinned or (next(iter(job.able)) if len(job.able) == 1 else "")
                found[only] = found.get(only, 0.0) + job.cost_s
        return found

    # -- places ---------------------------------------------------------------------------------------

    def place(self, job: Job, now: float) -> None:
        """Give a waiting job the key and the turn that it has by now."""
        policy = self.policy
        if not job.promoted:
            job.key, job.share_key = policy.key(job), policy.seconds(job)
        self.parked -= job.parked
        job.parked = False
        if self.must_park(job, now):
            job.parked = True
            self.parked += 1
        elif len(self._sessions.active) > 1 and not job.held and self.goes_by_arrival(job, now):
            usual = copy(job)
            usual.cost_s = self._sessions.usual_s
            job.key, job.share_key = policy.key(usual), policy.seconds(usual)

    def place_all(self, now: float) -> None:
        for job in self.jobs.values():
            self.place(job, now)

    def place_turns(self, now: float) -> None:
        """Give the jobs that go by arrival their keys again: what a turn usually costs has changed."""
        for job in self.jobs.values():
            if job.ready and self.goes_by_arrival(job, now):
                self.place(job, now)

    def promote(self, job: Job) -> None:
        """Put a job before all that are not promoted, behind those that are."""
        job.held, job.rank, job.key = False, FIRST, float(next(self._promotions))

    def goes_by_arrival(self, job: Job, now: float) -> bool:
        """Return whether a waiting job goes by its arrival among the turns of sessions."""
        policy = self.policy
        if len(self._sessions.active) < 2 or not job.session or job.promoted or job.preemptions:
            return False
        if policy.guard is None or not policy.in_seconds:
            return False
        return self._sessions.in_order(job, now, self.parked)

    def must_park(self, job: Job, now: float) -> bool:
        """Return whether a waiting job's session must wait for its turn; if not, it has one from now on."""
        policy = self.policy
        if (
            job.promoted
            or job.preemptions
            or policy.guard is None
            or (policy.by_level and level_of(job) <= 1)
        ):
            return False
        return not self._sessions.may_run(job, now, self.parked)

    def give_turns(self, now: float) -> None:
        """Give parked sessions their turns: first those that may run by now, fairly between clients and the
        oldest family of a client first, then the one that has been parked for too long.
        """
        clients, sessions = self._clients, self._sessions
        parked = [job for job in self.jobs.values() if job.parked and not job.held]
        used_s = {job.client: clients.used_s(job.client, now) for job in parked}
        parked.sort(key=lambda job: (used_s[job.client], sessions.family(job), job.seq))
        for job in parked:
            self.place(job, now)
        still = [
            job
            for job in parked
            if job.parked and (session := sessions.known.get(job.session)) and session.agent
        ]
        longest = min(still, key=lambda job: job.arrival_s, default=None)
        if longest is not None:
            tau_s = clients.tau_of(longest.client, longest.model)
            if sessions.overdue(longest, now, tau_s, still):
                sessions.take_turn(longest, now)
                self.place(longest, now)

    def reprice(self, read: Run, fleet: Fleet, now: float) -> None:
        """Compute again what the jobs cost that share the beginning of a prompt that a server reads now."""
        root = read.job.prefix.hashes[:1]
        sharing = (job for job in self.jobs.values() if job.prefix.hashes[:1] == root)
        for job in list(islice(sharing, MAX_REPRICED)):
            less_s = fleet.saves_s(read.server_id, job)
            if not job.preemptions and less_s > REPRICE_SHARE * job.cost_s:
                job.saves(less_s)
                self.place(job, now)

    # -- the background -------------------------------------------------------------------------------

    def let_forward(self, now: float) -> None:
        """Let the oldest background job past tau come forward, if none has ended in FORWARD_AFTER starts.
        For queues with both kinds of jobs: background jobs alone are in the usual order. Those of a client
        without tau never do.
        """
        if self.starts_since_background < FORWARD_AFTER:
            return
        tau_of = self._clients.tau_of
        back = [
            job
            for job in self.jobs.values()
            if job.background_levels and tau_of(job.client, job.model) != inf
        ]
        job = min(back, key=lambda job: (job.arrival_s, job.seq), default=None)
        if job is None:
            return
        if now - job.arrival_s <= min(tau_of(job.client, job.model) or MAX_BACK_S, MAX_BACK_S):
            return
        self.starts_since_background = 0
        set_background(job, 0)
        self.interactive += 1
        job.moves.append(Move(now, MoveKind.CAME_FORWARD))
        self.place(job, now)


def set_background(job: Job, levels: int) -> None:
    """Set the background levels of a job, before it is placed."""
    job.background_levels = levels
    if not job.promoted and not job.by_operator:
        job.rank = float(job.own_rank)
