"""What each client has been served of late, and what a client may take.

Rule 1: a job is charged at its predicted cost when it is submitted and corrected when it ends, so that a
client who sends a hundred requests at once pays for the queued ones too (QUARTZ charges at the first token;
a burst would then be free).
Rule 2: what is given back of a charge has decayed as the charge has. Otherwise a large one that is taken back
a while later would wipe out what its client owes for other jobs.
Rule 3: charges decay exponentially, and a client whose charge has decayed to nothing is forgotten (QUARTZ,
section 4.3), so an old debt never starves and memory follows the active clients alone.
Rule 4: what nobody waits for is charged apart. It starts where no question could, or as one start in four,
and nobody's question comes later for the titles of its own chats (as a fair share of Slurm's counts no work
of a scavenger's QOS, whose UsageFactor is 0).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from typing import TypeVar

from clairvoyant_cli.scheduler.queued_job import Entry

Rules = TypeVar("Rules")

HALF_LIFE_S = 60.0
"""After this long, half of a charge is forgiven."""

SERVICE_MEMORY_S = HALF_LIFE_S / log(2.0)
"""What turns a client's decayed seconds of service into a rate, QUARTZ's moving average."""

FORGOTTEN_S = 1e-3
"""A charge below this is nothing."""

SWEEP_EVERY = 1024
"""Charges between two searches for clients to forget."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """What an operator grants one client; the fields left alone follow everybody's rules.

    `tau_s` is its own starvation timeout, `weight` its share under `fair` and of a full queue (2 is served,
    or waits, twice as much), `max_running` and `max_waiting` its quotas of slots and of places in the queue
    (Clairvoyant, section 7).
    """

    tau_s: float | None = None
    weight: float = 1.0
    max_running: int | None = None
    max_waiting: int | None = None

    @property
    def apart(self) -> bool:
        """Whether its jobs cannot compete on equal terms with everybody's."""
        return self.tau_s is not None or self.max_running is not None


EVERYBODY = Tenant()
"""The rules for a client nobody has set rules for."""


def rules_for(client: str, known: Mapping[str, Rules], everybody: Rules) -> Rules:
    """Return the rules of a client: its own, those of the client whose user it is, or everybody's.

    `webui/ann` is a user of `webui`.
    """
    found = known.get(client)
    if found is None and "/" in client:
        found = known.get(client.partition("/")[0])
    return everybody if found is None else found


class ServiceCounters:
    """Seconds of service per client, decaying with time."""

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
        """Add to what the client has been charged."""
        self._add(client, seconds, now)

    def give_back(self, client: str, seconds: float, charged_s: float, now: float) -> None:
        """Take back what is left of a charge made at `charged_s`."""
        self._add(client, -seconds * self._left(now - charged_s), now)

    def _add(self, client: str, seconds: float, now: float) -> None:
        # Rounding may leave a hair less than nothing of what is given back.
        self._charges[client] = (max(self.used_s(client, now) + seconds, 0.0), now)
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self._forget(now)

    def _left(self, age_s: float) -> float:
        """Return how much of a second charged is left after a while."""
        return exp(-self._rate * max(age_s, 0.0))

    def _forget(self, now: float) -> None:
        for client in [c for c in self._charges if self.used_s(c, now) < FORGOTTEN_S]:
            del self._charges[client]


class Accounts:
    """What clients are charged: for what somebody waits for, and for what nobody does. Who has no name has no
    account.
    """

    def __init__(self) -> None:
        self._waited_for, self._behind = ServiceCounters(), ServiceCounters()

    def used_s(self, client: str, now: float, *, waited_for: bool = True) -> float:
        """Return what a client has been charged, decayed to now."""
        return (self._waited_for if waited_for else self._behind).used_s(client, now)

    def charge(self, entry: Entry, now: float) -> None:
        """Charge a job's client its predicted cost."""
        entry.charged_s = now
        if entry.job.client:
            self._of(entry).charge(entry.job.client, entry.job.cost_s, now)

    def give_back(self, entry: Entry, now: float) -> None:
        """Take back what is left of what `charge` charged."""
        if entry.job.client:
            self._of(entry).give_back(entry.job.client, entry.job.cost_s, entry.charged_s, now)

    def settle(self, entry: Entry, now: float) -> None:
        """Charge what a job was served in place of its predicted cost."""
        self.give_back(entry, now)
        if entry.job.client:
            self._of(entry).charge(entry.job.client, entry.served_s, now)

    def _of(self, entry: Entry) -> ServiceCounters:
        return self._waited_for if entry.waited_for else self._behind
