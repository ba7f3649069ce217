"""The requests by client, by model and by backend: what each has here, and what it had of the slots' time."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from statistics import median

from clairvoyant_cli.proxy.queue.exchange import End, Exchange
from clairvoyant_cli.proxy.servers.loaded_models import MIN_LOAD_S
from clairvoyant_cli.state.snapshot import GroupState
from predictor.record import LengthClass

KINDS = ("client", "model", "backend")
WINDOW_S = 3600.0
MAX_RUNS = 2000
"""Requests that are looked back on: of more in an hour, the newest."""

SHOWN = 50
"""Groups of a kind that are told of, the busiest: clients choose their own names."""

ENDED_EVERY_S = 1.0
Key = tuple[str, str]
"""A kind and a name."""


@dataclass(frozen=True, slots=True)
class Run:
    """A request that ended: of whom it was, how long it had slots, how long it waited, whether its answer
    was Short, and whether a model had to be loaded for it.
    """

    at_s: float
    keys: tuple[Key, ...]
    busy_s: float
    wait_s: float
    is_short: bool
    swapped: bool


@dataclass(frozen=True, slots=True)
class Had:
    """What the groups had within the hour."""

    busy_s: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    swaps: Counter[Key] = field(default_factory=Counter)
    short_p50_s: dict[Key, float] = field(default_factory=dict)


@dataclass(slots=True)
class Groups:
    """Keeps the books. `model_of` says what a request's model is; `draining` names the groups of which
    nothing new is taken.
    """

    clock: Callable[[], float]
    model_of: Callable[[Exchange], str]
    draining: set[Key] = field(default_factory=set)
    _runs: deque[Run] = field(default_factory=lambda: deque(maxlen=MAX_RUNS))
    _had: tuple[float, Had] = (float("-inf"), Had())

    def keys_of(self, exchange: Exchange) -> tuple[Key, ...]:
        """Return the groups that a request is of; of a backend's is what waits for it alone."""
        job, attempt = exchange.job, exchange.attempt
        alone = next(iter(job.able)) if len(job.able) == 1 else ""
        names = (exchange.client, self.model_of(exchange), attempt.worker if attempt else job.worker or alone)
        return tuple((kind, name) for kind, name in zip(KINDS, names, strict=True) if name)

    def members(self, live: Iterable[Exchange], key: Key) -> Iterator[Exchange]:
        """Yield those of a group that wait."""
        return (each for each in live if each.attempt is None and key in self.keys_of(each))

    def ended(self, exchange: Exchange, end: End) -> None:
        """Enter a request that had a slot."""
        if exchange.dispatched_s is None:
            return
        totals = exchange.totals
        is_short = totals.complete and LengthClass.of(totals.tokens or 0) is LengthClass.SHORT
        self._runs.append(
            Run(
                end.at_s,
                self.keys_of(exchange),
                exchange.service_s(end.at_s),
                exchange.waited_s(end.at_s),
                is_short,
                totals.load_s is not None and totals.load_s >= MIN_LOAD_S,
            )
        )

    def state(self, live: Iterable[Exchange]) -> tuple[GroupState, ...]:
        """Return the groups, the busiest of each kind first."""
        now = self.clock()
        if now - self._had[0] >= ENDED_EVERY_S:
            self._had = now, self._drawn(now)
        had = self._had[1]
        waiting, running, busy_s = Counter[Key](), Counter[Key](), had.busy_s.copy()
        alike = Counter[tuple[str, str, str, frozenset[str]]]()
        one_of = {}
        for exchange in live:
            if exchange.attempt is None:
                job = exchange.asked.job
                what = exchange.client, exchange.asked.parsed.model, job.worker, job.able
                alike[what] += 1
                one_of[what] = exchange
                continue
            had_s = exchange.service_s(now)
            for key in self.keys_of(exchange):
                running[key] += 1
                busy_s[key] += had_s
        for what, number in alike.items():  # thousands wait, of a few kinds
            for key in self.keys_of(one_of[what]):
                waiting[key] += number
        total_s = sum(seconds for (kind, _), seconds in busy_s.items() if kind == "backend") or 1.0
        every = waiting.keys() | running.keys() | busy_s.keys() | self.draining

        def rank(key: Key) -> tuple[float, float]:
            return waiting[key] + running[key], busy_s[key]

        shown = (nlargest(SHOWN, (key for key in every if key[0] == kind), rank) for kind in KINDS)
        return tuple(
            GroupState(
                *key,
                waiting=waiting[key],
                running=running[key],
                share=busy_s[key] / total_s,
                short_p50_s=had.short_p50_s.get(key),
                swaps=had.swaps[key],
                draining=key in self.draining,
            )
            for kind in shown
            for key in kind
        )

    def _drawn(self, now: float) -> Had:
        while self._runs and now - self._runs[0].at_s > WINDOW_S:
            self._runs.popleft()
        had = Had()
        short_s = defaultdict[Key, list[float]](list)
        for run in self._runs:
            for key in run.keys:
                had.busy_s[key] += run.busy_s
                had.swaps[key] += run.swapped
                if run.is_short:
                    short_s[key].append(run.wait_s)
        had.short_p50_s.update((key, median(waits)) for key, waits in short_s.items())
        return had
