"""Which contexts (KV cache entries) a server keeps of jobs that left its slots, and what a cut costs.

The cache is bounded. llama.cpp's host cache evicts the oldest entry first; semantic scheduling (section 3.3)
evicts the one that will run last. The entry with the highest `key` goes first. A job whose context is gone
has its prompt and its answer so far read again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

MAX_CONTEXTS = 1000
"""The most contexts tracked, whatever the room."""

USUAL_WEIGHT = 0.1
"""Weight of the latest value in the running mean."""


@dataclass(frozen=True, slots=True)
class _Context:
    tokens: float
    key: float
    waits: bool
    waited_for: bool


class Lost(NamedTuple):
    """A waiting job whose context was evicted, and the cache size in tokens that would have kept it."""

    job_id: str
    room_tokens: float


class KeptContexts:
    """The contexts in a cache of `room_tokens`. `usual_tokens` is the running mean context of ended jobs."""

    def __init__(self, room_tokens: float = inf) -> None:
        self.room_tokens = room_tokens
        self.used_tokens = 0.0
        self.usual_tokens = 0.0
        self._kept: dict[str, _Context] = {}
        self._next_out: list[tuple[float, str]] = []
        self._count = 0.0

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._kept

    def left(
        self,
        job_id: str,
        tokens: float,
        *,
        waits: bool = True,
        waited_for: bool = True,
        key: float | None = None,
    ) -> list[Lost]:
        """Keep the context of a job that leaves its slot; return the waiting jobs that lose theirs.

        `waits`: the job will be resumed; `waited_for`: it is interactive. With `key` None the oldest is
        evicted first. A context larger than the cache is not kept and evicts nothing, as in llama.cpp.
        """
        self.taken(job_id)
        if not waits:
            self.usual_tokens += USUAL_WEIGHT * (tokens - self.usual_tokens)
        if tokens > self.room_tokens:
            return [Lost(job_id, tokens)] if waits else []
        self._count += 1.0
        context = _Context(tokens, -self._count if key is None else key, waits, waited_for)
        self._kept[job_id] = context
        self.used_tokens += tokens
        heappush(self._next_out, (-context.key, job_id))
        lost = []
        while self.used_tokens > self.room_tokens or len(self._kept) > MAX_CONTEXTS:
            out = heappop(self._next_out)
            if self._is_current(out):
                used = self.used_tokens
                if self.taken(out[1]).waits:
                    lost.append(Lost(out[1], used))
        return lost

    def taken(self, job_id: str) -> _Context:
        """Remove the context of a job, which runs again."""
        context = self._kept.pop(job_id, NOTHING)
        self.used_tokens = self.used_tokens - context.tokens if self._kept else 0.0
        return context

    def ended(self, job_id: str) -> None:
        """Record that a job will not be resumed; its context stays, as the server does not know."""
        context = self._kept.get(job_id)
        if context is not None:
            self._kept[job_id] = replace(context, waits=False)

    @property
    def waiting(self) -> set[str]:
        """The jobs with a context here that wait to be resumed."""
        return {job_id for job_id, context in self._kept.items() if context.waits}

    def room_for(self, job_id: str) -> float:
        """Return the cache size in tokens that keeps this context: its own and all that are evicted after it;
        0 if it is not here.
        """
        context = self._kept.get(job_id)
        if context is None:
            return 0.0
        return sum(each.tokens for each in self._kept.values() if each.key <= context.key)

    def would_lose(self, tokens: float) -> Iterator[float]:
        """Yield the tokens of each interactive waiting job whose context `tokens` more would evict."""
        if self.used_tokens + tokens <= self.room_tokens or tokens > self.room_tokens:
            return
        over = self.used_tokens + tokens - self.room_tokens
        for context in sorted(self._kept.values(), key=lambda each: -each.key):
            if over <= 0.0:
                return
            over -= context.tokens
            if context.waits and context.waited_for:
                yield context.tokens

    def _is_current(self, out: tuple[float, str]) -> bool:
        context = self._kept.get(out[1])
        return context is not None and -context.key == out[0]


NOTHING = _Context(0.0, 0.0, waits=False, waited_for=False)


class CutPrice(NamedTuple):
    """The cost of a cut in seconds: to resume the job, and of the contexts it evicts."""

    resume_s: float
    evicts_s: float = 0.0


def price_of_cut(
    kept: KeptContexts, tokens: float, resume_s: float, reread_s: Callable[[float], float]
) -> CutPrice:
    """Return the cost of cutting a job now that has `tokens` of context, prompt and answer.

    Its context survives if the cache also has room for that of the job that takes its slot. `resume_s` is the
    cost of resuming from a kept context, `reread_s(tokens)` that of prefill. Resuming from the cache was
    cheaper wherever it was measured (semantic scheduling, Eq. 3).
    """
    lost = tokens + kept.usual_tokens > kept.room_tokens
    evicts_s = sum(reread_s(each) for each in kept.would_lose(tokens))
    return CutPrice(resume_s + (reread_s(tokens) if lost else 0.0), evicts_s)
