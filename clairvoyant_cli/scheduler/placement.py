"""Where a job runs: what is loaded on each worker, and which worker a routed request should wait at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SWAP_PATIENCE = 3.0
"""A freshly loaded model stays for this many times its load price while it has work: swapping then takes
at most a quarter of a busy worker's time."""


@dataclass(slots=True)
class _Loaded:
    affinities: frozenset[str] = frozenset()
    stays_until_s: float = float("-inf")


@dataclass(slots=True)
class Residency:
    """Which affinities are loaded on each worker, and what loading another would cost.

    `load_s` maps an affinity to the seconds its loading takes; one that is missing is free to load.
    """

    load_s: dict[str, float] = field(default_factory=dict)
    _loaded: dict[str, _Loaded] = field(default_factory=dict)

    def price_s(self, worker: str, affinity: str) -> float:
        """Return the seconds it takes to make `affinity` resident on the worker, 0 if it is."""
        price_s = self.load_s.get(affinity, 0.0)
        if price_s == 0.0:
            return 0.0
        loaded = self._loaded.get(worker)
        return 0.0 if loaded is not None and affinity in loaded.affinities else price_s

    def must_stay(self, worker: str, now: float) -> bool:
        """Say whether what is loaded should stay while it has work, for it was loaded a moment ago."""
        loaded = self._loaded.get(worker)
        return loaded is not None and now < loaded.stays_until_s

    def set(self, worker: str, affinities: frozenset[str]) -> None:
        """Take note of what the worker itself says is loaded."""
        self._loaded.setdefault(worker, _Loaded()).affinities = affinities

    def dispatched(self, worker: str, affinity: str, now: float) -> None:
        """Take note that a job starts: what it needs is loaded from now on, in place of all else."""
        price_s = self.price_s(worker, affinity)
        if price_s > 0.0:
            self._loaded[worker] = _Loaded(frozenset((affinity,)), now + (1.0 + SWAP_PATIENCE) * price_s)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as a router sees it: seconds of expected work ahead, and for this job a cautious (quantile)
    estimate of its own time there and a penalty for undesirable states such as KV-cache pressure.
    """

    worker: str
    backlog_s: float
    quantile_s: float
    penalty_s: float = 0.0

    @property
    def score_s(self) -> float:
        """The cautious completion time (QUARTZ, Eq. 4): means add up, so only the job's own is a quantile."""
        return self.backlog_s + self.quantile_s + self.penalty_s


def best_worker(candidates: Sequence[Candidate]) -> str:
    """Return the worker with the lowest score (QUARTZ, Eq. 5); the first on a tie.

    Give it two random workers for the power of two choices, or all of them. ValueError if there are none.
    """
    return min(candidates, key=lambda candidate: candidate.score_s).worker


def free_workers(slots: Mapping[str, int], busy: Mapping[str, int]) -> list[str]:
    """Return the workers with a free slot, the least busy first."""
    free = [worker for worker, count in slots.items() if busy[worker] < count]
    if len(free) > 1:
        free.sort(key=lambda worker: busy[worker] / slots[worker])
    return free
