"""What a server's KV cache is assumed to hold of cut answers.

No server reports the contents of its cache. `KvCache` follows the contexts of one server and learns its size
from what is still there when an answer continues. The oldest context is evicted first, as in llama.cpp's host
cache. A job whose context is gone has its prompt and its answer so far read again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile
from math import inf
from typing import NamedTuple

MAX_CONTEXTS = 1000
"""The most contexts tracked, whatever the room."""

USUAL_WEIGHT = 0.1
"""Weight of the latest value in the running mean."""


@dataclass(frozen=True, slots=True)
class _Context:
    tokens: float
    waits: bool
    waited_for: bool


class KvCache:
    """The contexts in the cache of one server, in tokens.

    Its size is `room_tokens`: given, or learned. It holds `at_least` the tokens of a context that was still
    there, and not the `at_most` of one that was gone. `usual_tokens` is the running mean context of ended
    jobs.
    """

    def __init__(self, room_tokens: float = inf) -> None:
        self.room_tokens = room_tokens
        self.at_least, self.at_most = 0.0, inf
        self.used_tokens = 0.0
        self.usual_tokens = 0.0
        self._kept: dict[str, _Context] = {}  # the oldest first
        self._lost: dict[str, float] = {}  # waiting job -> the cache size that would have kept its context

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._kept

    @property
    def waiting(self) -> set[str]:
        """The jobs that wait to be resumed, whether or not their contexts are still there."""
        return self._lost.keys() | {job_id for job_id, context in self._kept.items() if context.waits}

    def left(
        self, job_id: str, tokens: float, *, waits: bool = True, waited_for: bool = True
    ) -> dict[str, float]:
        """Keep the context of a job that leaves its slot; return the waiting jobs that lose
        theirs, each with the cache size in tokens that would have kept it.

        `waits`: the job will be resumed; `waited_for`: it is interactive. A context larger than the cache is
        not kept and evicts nothing, as in llama.cpp.
        """
        self._lost.pop(job_id, None)
        self.taken(job_id)
        if not waits:
            self.usual_tokens += USUAL_WEIGHT * (tokens - self.usual_tokens)
        if tokens > self.room_tokens:
            lost = {job_id: tokens} if waits else {}
            self._lost |= lost
            return lost
        self._kept[job_id] = _Context(tokens, waits, waited_for)
        self.used_tokens += tokens
        lost = dict[str, float]()
        while self.used_tokens > self.room_tokens or len(self._kept) > MAX_CONTEXTS:
            oldest, used = next(iter(self._kept)), self.used_tokens
            if self.taken(oldest).waits:
                lost[oldest] = used
        self._lost |= lost
        return lost

    def taken(self, job_id: str) -> _Context:
        """Remove the context of a job, which runs again."""
        context = self._kept.pop(job_id, NOTHING)
        self.used_tokens = self.used_tokens - context.tokens if self._kept else 0.0
        return context

    def ended(self, job_id: str) -> None:
        """Record that a job will not be resumed; its context stays, as the server does not know."""
        self._lost.pop(job_id, None)
        context = self._kept.get(job_id)
        if context is not None:
            self._kept[job_id] = replace(context, waits=False)

    def resumed(self, job_id: str, was_there: bool | None) -> None:
        """Record that a job is resumed, and learn the cache's size; `was_there` is None if it is unknown."""
        needed = self._lost.pop(job_id, 0.0) or self.room_for(job_id)
        self.taken(job_id)
        if needed and was_there is not None:
            self.learn(needed, was_there=was_there)

    def learn(self, tokens: float, *, was_there: bool) -> None:
        """Learn from whether a context was still there that a cache of this size would have kept."""
        if was_there:
            self.at_least = max(self.at_least, tokens)
            if self.at_most <= self.at_least:
                self.at_most = inf  # what was gone had another cause
        else:
            self.at_most = min(self.at_most, tokens)
            if self.at_least >= self.at_most:
                self.at_least = 0.0
        self.room_tokens = inf if self.at_most == inf else (self.at_least + self.at_most) / 2.0

    def room_for(self, job_id: str) -> float:
        """Return the cache size in tokens that keeps this context and all newer ones; 0 if it is not here."""
        since = dropwhile(lambda kept: kept[0] != job_id, self._kept.items())
        return sum(context.tokens for _, context in since)

    def would_lose(self, tokens: float) -> Iterator[float]:
        """Yield the tokens of each interactive waiting job whose context `tokens` more would evict."""
        if self.used_tokens + tokens <= self.room_tokens or tokens > self.room_tokens:
            return
        over = self.used_tokens + tokens - self.room_tokens
        for context in self._kept.values():
            if over <= 0.0:
                return
            over -= context.tokens
            if context.waits and context.waited_for:
                yield context.tokens


NOTHING = _Context(0.0, waits=False, waited_for=False)


class CutPrice(NamedTuple):
    """The cost of a cut in seconds: to resume the job, and of the contexts it evicts."""

    resume_s: float
    evicts_s: float = 0.0


def price_of_cut(
    cache: KvCache, tokens: float, resume_s: float, reread_s: Callable[[float], float]
) -> CutPrice:
    """Return the cost of cutting a job now that has `tokens` of context, prompt and answer.

    Its context survives if the cache also has room for that of the job that takes its slot. `resume_s` is the
    cost of resuming from a kept context, `reread_s(tokens)` that of prefill. Resuming from the cache was
    cheaper wherever it was measured (semantic scheduling, Eq. 3).
    """
    lost = tokens + cache.usual_tokens > cache.room_tokens
    evicts_s = sum(reread_s(each) for each in cache.would_lose(tokens))
    return CutPrice(resume_s + (reread_s(tokens) if lost else 0.0), evicts_s)
