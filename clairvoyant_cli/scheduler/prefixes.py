"""Which conversation each worker's KV cache is believed to hold, so that its next turn goes back there.

A conversation is known by a chain of hashes, one for its system prompt and one for each of the user's
turns; two that begin alike share the beginning of their chains, and a cache that holds the one holds that
much of the other. Hashes alone come here, no text.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Link(NamedTuple):
    """The beginning of a conversation, up to a turn of the user's: its hash, and its tokens with the answer
    to that turn, as far as they are known.
    """

    hash: int
    tokens: float


Chain = tuple[Link, ...]

NOTHING: Mapping[str, float] = {}


class Prefixes:
    """The conversations that were last served on each worker, as many as its cache keeps."""

    def __init__(self) -> None:
        self._kept: dict[str, OrderedDict[int, Chain]] = {}
        self._where: dict[int, dict[str, int]] = {}  # hash -> worker -> how many kept chains have it

    def served(self, worker: str, chain: Chain, keeps: int) -> None:
        """Take note that a worker holds this conversation now, and the last `keeps` in all."""
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
        """Take note that a worker holds nothing any more: it is gone, or was restarted."""
        for chain in self._kept.pop(worker, OrderedDict()).values():
            self._drop(worker, chain)

    def cached_tokens(self, chain: Chain) -> Mapping[str, float]:
        """Return how many tokens of a conversation each worker holds, of those that hold any."""
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
    """Return under which hash an earlier turn of a conversation is kept, its own if none is."""
    return next((link.hash for link in reversed(chain) if link.hash in kept), chain[-1].hash)
