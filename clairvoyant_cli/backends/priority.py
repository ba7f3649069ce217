"""Priorities for engines that order their own queues, how they are put into requests, and who heeds them.

Rule: the field comes first in a body, so nothing is held back, and every other byte stays. The object must
not have that field already: readers take the last of two.
"""

from dataclasses import dataclass

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.request import BodySink, Piece
from clairvoyant_cli.protocols.probes import EngineMetrics
from clairvoyant_cli.protocols.routes import Shape

FIELD = "priority"  # what vLLM and SGLang both call it in a request's body
# One level of a client's priority, in seconds: 272 years outweigh any arrival time. A hundred levels in
# milliseconds stay below 2^53, which every JSON reader can represent.
LEVEL_S = 1 << 33
MAX_IN_FLIGHT = 1024  # requests that an engine may have at once: as many as vLLM batches on the largest cards


@dataclass(frozen=True, slots=True)
class Priority:
    """The priorities that an engine orders by, and the `flag` it must be started with.

    `per_s` are steps per second, `shapes` the routes whose requests carry one, `metrics` the names of its
    queue's metrics at `/metrics`.
    """

    flag: str
    metrics: EngineMetrics
    per_s: int = 1000
    lower_first: bool = True
    shapes: frozenset[Shape] = frozenset({Shape.CHAT, Shape.COMPLETION, Shape.RESPONSES, Shape.EMBEDDING})

    def number(self, due_s: float, level: int = 0) -> int:
        """Return the number for a due time in epoch seconds. Lower levels, from -100 to 100, go first."""
        number = round((due_s + level * LEVEL_S) * self.per_s)
        return number if self.lower_first else -number


@dataclass(frozen=True, slots=True)
class Heeding:
    """Whether an engine orders by priority: `priority` is None if not, `known` False if it cannot be told.
    `why` says what was seen.
    """

    known: bool
    priority: Priority | None = None
    why: str = ""


UNKNOWN = Heeding(known=False)


OUTDATED = (b"content-length", b"content-md5", b"digest", b"content-digest")
"""Fields of a head that tell of a body as it was (RFC 9110, 8.6; RFC 9530)."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What is put into a body, and behind how many of its bytes."""

    text: bytes
    at: int


class Stamping:
    """Passes a body on with a stamp in it."""

    def __init__(self, sink: BodySink, stamp: Stamp) -> None:
        self._sink = sink
        self._stamp = stamp
        self._left = stamp.at

    def body(self, data: Piece) -> None:
        if self._left <= 0:
            self._sink.body(data)
        elif len(data) < self._left:
            self._left -= len(data)
            self._sink.body(data)
        else:
            at, self._left = self._left, 0
            self._sink.body(b"".join((data[:at], self._stamp.text, data[at:])))

    def body_end(self, trailers: list[Header]) -> None:
        self._sink.body_end(trailers)
