"""The clients of the queue: their limits, their jobs, and the service that each received.

Rule 1: a job is charged its predicted cost when it starts, and what it received when it leaves its slot, so
that a client's order among its own jobs does not depend on how many it has queued.
Rule 2: a refund has decayed as its charge has. Otherwise refunding a large charge later would cancel what the
client owes for other jobs.
Rule 3: charges decay exponentially and vanish (QUARTZ, section 4.3): old debt never starves a client, and
memory follows the active clients.
Rule 4: background jobs have an account of their own: a chat's titles do not delay its user's questions (as
with Slurm's UsageFactor 0).
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import exp, inf, log
from typing import TypeVar

from clairvoyant_cli.scheduler.job import Job, Run

Rules = TypeVar("Rules")

HALF_LIFE_S = 60.0  # after this long, half of a charge is forgiven
FORGOTTEN_S = 1e-3  # a charge below this is nothing
SWEEP_EVERY = 1024  # charges between two searches for clients to forget

Excess = dict[tuple[str, bool], float]
"""Seconds of service beyond another client's, by client and whether the jobs are interactive."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """The limits of one client; unset fields follow the rules of all clients (Clairvoyant, section 7)."""

    tau_s: float | None = None  # its own starvation timeout, infinite for no guard
    weight: float = 1.0  # its share of the slots, and of claims of urgency
    max_running: int | None = None
    max_waiting: int | None = None


EVERYBODY = Tenant()  # the rules of a client without its own


def rules_for(client: str, known: Mapping[str, Rules], everybody: Rules) -> Rules:
    """Return the rules of a client: its own, those of the client whose user it is, or the default.

    `webui/ann` is a user of `webui`.
    """
    found = known.get(client)
    if found is None and "/" in client:
        found = known.get(client.partition("/")[0])
    return everybody if found is None else found


