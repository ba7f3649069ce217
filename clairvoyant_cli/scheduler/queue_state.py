"""The jobs in the queue: where each stands, and the views of them. `queue` decides what happens to them."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import count, islice
from operator import attrgetter

from clairvoyant_cli.scheduler.arrival_order import ArrivalOrder
from clairvoyant_cli.scheduler.fairness import EVERYBODY, Accounts, Tenant
from clairvoyant_cli.scheduler.job import Job, Move, MoveKind
from clairvoyant_cli.scheduler.newcomers import Newcomers
from clairvoyant_cli.scheduler.placement import Fleet
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queued_job import QueuedJob
from clairvoyant_cli.scheduler.residency import Residency
from clairvoyant_cli.scheduler.sessions import Sessions
from clairvoyant_cli.scheduler.tail_rate import TailRate
from clairvoyant_cli.scheduler.urgency import Claims, Said, level_beyond_share, level_of
from clairvoyant_cli.scheduler.waiting_line import WaitingLine

MAX_BACK_S = 600.0
"""The longest that a background job waits behind others, where tau is longer or not set."""

MAX_REPRICED = 8
"""At most this many waiting jobs are priced again when a prompt is read."""

REPRICE_SHARE = 0.05
"""A change of less than this share of a job's cost does not move it."""

FORWARD_EVERY = 4
"""At most one start in this many goes to a background job that has waited for tau."""


