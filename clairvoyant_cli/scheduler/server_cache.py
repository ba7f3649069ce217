"""What a server still has in its KV cache: conversations, and the contexts of preempted answers.

No server lists the contents of its cache, so they are derived: each answer leaves its context in its slot,
what the slots no longer hold goes to a cache behind them, and the least recently used is evicted first, as in
llama.cpp's host cache. What is gone has to be read again. What servers report of an answer (tokens taken from
the cache), and how soon a preempted answer goes on, corrects this: the size is learned from contexts that
were still there or gone, and `reuse` from the most recent one, which a server with sliding windows or
recurrent layers may drop whole.

Example: one slot, and a cache behind it of 10,000 tokens. Contexts of 6,000 (a), 3,000 (b) and 2,000 (c) were
used in this order; c is in the slot, and behind it are b and a, 9,000 tokens. The next prompt moves c behind
the slot: 11,000 tokens, so that a is evicted. To keep a, the cache would have to hold 11,000 then
(`needs_tokens`). If the server reports nevertheless that a came from its cache, it holds at least as many; if
a had to be read again, it holds fewer.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain

MAX_CONTEXTS = 1000
"""The most contexts that are tracked per server, those that should be evicted included: one that is still
there shows that the cache is larger than assumed."""

MAX_PIECES = 200_000  # the most pieces of tracked conversations

KEPT_SHARE = 0.5
"""A conversation counts as kept if at least this share of it came from the cache: templates drop thinking."""

TELLING_TOKENS = 50.0
"""Where fewer tokens are in one conversation alone, nothing is learned from whether they were cached."""

REUSE_WEIGHT = 0.3

USUAL_WEIGHT = 0.1  # weight of the latest value in the running mean of contexts
OTHERS_FOR_S = 60.0  # how long requests outside sessions count as traffic that needs room in the cache


@dataclass(slots=True, eq=False)
class Kept:
    """A context: of `tokens`, `prompt_tokens` are the last prompt, the rest is its answer."""

    job_id: str
    session: str
    chain: Chain
    prompt_tokens: float
    tokens: float
    waits: bool = False  # its answer was preempted, and will be continued
    interactive: bool = True  # it is interactive
    lost: bool = False  # it waits, but should be evicted

    def shares(self, chain: Chain, at: int) -> float:
        """Return the tokens it has of a prompt that has its pieces up to piece `at`."""
        if self.chain.hashes[-1] == chain.hashes[at]:
            return self.tokens
        return self.prompt_tokens * chain.characters[at] / max(self.chain.length, 1)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a server should have of a prompt."""

    tokens: float = 0.0
    if_kept: float = 0.0  # of its conversation, whether or not it is evicted
    needs_tokens: float = 0.0  # the size of the cache behind the slots that keeps it, 0 if the slots alone do
    shared: float = 0.0  # that others have of it
    before: Kept | None = None  # the conversation that the prompt goes on with, or repeats


NOTHING = Expected()


class PreemptionPrice(NamedTuple):
    """The cost of a preemption in seconds: to resume the job, and of the contexts it evicts."""

    resume_s: float
    evicts_s: float = 0.0


