"""Which conversations each worker's KV cache is assumed to hold, so that their next turns go there.

A conversation is identified by a chain of hashes: one for its system prompt and one per user turn.
Conversations with a common beginning share the beginning of their chains and of their cache entries. Only
hashes are stored, no text.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Link(NamedTuple):
    """The beginning of a conversation up to a user turn: its hash, and its tokens including the answer."""

    hash: int
    tokens: float


Chain = tuple[Link, ...]

NOTHING: Mapping[str, float] = {}


class Prefixes:
    """The last conversations served on each worker, as many as its KV cache keeps."""

    def __init__(self) -> None:
        self._kept: dict[str, OrderedDict[int, Chain]] = {}
        self._where: dict[int, dict[str, int]] = {}  # hash -> worker -> how many kept chains have it

    def served(self, worker: str, chain: Chain, keeps: int) -> None:
        """Record that a worker now holds this conversation, and the last `keeps` in total."""
        if not chain:
            return
        kept = self._kept.setdefault(worker, OrderedDict())
        self._drop(worker, kept.pop(_conversation(chain, kept), ()))
        kept[chain[-1].hash] = chain
        for link in chain:
            at = self._where.setdefault(link.hash, {})
            at[worker] = at.get(worker, 0) + 1
        while len(kept) > keeps:
            self._drop(worker, kept.popitem(last=False)[1])

    def forget(self, worker: str) -> None:
        """Record that a worker lost its cache: it is gone or was restarted."""
        for chain in self._kept.pop(worker, OrderedDict()).values():
            self._drop(worker, chain)

    def cached_tokens(self, chain: Chain) -> Mapping[str, float]:
        """Return the tokens of a conversation that each worker holds; workers without any are left out."""
        if not chain or not self._where:
            return NOTHING
        found: dict[str, float] = {}
        for link in reversed(chain):
            for worker in self._where.get(link.hash, ()):
                found.setdefault(worker, link.tokens)
        return found

    def _drop(self, worker: str, chain: Sequence[Link]) -> None:
        for link in chain:
            at = self._where[link.hash]
            at[worker] -= 1
            if not at[worker]:
                del at[worker]
            if not at:
                del self._where[link.hash]


def _conversation(chain: Chain, kept: Mapping[int, Chain]) -> int:
    """Return the hash under which an earlier turn is kept, its own if none is."""
    return next((link.hash for link in reversed(chain) if link.hash in kept), chain[-1].hash)
