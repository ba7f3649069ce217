"""Keeps the place of a request whose client gave up waiting, for when it sends the request again.

Many clients have a time-out and send the same request again after it. As new requests these would always be
the youngest: two of them swap places at each time-out, and tau never reaches them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf
from weakref import WeakKeyDictionary

from clairvoyant_cli.http.limits import ConnectedClient
from clairvoyant_cli.proxy.queue.ended import Ended, Outcome
from clairvoyant_cli.scheduler.chain import Chain

KEPT_S = 60.0  # how long a place is kept: clients send again after 0.3 to 31 s
MAX_KEPT = 2000


@dataclass(frozen=True, slots=True)
class Left:
    """A request whose client has left: its id, how long it was there, and when it ended."""

    id: str
    age_s: float
    left_s: float

    @property
    def next_id(self) -> str:
        first, _, attempts = self.id.partition(".")
        return f"{first}.{int(attempts or 1) + 1}"


@dataclass(slots=True)
class Resubmissions:
    """The requests whose clients left before any answer. One is the same as another if its principal,
    session, model and prompt are equal, however the body is written. Where too many are kept, the oldest of
    the principal with the most is dropped.
    """

    moved: WeakKeyDictionary[ConnectedClient, Left] = field(default_factory=WeakKeyDictionary)
    """The requests that another daemon has passed on, by connection."""
    _left: dict[str, OrderedDict[tuple[str, int], Left]] = field(default_factory=dict)
    _number: int = 0  # of all principals
    _emptied_s: float = -inf  # when nothing waited last

    def ended(self, ended: Ended) -> None:
        """Keep the age of a request that ended without an answer because its client left, or that was refused
        when it was sent again, as it may be sent once more.
        """
        left = ended.outcome is Outcome.CLIENT_CANCELLED and ended.ttft_s is None
        if not (left or (ended.kept_age_s and not ended.was_queued)):
            return
        if ended.prompt_hash is None:
            return
        key = ended.claimed, ended.prompt_hash
        kept = self._left.setdefault(ended.principal, OrderedDict())
        self._number += key not in kept
        kept[key] = Left(ended.id, ended.ended_s - ended.arrival_s, ended.ended_s)
        kept.move_to_end(key)
        if self._number > MAX_KEPT:
            most = max(self._left, key=lambda client: len(self._left[client]))
            self._take(most, next(iter(self._left[most])))

    def take(
        self, client: str, claimed: str, chain: Chain, now: float, *, waiting: int, moved: Left | None = None
    ) -> tuple[Left, float] | None:
        """Return the request that this one is again, and the age that it keeps, in seconds; None if there is
        none. It is returned once. Call it for each request, with how many are `waiting`: time in which nobody
        waited adds no age. One that was `moved` is known.
        """
        if not (waiting or moved):
            self._emptied_s = now
        left = moved or (self._take(client, (claimed, chain.hashes[-1])) if chain.hashes else None)
        if left is None or now - left.left_s > KEPT_S:
            return None
        return left, left.age_s + now - max(left.left_s, self._emptied_s)

    def _take(self, client: str, key: tuple[str, int]) -> Left | None:
        kept = self._left.get(client, OrderedDict())
        left = kept.pop(key, None)
        self._number -= left is not None
        if not kept:
            self._left.pop(client, None)
        return left
