"""Keeps the place of a request whose client gave up waiting, for when it sends the request again.

Many clients have a time-out and send the same request again after it. As new requests these would always be
the youngest: two of them swap places at each time-out, and tau never reaches them.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome, RequestEnd
from clairvoyant_cli.scheduler.chain import Chain

KEPT_S = 60.0  # how long a place is kept: clients send again after 0.3 to 31 s
MAX_KEPT = 2000


@dataclass(frozen=True, slots=True)
class Left:
    """A request whose client has left: its id, and when it arrived and ended."""

    id: str
    arrival_s: float
    left_s: float

    @property
    def next_id(self) -> str:
        return f"{self.id.partition('.')[0]}.{attempts_of(self.id) + 1}"


@dataclass(slots=True)
class Resubmissions:
    """The requests whose clients left before any answer. One is the same as another if its principal,
    session, model and prompt are equal, however the body is written.
    """

    journal: Journal
    enabled: bool = True
    _left: OrderedDict[tuple[str, str, int], Left] = field(default_factory=OrderedDict)

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        job = exchange.job
        gave_up = end.outcome is Outcome.CLIENT_CANCELLED and exchange.first_byte_s is None
        if not (self.enabled and gave_up and job.prefix):
            return
        key = job.client, job.claimed, job.prefix.hashes[-1]
        self._left.pop(key, None)
        self._left[key] = Left(exchange.id, job.arrival_s, end.at_s)
        while len(self._left) > MAX_KEPT:
            self._left.popitem(last=False)

    def take(self, client: str, claimed: str, chain: Chain, now: float) -> Left | None:
        """Return the request that this one is again, None if there is none; it is returned once."""
        left = self._left.pop((client, claimed, chain.hashes[-1]), None) if self._left and chain else None
        return left if left is not None and now - left.left_s <= KEPT_S else None


def attempts_of(request_id: str) -> int:
    return int(request_id.partition(".")[2] or 1)