class ServiceCounters:
    """Seconds of service per client, with exponential decay."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._rate = log(2.0) / half_life_s
        self._charges: dict[str, tuple[float, float]] = {}  # client -> (seconds, as of)
        self._until_sweep = SWEEP_EVERY

    def __len__(self) -> int:
        return len(self._charges)

    def used_s(self, client: str, now: float) -> float:
        """Return what the client has been charged, decayed to now."""
        charge_s, at = self._charges.get(client, (0.0, now))
        return charge_s * exp(-self._rate * max(now - at, 0.0))

    def charge(
        self, client: str, seconds: float, now: float, *, since_s: float = inf, received_s: float = 0.0
    ) -> None:
        """Charge seconds as if it had been done at `since_s`, by default now; negative ones refund such a
        charge. `received_s` is charged as of now, once that is done.
        """
        then_s = self.used_s(client, now) + seconds * exp(-self._rate * max(now - since_s, 0.0))
        # Rounding may leave slightly less than 0.
        self._charges[client] = (max(max(then_s, 0.0) + received_s, 0.0), now)
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            for forgotten in [name for name in self._charges if self.used_s(name, now) < FORGOTTEN_S]:
                del self._charges[forgotten]


class Clients:
    """The clients of a queue. An unnamed client has the limits of `EVERYBODY` and no account.

    `rules` holds the limits of the clients that have any, `everybody` those of each other client that has a
    name. The starvation timeout of a job is its client's own, else that of its model in `tau_by_model`, else
    `tau_s`; None for no guard.
    """

    def __init__(self, rules: Mapping[str, Tenant], everybody: Tenant, tau_s: float | None) -> None:
        self.tau_s = tau_s
        self.tau_by_model: Mapping[str, float] = {}  # learned
        self.set_rules(rules, everybody)
        self.waiting = Counter[str]()  # jobs of each client
        self.running: dict[str, int] = {}
        self.lent: dict[str, int] = {}  # jobs of each client that another scheduler runs on the same servers
        self.turn_s: dict[str, float] = {}  # when a client that still waits had its last start by tau
        self.service = {True: ServiceCounters(), False: ServiceCounters()}  # whether a person waits

    def set_rules(self, rules: Mapping[str, Tenant], everybody: Tenant) -> None:
        self.rules, self.everybody = dict(rules), everybody
        self.limits_slots = any(limits.max_running is not None for limits in (everybody, *rules.values()))

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """The numbers of waiting and running jobs of each client that has any."""
        names = self.waiting.keys() | self.running.keys()
        return {name: (self.waiting[name], self.running.get(name, 0)) for name in names}

    def limits_of(self, client: str) -> Tenant:
        if not client:
            return EVERYBODY
        return rules_for(client, self.rules, self.everybody) if self.rules else self.everybody

    def tau_of(self, client: str, model: str) -> float | None:
        own = self.limits_of(client).tau_s
        return self.tau_by_model.get(model, self.tau_s) if own is None else own

    def is_limited(self, client: str) -> bool:
        """Return whether a client has all the slots that it may have."""
        limit = self.limits_of(client).max_running if self.limits_slots else None
        return limit is not None and self.running.get(client, 0) + self.lent.get(client, 0) >= limit

    def limited(self) -> Collection[str]:
        """Return the clients that have all the slots that they may have."""
        return [client for client in {**self.running, **self.lent} if self.is_limited(client)]

    def share_of(self, client: str) -> float:
        """Return a client's weight as a share of those of all that wait."""
        weights = (self.limits_of(name).weight for name in {*self.waiting, client})
        return self.limits_of(client).weight / sum(weights)

    def used_s(self, client: str, now: float, *, interactive: bool = True) -> float:
        """Return the decayed service of a client, in seconds per weight."""
        return self.service[interactive].used_s(client, now) / self.limits_of(client).weight

    def count_running(self, run: Run, more: int, now: float, *, received_s: float = 0.0) -> None:
        """Count a running job, and charge its predicted cost as of its start; with -1, take that back, and
        charge the service that it has received.
        """
        job = run.job
        client = job.client
        self.running[client] = self.running.get(client, 0) + more
        if not self.running[client]:
            del self.running[client]
        if client:
            service, predicted_s = self.service[job.interactive], more * job.cost_s
            service.charge(client, predicted_s, now, since_s=run.started_s, received_s=received_s)

    def excess_s(self, now: float, kinds: Iterable[bool]) -> Excess:
        """Return how much more service each client had than the one that had least, in seconds per weight,
        for interactive jobs (True) and others. Nothing where there is one client.
        """
        names = self.waiting.keys() | self.running.keys()
        found: Excess = {}
        for kind in kinds if len(names) > 1 else ():
            used_s = {name: self.used_s(name, now, interactive=kind) for name in names}
            least_s = min(used_s.values())
            found |= {(name, kind): used - least_s for name, used in used_s.items()}
        return found

    def in_turns(self, ordered: Iterable[Job], excess_s: Excess) -> Iterator[Job]:
        """Merge the orders of several clients: each start adds to the service of its client."""
        had_s, queues = dict(excess_s), dict[tuple[str, bool], deque[Job]]()
        for job in ordered:
            queues.setdefault((job.client, job.interactive), deque()).append(job)

        def head(job: Job, whose: tuple[str, bool]) -> tuple[bool, bool, float, float, int, tuple[str, bool]]:
            return job.held, job.parked, job.rank, share_key(job, had_s), job.seq, whose

        weights = {whose: self.limits_of(whose[0]).weight for whose in queues}
        heads = [head(queue[0], whose) for whose, queue in queues.items()]
        heapify(heads)
        while heads:
            whose = heads[0][-1]
            queue = queues[whose]
            job = queue.popleft()
            yield job
            had_s[whose] = had_s.get(whose, 0.0) + job.cost_s / weights[whose]
            if queue:
                heapreplace(heads, head(queue[0], whose))
            else:
                heappop(heads)


def share_key(job: Job, excess_s: Excess) -> float:
    """Return what orders the first jobs of several clients."""
    return job.key if job.promoted else job.share_key + excess_s.get((job.client, job.interactive), 0.0)