class ServerCache:
    """The contexts of one server, the least recently used first. The last `slots` stay in any case."""

    def __init__(self, slots: int = 1, room_tokens: float = inf) -> None:
        self.slots = slots
        self.room_tokens = room_tokens  # behind the slots: infinite until a context was gone
        self.reuse = 1.0
        self.usual_tokens = 0.0  # the running mean context of ended answers
        self._at_least, self._at_most = 0.0, inf
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._where: dict[int, list[Kept]] = {}
        self._pieces = 0
        # The latest request outside any session, which takes a slot and room from the sessions.
        self.other_tokens, self.other_s = 0.0, -inf

    @property
    def size(self) -> tuple[float, float]:
        """The limits of its size in tokens: what it was seen to hold, and what not."""
        return self._at_least, self._at_most

    @size.setter
    def size(self, limits: tuple[float, float]) -> None:
        self._at_least, self._at_most = limits
        self.room_tokens = inf if self._at_most == inf else (self._at_least + self._at_most) / 2.0

    @property
    def keeps_all(self) -> bool:
        """Whether it kept what the slots did not, and never lost anything."""
        return self._at_most == inf and self._at_least > 0.0

    @property
    def contexts(self) -> Collection[Kept]:
        """The contexts that it may hold."""
        return self._kept.values()

    @property
    def waiting(self) -> set[str]:
        """The jobs that wait to be continued, whether or not their contexts are still there."""
        return {context.job_id for context in self._kept.values() if context.waits}

    def emptied(self) -> "ServerCache":
        """Return the cache after a restart of its server."""
        cache = ServerCache(self.slots)
        cache.size = self.size
        return cache

    def expected(self, chain: Chain) -> Expected:
        """Return what should be cached of a prompt: of the conversation that shares most with it, or, if that
        should be evicted, of another one that shares anything.
        """
        at = self._shared_pieces(chain) - 1
        if at < 0:
            return NOTHING
        last, found = chain.hashes[at], self._where[chain.hashes[at]]
        before = next((context for context in reversed(found) if context.chain.hashes[-1] == last), None)
        kept, shared = before or found[-1], 0.0
        if len(self._where[chain.hashes[0]]) > 1:
            others = self._shared_pieces(chain, kept) - 1
            other = next(context for context in self._where[chain.hashes[others]] if context is not kept)
            if self._needed(other) <= self.room_tokens:
                shared = other.shares(chain, others)
        needs, tokens = self._needed(kept), kept.shares(chain, at)
        cached = tokens if needs <= self.room_tokens else shared
        return Expected(cached * self.reuse, tokens, needs, min(shared, tokens), before)

    def started(self, job_id: str, chain: Chain, prompt_tokens: float, session: str = "") -> Expected:
        """Record that a slot now reads a prompt; return what it should have had of it. The conversation takes
        the place of its earlier turn.
        """
        expected = self.expected(chain)
        if expected.before is not None and not expected.before.waits:
            self._remove(expected.before.job_id)
        self.dropped(job_id)
        if not chain.hashes:
            return expected
        added = self._add(Kept(job_id, session, chain, prompt_tokens, prompt_tokens))
        for piece in chain.hashes:
            self._where.setdefault(piece, []).append(added)
        self._pieces += len(chain.hashes)
        while self._pieces > MAX_PIECES and len(self._kept) > 1:
            self._remove(next(iter(self._kept)))
        return expected

    def _add(self, kept: Kept) -> Kept:
        self._kept[kept.job_id] = kept
        if len(self._kept) > MAX_CONTEXTS:
            self._remove(next(iter(self._kept)))
        return kept

    def answered(self, job_id: str, prompt_tokens: float, tokens: float) -> None:
        """Record the real numbers of tokens of a prompt and its answer."""
        kept = self._kept.get(job_id)
        if kept is not None:
            kept.prompt_tokens, kept.tokens = prompt_tokens, prompt_tokens + tokens
            self._kept.move_to_end(job_id)

    def dropped(self, job_id: str) -> None:
        """Record that a prompt was not read."""
        if job_id in self._kept:
            self._remove(job_id)

    def left(self, job_id: str, tokens: float, *, waits: bool = True, interactive: bool = True) -> list[str]:
        """Record the context of a job that leaves its slot; return the waiting jobs that lose theirs.

        `waits`: the job will be continued; `interactive`: it is interactive. A context larger than the cache
        is not kept and evicts nothing.
        """
        kept = self._kept.get(job_id) or self._add(Kept(job_id, "", NO_CHAIN, tokens, tokens))
        if waits:
            kept.tokens = tokens
        else:
            tokens = kept.tokens  # as its server said, if it did
            self.usual_tokens += USUAL_WEIGHT * (tokens - self.usual_tokens)
        kept.waits, kept.interactive, kept.lost = waits, interactive, False
        self._kept.move_to_end(job_id)
        if self.room_tokens == inf:
            return []
        lost = [*self._evicted_by(job_id, tokens), *[kept] * (waits and tokens > self.room_tokens)]
        for context in lost:
            context.lost = True
        return [context.job_id for context in lost]

    def ended(self, job_id: str) -> None:
        """Record that a job will not be continued; its context stays, as the server does not know."""
        if job_id in self._kept:
            self._kept[job_id].waits = False

    def _evicted_by(self, job_id: str, tokens: float) -> Iterator[Kept]:
        """Yield the contexts of other waiting jobs that are evicted once this job's leaves its slot."""
        needed, in_slots = tokens, self.slots - 1
        if tokens > self.room_tokens or self.room_tokens == inf:
            return
        for context in reversed(self._kept.values()):
            if context.job_id == job_id:
                continue
            if in_slots > 0:
                in_slots -= 1
            elif context.tokens <= self.room_tokens:
                needed += context.tokens
                if needed > self.room_tokens and context.waits and not context.lost:
                    yield context

    def price_of_preemption(
        self, job_id: str, tokens: float, resume_s: float, reread_s: Callable[[float], float]
    ) -> PreemptionPrice:
        """Return the cost of preempting a job now that has `tokens` of context, prompt and answer.

        Its context survives if the cache also has room for that of the job that takes its slot. `resume_s` is
        the cost of resuming from a kept context, `reread_s(tokens)` that of prefill. Resuming from the cache
        was cheaper wherever it was measured (semantic scheduling, Eq. 3).
        """
        lost = tokens + self.usual_tokens > self.room_tokens
        evicted = (context.tokens for context in self._evicted_by(job_id, tokens) if context.interactive)
        return PreemptionPrice(resume_s + (reread_s(tokens) if lost else 0.0), sum(map(reread_s, evicted)))

    def learn_cached(self, expected: Expected, cached_tokens: float) -> None:
        """Learn from how much of a prompt came from the cache, in tokens."""
        own_tokens = expected.if_kept - expected.shared
        if own_tokens < TELLING_TOKENS:
            return
        if expected.needs_tokens:
            was_there = cached_tokens - expected.shared >= KEPT_SHARE * self.reuse * own_tokens
            self.continued(expected, was_there=was_there)
        else:
            share = min(cached_tokens / expected.if_kept, 1.0)
            self.reuse = max(0.01, self.reuse + REUSE_WEIGHT * (share - self.reuse))

    def continued(self, expected: Expected, *, was_there: bool) -> None:
        """Learn from whether a context was still there when its conversation or its answer went on."""
        needed = expected.needs_tokens
        if needed and was_there:
            at_least = max(self._at_least, needed)
            self.size = at_least, max(self._at_most, at_least)
        elif needed:
            at_most = min(self._at_most, needed)
            self.size = 0.0 if self._at_least >= at_most else self._at_least, at_most

    @property
    def holds_any(self) -> bool:
        """Whether sessions need no turns, as far as is known."""
        return self.room_tokens == inf

    def holds(self, contexts: list[float], now: float, *, surely: bool = False) -> bool:
        """Return whether sessions with these numbers of tokens can be served in turns without evicting each
        other, beside the requests outside sessions that were served recently. `surely`: it was seen to hold
        as many tokens.
        """
        others = [self.other_tokens] if now - self.other_s < OTHERS_FOR_S else []
        behind = sorted(contexts + others)[self.slots :]  # at worst, the slots hold the smallest
        room_tokens = self._at_least if surely else self.room_tokens
        return len(contexts) <= 1 or sum(behind) <= room_tokens

    def evicts(self, chain: Chain) -> bool:
        """Return whether one more request would evict the conversation of a chain."""
        kept = self.expected(chain).before
        if kept is None:
            return False
        return self._needed(kept) <= self.room_tokens < self._needed(kept, more=1)

    def _shared_pieces(self, chain: Chain, without: Kept | None = None) -> int:
        """Return how many pieces of a prompt any conversation has, other than one."""
        low, high = 0, len(chain.hashes)  # a conversation that has a piece has all before it, too
        while low < high:
            middle = (low + high) // 2
            found = self._where.get(chain.hashes[middle], ())
            if len(found) > 1 or (found and found[0] is not without):
                low = middle + 1
            else:
                high = middle
        return low

    def _needed(self, kept: Kept, more: int = 0) -> float:
        """Return the cache size that keeps a conversation once `more` are served; 0 if the slots do."""
        needed, in_slots = 0.0, self.slots - more
        for context in reversed(self._kept.values()):
            if in_slots <= 0:
                needed += context.tokens
            in_slots -= 1
            if context is kept:
                break
        return needed

    def _remove(self, job_id: str) -> None:
        kept = self._kept.pop(job_id)
        self._pieces -= len(kept.chain.hashes)
        for piece in kept.chain.hashes:
            found = self._where[piece]
            found.remove(kept)
            if not found:
                del self._where[piece]
