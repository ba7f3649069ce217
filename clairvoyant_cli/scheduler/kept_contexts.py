"""Which contexts (KV caches) a server still keeps of jobs that left its slots, and what a cut costs by that.

A cache is bounded. llama.cpp's on the host lets the one go first that was put there first; semantic
scheduling (section 3.3) lets the one go that will run last, by a second heap in the dual order of its queue.
`key` says who goes: the highest first. A job whose context is gone has its prompt, and what it has said, read
again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

MAX_CONTEXTS = 1000
"""Beyond so many the next to go is forgotten, room or not."""

USUAL_WEIGHT = 0.1
"""Of the latest in the running mean."""


@dataclass(frozen=True, slots=True)
class _Context:
    tokens: float
    key: float
    waits: bool
    waited_for: bool


class Lost(NamedTuple):
    """A waiting job whose context has gone, and how many tokens the cache would have to hold to keep it."""

    job_id: str
    room_tokens: float


class KeptContexts:
    """The contexts in a cache of `room_tokens`, in tokens. `usual_tokens` is a running mean of what jobs that
    have ended leave behind.
    """

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
        """Keep what a job leaves behind in its slot; return who that waits to go on loses its own, itself
        perhaps. `waited_for` says whether anybody minds should it be read again.

        `key` None lets the oldest go first. What is over the room by itself is not kept, and nothing goes for
        it, as in llama.cpp.
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
        """Take out what a job left: it runs again."""
        context = self._kept.pop(job_id, NOTHING)
        self.used_tokens = self.used_tokens - context.tokens if self._kept else 0.0
        return context

    def ended(self, job_id: str) -> None:
        """A job will not go on; what it left is kept all the same, as a server does that does not know."""
        context = self._kept.get(job_id)
        if context is not None:
            self._kept[job_id] = replace(context, waits=False)

    @property
    def waiting(self) -> set[str]:
        """The jobs that wait to go on, of those whose contexts are here."""
        return {job_id for job_id, context in self._kept.items() if context.waits}

    def room_for(self, job_id: str) -> float:
        """Return the tokens that a cache must hold to have kept this context: its own, and those of all that
        go after it; 0 if it is not here.
        """
        context = self._kept.get(job_id)
        if context is None:
            return 0.0
        return sum(each.tokens for each in self._kept.values() if each.key <= context.key)

    def would_lose(self, tokens: float) -> Iterator[float]:
        """Yield the tokens of each job whose context would go if so many more were kept, and that somebody
        waits for.
        """
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
    """What a cut costs in seconds: the job itself when it goes on, and others whose contexts go for it."""

    resume_s: float
    evicts_s: float = 0.0


def price_of_cut(
    kept: KeptContexts, tokens: float, resume_s: float, reread_s: Callable[[float], float]
) -> CutPrice:
    """Return what it costs to cut a job of so many tokens now, prompt and answer.

    It is kept if there is room for what the job that takes its slot leaves behind, too. `resume_s` is the
    price of going on with a context that is kept, `reread_s` that of reading so many tokens. Bringing back
    what is kept is the cheaper wherever it was measured (the threshold of semantic scheduling, Eq. 3), and
    where it is not kept there is no choice.
    """
    lost = tokens + kept.usual_tokens > kept.room_tokens
    evicts_s = sum(reread_s(each) for each in kept.would_lose(tokens))
    return CutPrice(resume_s + (reread_s(tokens) if lost else 0.0), evicts_s)
