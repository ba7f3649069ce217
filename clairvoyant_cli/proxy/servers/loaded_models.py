"""What is loaded in a server that swaps models, and what swapping costs.

Ollama swaps models on demand, in 5 to 30 s; a queue that ignores this alternates between two models and
serves neither.
"""

import re
from collections.abc import Callable, Iterable

from clairvoyant_cli.backends.kinds.ollama import full_name
from clairvoyant_cli.protocols.probes import LoadedModel
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.queue.exchange import Attempt, Phase
from clairvoyant_cli.scheduler.queue import Scheduler

ASSUMED_LOAD_S = 8.0  # until a load has been measured: a 5 GB model from an ordinary SSD
MIN_LOAD_S = 0.5  # Ollama reports a few milliseconds of `load_duration` for a model that was there already
LONGEST_LOAD_S = 600.0  # Ollama gives up after five minutes (OLLAMA_LOAD_TIMEOUT): longer reports are wrong
ASKED_CONTEXT = re.compile(r" num_ctx=([0-9]+)")
LEAST_CONTEXT = 2048  # that a model which reads images is loaded with, whatever is asked (server/sched.go)
MAX_AFFINITIES = 200  # load times that are remembered, by last use: clients choose the runner's options


def asked_context(parsed: ParsedRequest) -> int | None:
    """Return the context that a request asks for (`num_ctx`), in tokens."""
    asked = ASKED_CONTEXT.search(parsed.affinity)
    return int(asked[1]) if asked else None


class LoadedModels:
    """Keeps a scheduler's residency in step with one server.

    Only models that the server has answered for, or lists as loaded, have a load time of their own; others
    have the assumed one. So made-up names do not affect real models.
    """

    def __init__(self, scheduler: Scheduler, server: str, known_as: Callable[[str], str] = full_name) -> None:
        self._residency = scheduler.fleet.residency
        self._residency.unknown_s = ASSUMED_LOAD_S
        self._server = server
        self._listed_as = known_as
        self._affinity_of: dict[str, str] = {}  # a model's listed name -> what was asked of it last
        self._contexts: dict[str, int] = {}  # what was asked -> the context that it was loaded with

    def _known_as(self, model: str) -> str:
        # One spelling for all servers: a request may go to Ollama or to a llama.cpp router.
        return full_name(self._listed_as(model))

    def affinity_of(self, parsed: ParsedRequest) -> str:
        """Return what a request needs loaded, in one spelling."""
        if not parsed.model:
            return ""
        return self._known_as(parsed.model) + parsed.affinity.removeprefix(parsed.model)

    def is_plain(self, model: str) -> bool:
        """Whether a model was asked for with no option but a context, as far as is known."""
        return " " not in ASKED_CONTEXT.sub("", self._affinity_of.get(self._known_as(model), ""))

    def context_of(self, parsed: ParsedRequest) -> int | None:
        """Return the context for a request, in tokens: what it asks for, or that of the model as it was
        loaded for the last such request; None if unknown. At most this is what it gets.
        """
        asked, loaded = asked_context(parsed), self._contexts.get(self.affinity_of(parsed))
        return max(asked, LEAST_CONTEXT, loaded or 0) if asked else loaded

    def answered(self, attempt: Attempt, status: int, *, is_first: bool = True) -> None:
        """Learn from an answer whether its model was loaded, and how long that took; errors do not count.

        Only the first part of an answer tells that by its beginning.
        """
        job_id, affinity = attempt.run.job.id, attempt.run.job.affinity
        load_s = attempt.totals.load_s
        if load_s is None and is_first:
            load_s = self._seen_load_s(attempt)
        if not 200 <= status < 300 or attempt.totals.error:
            self._residency.not_loaded(self._server, job_id)
            return
        if not affinity:
            return
        was_there = load_s is not None and load_s < MIN_LOAD_S
        record = self._residency.was_there if was_there else self._residency.loaded
        record(self._server, job_id)
        learned = load_s is not None and MIN_LOAD_S <= load_s <= LONGEST_LOAD_S
        self._remember(affinity, load_s if learned else None)
        self._affinity_of[self._known_as(attempt.asked.parsed.model)] = affinity

    def listed(self, names: Iterable[str], attempts: Iterable[Attempt]) -> None:
        """Update from the server's list of loaded models, unless one may be loading."""
        if _may_load(attempts):
            return
        names = [self._known_as(name) for name in names]
        loaded = {self._affinity_of.get(name, name) for name in names}
        for affinity in loaded:
            self._remember(affinity, None)
        if loaded:
            self._residency.set(self._server, frozenset(loaded))

    def loaded_with(self, models: Iterable[LoadedModel], attempts: Iterable[Attempt]) -> None:
        """Take over the contexts that the server has just listed, unless a model may be loading. A model that
        was not loaded for a request from here may have another context than for one.
        """
        if not _may_load(attempts):
            listed = {self._known_as(each.name): each.context for each in models if each.context}
            known = ((self._affinity_of.get(name), context) for name, context in listed.items())
            self._contexts = {affinity: context for affinity, context in known if affinity}

    def _seen_load_s(self, attempt: Attempt) -> float | None:
        """Return how long a load took by the time before the answer, where the server tells the rest."""
        totals = attempt.totals
        if attempt.first_byte_s is None or attempt.usage is None or totals.prefill_s is None:
            return None
        if not self._residency.swaps(self._server, attempt.run.job.id, ""):
            return None
        worked_s = totals.prefill_s + (0.0 if attempt.usage.streaming else totals.decode_s or 0.0)
        return max(attempt.first_byte_s - attempt.run.started_s - worked_s, 0.0)

    def _remember(self, affinity: str, load_s: float | None) -> None:
        """Remember a load time as the last used; None keeps the known one."""
        prices = self._residency.load_s
        known_s = prices.pop(affinity, ASSUMED_LOAD_S)
        if len(prices) >= MAX_AFFINITIES:
            forgotten = next(iter(prices))
            del prices[forgotten]
            self._affinity_of = {n: kept for n, kept in self._affinity_of.items() if kept != forgotten}
        prices[affinity] = known_s if load_s is None else load_s


def _may_load(attempts: Iterable[Attempt]) -> bool:
    return any(attempt.phase in (Phase.CONNECTING, Phase.PREFILL) for attempt in attempts)