class QueueState:
    """The waiting and running jobs of a `Scheduler`, with everything that places them."""

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
        self.books: ArrivalOrder | None = None
        self.tau_firings = 0
        self.fleet = Fleet(workers, load_s or {})
        self.line = WaitingLine(policy, self.fleet, tau_s, tenants or {}, everybody, self._may_claim)
        self.claims = Claims()
        self.accounts = Accounts()
        self.newcomers = Newcomers()
        self.tail = TailRate()
        self.sessions = Sessions(self.fleet)
        self.running: dict[str, QueuedJob] = {}  # in the order of their starts
        self.waited_for = 0  # waiting jobs that are not in the background
        self._seq = count()
        self._promotions = count(1)
        self._waiting: dict[str, QueuedJob] = {}  # insertion order is arrival order
        self._by_client = Counter[str]()  # waiting jobs of each client
        self._back: deque[QueuedJob] = deque()  # background jobs, the oldest first
        self._since_forward = FORWARD_EVERY
        self._parked: dict[str, QueuedJob] = {}
        self._by_root: dict[int, dict[str, QueuedJob]] = {}  # waiting jobs by the first piece of their chain

    def __repr__(self) -> str:
        counts = f"{len(self._waiting)} waiting, {len(self.running)} running"
        return f"<Scheduler {self.policy.name}: {counts}{' (paused)' if self.paused else ''}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._waiting or job_id in self.running

    # -- views --------------------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        return self.line.policy

    @property
    def tau_s(self) -> float | None:
        """Everybody's starvation timeout in seconds, None for no guard."""
        return self.line.tau_s

    @tau_s.setter
    def tau_s(self, tau_s: float | None) -> None:
        self.line.tau_s = tau_s

    @property
    def deferring(self) -> bool:
        """Whether the last `next` left a slot free because waiting jobs wait for a better one."""
        return self.line.deferring

    @property
    def clients(self) -> dict[str, tuple[int, int]]:
        """The numbers of waiting and running jobs of each client that has any."""
        waiting, running = self._by_client, self.line.clients_running
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
        self.line.now = now
        entry = QueuedJob(job, next(self._seq), job.rank, job.arrival_s)
        entry.key = self.policy.key(entry)
        others = (e for e in self._waiting.values() if not e.held and e.job.id != job.id)
        before = [e for e in others if e.place < entry.place]
        before.sort(key=attrgetter("place"))
        return self.fleet.forecast(entry, before, now)

    def waiting(self) -> list[QueuedJob]:
        """Return the waiting jobs in the order of their starts, were none to age; held ones last."""
        ordered = list(self._waiting.values())
        for name in ("seq", "key", "rank", "parked", "held"):  # sorts are stable
            ordered.sort(key=attrgetter(name))  # four times as fast as sorting by tuples
        return ordered

    def set_urgency(self, job_id: str, level: int | None, by: Said, now: float) -> bool:
        """Set the urgency of a job; False if it is gone, or a predictor would overrule another source."""
        entry = self._waiting.get(job_id) or self.running.get(job_id)
        if entry is None or (by is Said.PREDICTOR and entry.job.urgency_by != by):
            return False
        self.line.drop(entry)
        before, entry.job = entry.job, replace(entry.job, urgency=level, urgency_by=by)
        entry.moves.append(Move(now, MoveKind.URGENCY, f"{'none' if level is None else level} by {by}"))
        if job_id in self._waiting:
            self._place(entry)
        else:
            self.claims.exchanged(before, entry.job, entry.started_s, now)
        return True

    def _may_claim(self, entry: QueuedJob, now: float) -> bool:
        """Return whether a job may start by the urgency that its client claims; if not, drop the claim."""
        if not self.policy.by_level or entry.promoted:
            return True
        client = entry.job.client
        weights = (self.line.rules_of(name).weight for name in {*self._by_client, client})
        share = self.line.rules_of(client).weight / sum(weights)
        if self.claims.within_share(entry.job, share, self.slots.values(), now):
            return True
        self.set_urgency(entry.job.id, level_beyond_share(entry.job), Said.SHARE, now)
        return False

    # -- moving entries -----------------------------------------------------------------------------

    def _wait(self, entry: QueuedJob) -> None:
        self._waiting[entry.job.id] = entry
        if entry.job.prefix:
            self._by_root.setdefault(entry.job.prefix.hashes[0], {})[entry.job.id] = entry
        self.waited_for += not entry.job.stands_back
        self._by_client[entry.job.client] += 1
        self._place(entry)

    def _place(self, entry: QueuedJob) -> None:
        if not entry.promoted:
            entry.key = self.policy.key(entry)
        self._route(entry)
        self._parked.pop(entry.job.id, None)
        entry.parked = self._must_park(entry)
        if entry.parked:
            self._parked[entry.job.id] = entry
        elif not entry.held:
            if self._is_in_order(entry):
                usual = replace(entry.job, cost_s=self.sessions.usual_s, cost_high_s=self.sessions.usual_s)
                entry.key = self.policy.key(replace(entry, job=usual))
            self.line.push(entry)

    def _is_in_order(self, entry: QueuedJob) -> bool:
        """Return whether a waiting job goes by its arrival among the turns of sessions."""
        policy = self.policy
        if entry.promoted or entry.cuts or not (policy.guarded and policy.in_seconds):
            return False
        return self.sessions.in_order(entry.job, self.line.now, len(self._parked))

    def _must_park(self, entry: QueuedJob) -> bool:
        """Return whether a waiting job's session must wait for its turn; if not, it has one from now on."""
        job, policy = entry.job, self.policy
        if entry.promoted or entry.cuts or not policy.guarded:
            return False
        if policy.by_level and level_of(job) <= 1:
            return False
        if not self.sessions.may_run(job, self.line.now, len(self._parked)):
            return True
        if not entry.held:
            self.sessions.begin_turn(job, self.line.now)
        return False

    def _give_turns(self, now: float) -> None:
        """Give parked sessions their turns: first those that may run by now, fairly between clients and the
        oldest family of a client first, then the one that has been parked for too long.
        """
        parked = [entry for entry in self._parked.values() if not entry.held]
        parked.sort(key=lambda entry: entry.usage_s, reverse=True)
        least_s = {entry.job.client: entry.usage_s for entry in parked}
        parked.sort(key=lambda e: (least_s[e.job.client], self.sessions.family(e.job), e.usage_s, e.seq))
        for entry in parked:
            if entry.parked:
                self._place(entry)
        still = [e for e in parked if e.parked and (of := self.sessions.of(e.job)) and of.agent]
        longest = min(still, key=lambda entry: entry.job.arrival_s, default=None)
        if longest is None:
            return
        tau_s = self.line.tau_of(longest.job.client)
        if self.sessions.overdue(longest.job, now, tau_s, (entry.job for entry in still)):
            self.sessions.take_turn(longest.job, now)
            self._place(longest)

    def _reprice(self, job: Job, worker: str, now: float) -> None:
        """Compute again what the waiting jobs cost that share the beginning of a prompt that is read now."""
        sharing = self._by_root.get(job.prefix.hashes[0], {}) if job.prefix else {}
        for entry in list(islice(sharing.values(), MAX_REPRICED)):
            priced = self.fleet.priced_on(worker, entry.job)
            if entry.cuts or entry.job.cost_s - priced.cost_s <= REPRICE_SHARE * entry.job.cost_s:
                continue
            self._exchange(entry, priced, now)

    def _exchange(self, entry: QueuedJob, job: Job, now: float) -> None:
        """Replace a waiting job by one of other costs, its place and its client's charge."""
        self.line.drop(entry)
        self.accounts.give_back(entry, now)
        entry.job = job
        self.accounts.charge(entry, now)
        self._place(entry)

    def _let_forward(self, now: float) -> None:
        """Promote the oldest background job past tau, at most one in FORWARD_EVERY starts."""
        back = self._back
        while back and (back[0].job.id not in self._waiting or not back[0].job.stands_back):
            back.popleft()
        if not back or self._since_forward < FORWARD_EVERY:
            return
        entry = back[0]
        tau_s = self.line.tau_of(entry.job.client)
        if now - entry.job.arrival_s <= (MAX_BACK_S if tau_s is None else min(tau_s, MAX_BACK_S)):
            return
        self._since_forward = 0
        self.line.drop(entry)
        self._stand_back(entry, 0)
        self.waited_for += 1
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
            entry.routed = self.fleet.route(entry, among, self.line.now, self.line.pinned_s())

    def _place_all(self) -> None:
        self.line.lanes.clear()
        for entry in self._waiting.values():
            entry.lane = None
            self._place(entry)

    def _place_turns(self) -> None:
        for entry in list(self._waiting.values()):
            if entry.lane is not None and self._is_in_order(entry):
                self.line.drop(entry)
                self._place(entry)

    def _leave(self, entry: QueuedJob) -> None:
        del self._waiting[entry.job.id]
        self._parked.pop(entry.job.id, None)
        if entry.job.prefix:
            root = entry.job.prefix.hashes[0]
            del self._by_root[root][entry.job.id]
            if not self._by_root[root]:
                del self._by_root[root]
        self.waited_for -= not entry.job.stands_back
        client = entry.job.client
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]
        self.line.drop(entry)

    def _stop(self, job_id: str, now: float, *, served: bool) -> QueuedJob:
        entry = self.running.pop(job_id)
        self.fleet.ended(entry, served=served)
        entry.served_s += now - entry.started_s
        self.claims.stopped(entry.job, entry.started_s, now)
        running, client = self.line.clients_running, entry.job.client
        running[client] -= 1
        if not running[client]:
            del running[client]
        return entry
