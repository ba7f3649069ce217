"""What is loaded in a backend that swaps models, and what swapping costs, as the scheduler must know it.

Ollama loads a model on demand and may throw another out for it, which takes 5 to 30 s; a queue that does
not know goes back and forth between two models and serves neither.
"""

from collections.abc import Iterable

from clairvoyant_cli.proxy.exchange import Exchange, Phase
from clairvoyant_cli.scheduler.queue import Scheduler

ASSUMED_LOAD_S = 8.0
"""Until a load has been measured: a 5 GB model from an ordinary SSD."""

LEAST_LOAD_S = 0.5
"""Ollama reports a few milliseconds of `load_duration` for a model that was there already."""

LONGEST_LOAD_S = 600.0
"""Ollama gives up after five minutes (OLLAMA_LOAD_TIMEOUT): what says it took longer is wrong."""

MOST_AFFINITIES = 200
"""Clients choose model names: what is remembered of them is bounded."""


class Residents:
    """Keeps a scheduler's residency in step with one backend."""

    def __init__(self, scheduler: Scheduler, worker: str) -> None:
        self._residency = scheduler.residency
        self._worker = worker
        self._affinity_of: dict[str, str] = {}

    def arrived(self, exchange: Exchange) -> None:
        """A request that may need another model: it has a price from now on."""
        prices = self._residency.load_s
        if exchange.job.affinity and exchange.job.affinity not in prices and len(prices) < MOST_AFFINITIES:
            prices[exchange.job.affinity] = ASSUMED_LOAD_S

    def answered(self, exchange: Exchange) -> None:
        """An answer tells whether its model had to be loaded, and how long that took."""
        affinity, load_s = exchange.job.affinity, exchange.totals.load_s
        if affinity not in self._residency.load_s:
            return
        self._affinity_of[full_name(exchange.facts.model)] = affinity
        if load_s is not None and LEAST_LOAD_S <= load_s <= LONGEST_LOAD_S:
            self._residency.load_s[affinity] = load_s

    def listed(self, names: Iterable[str], live: Iterable[Exchange]) -> None:
        """The backend has listed its loaded models; while one may be loading, the list tells nothing."""
        if any(each.phase in (Phase.CONNECTING, Phase.PREFILL) for each in live):
            return
        loaded = frozenset(self._affinity_of[name] for name in names if name in self._affinity_of)
        if loaded:
            self._residency.set(self._worker, loaded)


def full_name(model: str) -> str:
    """Return a model's name as Ollama lists it, with its tag."""
    return model if ":" in model else f"{model}:latest"
