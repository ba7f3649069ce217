"""Accounts of the service that each client received, and the limits of clients.

Rule 1: a job is charged its predicted cost when it starts, and what it received when it leaves its slot, so
that a client's order among its own jobs does not depend on how many it has queued.
Rule 2: a refund has decayed as its charge has. Otherwise refunding a large charge later would cancel what the
client owes for other jobs.
Rule 3: charges decay exponentially and vanish (QUARTZ, section 4.3): old debt never starves a client, and
memory follows the active clients.
Rule 4: background jobs have an account of their own: a chat's titles do not delay its user's questions (as
with Slurm's UsageFactor 0).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import TypeVar

from clairvoyant_cli.scheduler.job import Job

Rules = TypeVar("Rules")

HALF_LIFE_S = 60.0  # after this long, half of a charge is forgiven

SERVICE_MEMORY_S = HALF_LIFE_S / log(2.0)
"""Divide decayed seconds of service by this to get a rate (QUARTZ's moving average)."""

FORGOTTEN_S = 1e-3  # a charge below this is nothing
SWEEP_EVERY = 1024  # charges between two searches for clients to forget


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
        return charge_s * self._left(now - at)

    def charge(self, client: str, seconds: float, now: float) -> None:
        # Rounding may leave slightly less than 0.
        self._charges[client] = (max(self.used_s(client, now) + seconds, 0.0), now)
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self._forget(now)

    def charge_since(self, client: str, seconds: float, since_s: float, now: float) -> None:
        """Charge as if it had been done at `since_s`; negative seconds refund such a charge."""
        self.charge(client, seconds * self._left(now - since_s), now)

    def _left(self, age_s: float) -> float:
        """Return what is left of a charge of one second at this age."""
        return exp(-self._rate * max(age_s, 0.0))

    def _forget(self, now: float) -> None:
        for client in [c for c in self._charges if self.used_s(c, now) < FORGOTTEN_S]:
            del self._charges[client]


class Accounts:
    """The service of clients, for interactive and background jobs apart. Unnamed clients have none."""

    def __init__(self) -> None:
        self._of = {True: ServiceCounters(), False: ServiceCounters()}  # whether a person waits

    def used_s(self, client: str, now: float, *, interactive: bool = True) -> float:
        return self._of[interactive].used_s(client, now)

    def charged(self, job: Job, now: float, sign: float = 1.0) -> None:
        """Charge a running job its predicted cost, as of its start; with a `sign` of -1, refund that."""
        if job.client:
            self._of[job.interactive].charge_since(job.client, sign * job.cost_s, job.started_s, now)

    def stopped(self, job: Job, now: float) -> None:
        """Replace the predicted cost of a job by the service that it received in this run."""
        self.charged(job, now, -1.0)
        if job.client:
            self._of[job.interactive].charge(job.client, now - job.started_s, now)
