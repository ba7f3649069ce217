"""The models loaded on each server, and the cost of loading another."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile

SWAP_PATIENCE = 3.0
"""A freshly loaded model stays for this many times its load price while it has work: swapping then takes
at most a quarter of a busy server's time."""

MAX_TOGETHER = 64  # limit of affinities known to be loaded on one server; clients choose the runner's options


@dataclass(frozen=True, slots=True)
class _Loaded:
    affinities: frozenset[str] = frozenset()
    stays_until_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class _Start:
    """A running job that may have loaded its affinity; `believed` if that is assumed until it is known."""

    affinity: str
    at_s: float
    price_s: float
    believed: bool


@dataclass(slots=True)
class _Server:
    """What a server is known to have loaded, its running jobs that may change that, and what follows."""

    known: _Loaded = field(default_factory=_Loaded)
    starts: dict[str, _Start] = field(default_factory=dict)  # by job, in their order
    assumed: _Loaded = field(default_factory=_Loaded)
    room: int = 0  # how much it can have loaded; 0 if unknown

    def assume(self) -> None:
        self.assumed = self.after(self.starts.values())

    def after(self, starts: Iterable[_Start]) -> _Loaded:
        """Return what is loaded after these starts: each replaces everything else, unless there is room."""
        loaded = self.known
        for start in starts:
            if start.believed and start.affinity not in loaded.affinities:
                beside = loaded.affinities if len(loaded.affinities) < self.room else frozenset[str]()
                stays_until_s = start.at_s + (1.0 + SWAP_PATIENCE) * start.price_s
                loaded = _Loaded(beside | {start.affinity}, stays_until_s)
        return loaded


@dataclass(slots=True)
class Residency:
    """Which affinities are loaded on each server, and what loading another would cost.

    `load_s` maps an affinity to the seconds its loading takes; `unknown_s` is the price of one that is not
    in it, 0 where that is free to load. A job without an affinity needs nothing loaded. Servers that are
    `fixed` have what they have: nothing is ever loaded there.

    What a job needs counts as loaded from its start on, so that the next decision does not go back and
    forth; if it then turns out that the server did not run it, it is as though it had never started. A job
    whose affinity is not in `load_s` counts only once it was run: anybody may name a model that is not there.
    """

    load_s: dict[str, float] = field(default_factory=dict)
    unknown_s: float = 0.0
    fixed: set[str] = field(default_factory=set)
    _servers: dict[str, _Server] = field(default_factory=dict)

    @property
    def prices(self) -> bool:
        return self.unknown_s > 0.0 or bool(self.load_s)

    def price_s(self, server_id: str, affinity: str) -> float:
        """Return the seconds it takes to make `affinity` resident on the server, 0 if it is."""
        price_s = self._load_s_of(server_id, affinity)
        if price_s == 0.0:
            return 0.0
        there = self._servers.get(server_id)
        return 0.0 if there is not None and affinity in there.assumed.affinities else price_s

    def replaces(self, server_id: str, affinity: str) -> bool:
        """Return whether a server would load `affinity` in place of something else."""
        there = self._servers.get(server_id)
        return (
            there is not None and bool(there.assumed.affinities) and self.price_s(server_id, affinity) > 0.0
        )

    def view(self, server_id: str, now: float) -> tuple[object, ...]:
        """Return a key of what a server has loaded. One that waits before a swap has a key of its own: what
        it may start depends on its running jobs.
        """
        there = self._servers.get(server_id, _Server())
        if there.room:
            return (server_id,)
        stays = now < there.assumed.stays_until_s
        return server_id in self.fixed, there.assumed.affinities, stays

    def must_stay(self, server_id: str, now: float) -> bool:
        """Return whether the loaded model should stay while it has work, as it was loaded recently."""
        there = self._servers.get(server_id)
        return there is not None and now < there.assumed.stays_until_s

    def set_room(self, server_id: str, room: int) -> None:
        """Set how much a server can have loaded, if it waits for its running jobs before a swap; else 0."""
        self._servers.setdefault(server_id, _Server()).room = room

    def swapping_to(self, server_id: str) -> frozenset[str]:
        """Return what a server will have loaded that loads something for a running job, at once or when its
        others have ended, and then has no more room; empty if it does not. The jobs may name no real models.
        """
        there = self._servers.get(server_id)
        if there is None or not there.room:
            return frozenset()
        if all(start.affinity in there.known.affinities for start in there.starts.values()):
            return frozenset()
        loaded = there.after(replace(start, believed=True) for start in there.starts.values()).affinities
        return loaded if len(loaded) >= there.room else frozenset()

    def is_full(self, server_id: str) -> bool:
        """Return whether a server would first wait for its running jobs to load anything else."""
        there = self._servers.get(server_id)
        return there is not None and 0 < there.room <= len(there.assumed.affinities)

    def swaps(self, server_id: str, job_id: str, affinity: str) -> bool:
        """Return whether a server may be loading something for a running job, or would for `affinity`."""
        there = self._servers.get(server_id)
        return (there is not None and job_id in there.starts) or self.price_s(server_id, affinity) > 0.0

    def set(self, server_id: str, affinities: frozenset[str]) -> None:
        """Set what the server itself reports as loaded."""
        there = self._servers.setdefault(server_id, _Server())
        there.known = _Loaded(affinities, there.assumed.stays_until_s)
        there.starts.clear()
        there.assume()

    def dispatched(self, server_id: str, job_id: str, affinity: str, now: float) -> None:
        """Record the start of a job: its affinity is assumed to be loaded, in place of everything else."""
        price_s = self._load_s_of(server_id, affinity)
        if price_s == 0.0:
            return
        there = self._servers.setdefault(server_id, _Server())
        if there.starts or affinity not in there.known.affinities:
            there.starts[job_id] = _Start(affinity, now, price_s, affinity in self.load_s)
            there.assume()

    def loaded(self, server_id: str, job_id: str) -> None:
        """Record that a job ran: its affinity was loaded when it started."""
        there = self._servers.get(server_id)
        if there is None or job_id not in there.starts:
            return
        before = dict(takewhile(lambda item: item[0] != job_id, there.starts.items()))
        start = there.starts.pop(job_id)
        there.known = there.after((*before.values(), replace(start, believed=True)))
        for other, earlier in before.items():
            if earlier.believed:  # whether the others load anything is not known yet
                del there.starts[other]
        there.assume()

    def was_there(self, server_id: str, job_id: str) -> None:
        """Record that a job ran without a load: its affinity was loaded beside the others already."""
        there = self._servers.get(server_id)
        if there is None or next(iter(there.starts), None) != job_id:
            self.loaded(server_id, job_id)  # whether it was loaded before the other starts is not known
            return
        start = there.starts.pop(job_id)
        if len(there.known.affinities) < MAX_TOGETHER:
            there.known = replace(there.known, affinities=there.known.affinities | {start.affinity})
        there.assume()

    def not_loaded(self, server_id: str, job_id: str) -> None:
        """Record that a job did not run: nothing was loaded for it."""
        there = self._servers.get(server_id)
        if there is not None and there.starts.pop(job_id, None) is not None:
            there.assume()

    def _load_s_of(self, server_id: str, affinity: str) -> float:
        return (
            0.0 if server_id in self.fixed else self.load_s.get(affinity, self.unknown_s if affinity else 0.0)
        )
