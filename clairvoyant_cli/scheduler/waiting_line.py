"""The waiting jobs, lane by lane, and the choice of the next job and its worker.

A lane holds jobs that compete on equal terms (`LaneId`). A decision compares the heads of the lanes that a
worker may serve, and then finds where the best of them is predicted to end first (`placement`).
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import islice
from math import inf

from clairvoyant_cli.scheduler.fairness import EVERYBODY, Tenant, rules_for
from clairvoyant_cli.scheduler.job import Reason
from clairvoyant_cli.scheduler.lane import AgesByClient, Lane, LazyHeap
from clairvoyant_cli.scheduler.placement import MAX_PASSED, Fleet, Placement, Station
from clairvoyant_cli.scheduler.policy import Policy
from clairvoyant_cli.scheduler.queued_job import FIRST, Choice, LaneId, QueuedJob, Standing
from clairvoyant_cli.scheduler.urgency import outranks

IDLE_LANES = 32
"""With more lanes than this, empty ones are removed."""


class WaitingLine:
    """Waiting jobs in their lanes.

    `now` is the time of the last decision; `since_promotion` counts the starts by policy since the last one
    by tau. `deferring`: the last `choose` left a slot free because each waiting job waits for a better one.
    """

    def __init__(
        self,
        policy: Policy,
        fleet: Fleet,
        tau_s: float | None,
        tenants: Mapping[str, Tenant],
        everybody: Tenant,
        may_claim: Callable[[QueuedJob, float], bool],
    ) -> None:
        """Start empty. `may_claim` decides whether a job may start by its client's claim of urgency; if
        not, it has moved the job to the place it has without the claim.
        """
        self.policy = policy
        self.tau_s = tau_s
        self.tenants = dict(tenants)
        self.everybody = everybody
        self.now = 0.0
        self.since_promotion = 1 << 30
        self.clients_running: dict[str, int] = {}
        self.lanes: dict[LaneId, Lane] = {}
        self.deferring = False
        self._fleet = fleet
        self._may_claim = may_claim

    # -- standing in line ---------------------------------------------------------------------------

    def push(self, entry: QueuedJob) -> None:
        lane = self._lane_for(entry)
        entry.lane = lane.id
        lane.push(entry)

    def drop(self, entry: QueuedJob) -> None:
        lane_id, entry.lane = entry.lane, None
        if lane_id is None:
            return
        lane = self.lanes[lane_id]
        lane.drop(entry)
        if not lane.live and len(self.lanes) > IDLE_LANES:
            del self.lanes[lane_id]

    def _lane_for(self, entry: QueuedJob) -> Lane:
        job = entry.job
        client = job.client if self.rules_of(job.client).apart else ""
        pinned_to = job.worker or entry.routed
        lane_id = LaneId(pinned_to, job.affinity, client, frozenset() if pinned_to else job.able)
        lane = self.lanes.get(lane_id)
        if lane is None:
            ages = (AgesByClient if self.policy.by_share else LazyHeap)() if self.policy.guarded else None
            lane = self.lanes[lane_id] = Lane(lane_id, ages)
        return lane

    def pinned_s(self) -> dict[str, float]:
        """Return the predicted seconds of work waiting for each worker; under "", for any worker."""
        pinned_s: dict[str, float] = {}
        for lane in self.lanes.values():
            if lane.live:
                pinned_to = lane.id.pinned_to
                pinned_s[pinned_to] = pinned_s.get(pinned_to, 0.0) + lane.cost_s
        return pinned_s

    def rules_of(self, client: str) -> Tenant:
        return rules_for(client, self.tenants, self.everybody) if client else EVERYBODY

    # -- choosing -----------------------------------------------------------------------------------

    def choose(self, now: float, waiting: int) -> tuple[QueuedJob, str, Reason] | None:
        """Return the job to start now, its worker and the reason; None if nothing can start.

        Takes the first job in order and finds the worker where it is predicted to end first; a job that
        should wait for a busy worker is passed over. A worker whose KV cache has no room for the first job
        starts none after it, so that each has its turn. `waiting` is the number of waiting jobs.
        """
        free = self._fleet.free()
        passed, ahead_s = dict[str, tuple[QueuedJob, Placement]](), self.pinned_s()
        while free and (first := self._first(free, now, passed)) is not None:
            choice, station = first
            entry, reason = choice.entry, choice.reason
            able = self._able(entry, station, free, now)
            roomy = [each for each in able if each.has_room(entry.job)]
            if not roomy:
                free = [each for each in free if each not in able]
                continue
            verdict = self._fleet.best(entry, now, roomy, ahead_s)
            there = verdict.waits_for
            if reason is Reason.POLICY and now < entry.job.not_before_s:
                passed[entry.job.id] = entry, verdict._replace(gain_s=inf)
            elif there is None or reason is not Reason.POLICY or self.is_overdue(entry):
                return entry, verdict.station.name, reason
            else:
                passed[entry.job.id] = entry, verdict
                ahead_s[there.name] = ahead_s.get(there.name, 0.0) + verdict.takes_s
            if len(passed) == MAX_PASSED < waiting:
                entry, verdict = min(passed.values(), key=lambda each: each[1].gain_s)
                return entry, verdict.station.name, Reason.POLICY
        self.deferring = bool(passed)
        return None

    def _first(
        self, free: Sequence[Station], now: float, passed: Container[str]
    ) -> tuple[Choice, Station] | None:
        """Return the first choice over all free stations, without the jobs passed over, and its station."""
        lanes, residency = self.lanes.values(), self._fleet.residency
        apart = any(lane.live and not lane.for_any_worker for lane in lanes)
        best: tuple[Choice, Station] | None = None
        seen = set[tuple[object, ...]]()
        for station in free:
            alone = apart or station.apart
            view = (station.name if alone else "", *residency.view(station.name, now))
            if view not in seen:  # equal workers make the same choice
                seen.add(view)
                choice = self.choose_for(station.name, now, passed)
                if choice is not None and (best is None or choice.order[:3] < best[0].order[:3]):
                    best = choice, station
        return best

    def _able(self, entry: QueuedJob, station: Station, free: list[Station], now: float) -> list[Station]:
        """Return the free stations that a job may start on, including `station`."""
        if entry.lane is None or len(free) == 1:
            return [station]
        lane, fleet = entry.lane, self._fleet
        return [
            each
            for each in free
            if each is station or (self._may_serve(lane, each.name) and fleet.open_to(entry, each, now))
        ]

    def next_up(self, now: float) -> Choice | None:
        """Return what would start now if each worker had a free slot, None if nothing may.

        Claims of urgency are not decided by this.
        """
        workers = [station.name for station in self._fleet.stations.values() if station.slots]
        choices = (self.choose_for(worker, now, for_good=False) for worker in workers)
        return min((each for each in choices if each), key=lambda each: each.order[:3], default=None)

    def takers(self, entry: QueuedJob) -> list[Station]:
        """Return the available workers that may serve a waiting job; none if it is held or parked."""
        lane, stations = entry.lane, self._fleet.stations.values()
        return [] if lane is None else [s for s in stations if s.slots and self._fleet.may_take(s.name, lane)]

    def choose_for(
        self, worker: str, now: float, passed: Container[str] = (), *, for_good: bool = True
    ) -> Choice | None:
        """Return what a slot of this worker would start now: promoted, by tau or by policy.

        Unless `for_good`, claims of urgency are accepted without a check.
        """
        while lanes := self.open_lanes(worker, now):
            standing = min(self._standings(lanes, worker, passed), default=None)
            if standing is None:
                return None
            entry = standing[-1]
            if not for_good or self._may_claim(entry, now):
                break
        else:
            return None
        if entry.promoted:
            return Choice(standing, entry, Reason.PROMOTED)
        if self.policy.guard is not None:
            overdue = self._longest_overdue(lanes, now)
            if overdue is not None and overdue is not entry and self.guard_allows(overdue, entry, now):
                price_s = self._fleet.residency.price_s(worker, overdue.job.affinity)
                return Choice((FIRST, price_s, overdue.seq, overdue), overdue, Reason.TAU)
        return Choice(standing, entry, Reason.POLICY)

    def guard_allows(self, overdue: QueuedJob, other: QueuedJob, now: float) -> bool:
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

    def had_turn(self, entry: QueuedJob, now: float) -> None:
        ages = None if entry.lane is None else self.lanes[entry.lane].ages
        if isinstance(ages, AgesByClient):
            ages.had_turn(entry.job.client, now)

    def open_lanes(self, worker: str, now: float) -> list[Lane]:
        """Return the lanes that a slot of this worker may serve.

        While the loaded model must stay, only lanes that need no other; promoted jobs are exempt.
        """
        every, shares = self.lanes.values(), not self._fleet.stations[worker].apart
        lanes = [e for e in every if e.live and ((e.for_all and shares) or self._may_serve(e.id, worker))]
        if len(lanes) > 1 and self._fleet.residency.must_stay(worker, now):
            price_s = self._fleet.residency.price_s
            stays = [
                lane
                for lane in lanes
                if price_s(worker, lane.id.affinity) == 0.0 or ((first := lane.first()) and first.promoted)
            ]
            return stays or lanes
        return lanes

    def _may_serve(self, lane_id: LaneId, worker: str) -> bool:
        return self._fleet.may_take(worker, lane_id) and not self.is_limited(lane_id)

    def is_limited(self, lane_id: LaneId) -> bool:
        """Return whether the client of a lane has all the slots that it may have."""
        limit = self.rules_of(lane_id.client).max_running if lane_id.client else None
        return limit is not None and self.clients_running.get(lane_id.client, 0) >= limit

    def _standings(self, lanes: list[Lane], worker: str, passed: Container[str] = ()) -> list[Standing]:
        """Return the heads of the lanes, without the jobs passed over, each with its current order."""
        heads = [head for lane in lanes if (head := lane.first(passed))]
        if not self.policy.in_seconds or not self._fleet.residency.prices:
            return [(e.rank, e.key, e.seq, e) for e in heads]
        price_s = self._fleet.residency.price_s
        return [(e.rank, e.key + price_s(worker, e.job.affinity), e.seq, e) for e in heads]

    def is_overdue(self, entry: QueuedJob) -> bool:
        """Return whether a waiting job is past its tau; background jobs never are."""
        if not self.policy.guarded or entry.job.stands_back:
            return False
        tau_s = self.tau_of(entry.job.client)
        return tau_s is not None and self.now - entry.job.arrival_s > tau_s

    def tau_of(self, client: str) -> float | None:
        own = self.rules_of(client).tau_s if client else None
        return self.tau_s if own is None else own

    def _longest_overdue(self, lanes: list[Lane], now: float) -> QueuedJob | None:
        """Return the job furthest past its tau, None if none is."""
        longest, most_s = None, 0.0
        alone = not self.policy.by_share or _only_one_client(lanes)
        for lane in lanes:
            tau_s = self.tau_of(lane.id.client)
            found = None if tau_s is None else lane.longest(alone=alone)
            if tau_s is None or found is None:
                continue
            entry, since_s = found
            overdue_s = now - since_s - tau_s
            if overdue_s > most_s:
                longest, most_s = entry, overdue_s
        return longest


def _only_one_client(lanes: Iterable[Lane]) -> bool:
    clients = set[str]()
    for lane in lanes:
        if isinstance(lane.ages, AgesByClient):
            clients.update(islice(lane.ages.live, 2))
        if len(clients) > 1:
            return False
    return True
