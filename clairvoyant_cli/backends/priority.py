"""Priorities for engines that order their own queues, how they are put into requests, and who heeds them.

Rule: the field comes first in a body, so nothing is held back, and every other byte stays. The object must
not have that field already: readers take the last of two.
"""

from dataclasses import dataclass
from math import inf

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.request import BodySink, Piece
from clairvoyant_cli.protocols.probes import EngineMetrics
from clairvoyant_cli.protocols.routes import Shape

FIELD = "priority"  # what vLLM and SGLang both call it in a request's body
# One level of a client's priority, in seconds: 272 years outweigh any arrival time. A hundred levels in
# milliseconds stay below 2^53, which every JSON reader can represent.
LEVEL_S = 1 << 33
# The same for a number that is added to the time of arrival, and must fit 32 bits as seconds: 97 days.
NEAR_LEVEL_S = 1 << 23
MAX_IN_FLIGHT = 1024  # requests that an engine may have at once: as many as vLLM batches on the largest cards


@dataclass(frozen=True, slots=True)
class Priority:
    """The priorities that an engine, or a router, orders by, and the `flag` it must be started with.

    `per_s` are steps per second, `shapes` the routes whose requests carry one, `metrics` the names of its
    queue's metrics at `/metrics`.
    """

    flag: str
    metrics: EngineMetrics | None = None
    per_s: int = 1000
    lower_first: bool = True
    # Headers that decide the order. The first carries the number, which is otherwise a field of the body.
    headers: tuple[bytes, ...] = ()
    has_levels: bool = False  # the second header carries the level, higher first
    from_arrival: bool = False  # the number counts from a request's arrival there, and must not be negative
    classes: tuple[bytes, ...] = ()  # for requests due by now and for later ones, instead of the number
    client_header: bytes = b""  # names the client, among which the router is fair
    session_header: bytes = b""  # names the session, which the router may keep on one worker
    dropped_header: bytes = b""  # of an answer that the router refuses by itself: why
    shapes: frozenset[Shape] = frozenset({Shape.CHAT, Shape.COMPLETION, Shape.RESPONSES, Shape.EMBEDDING})

    def number(self, due_s: float, now_s: float, level: int = 0) -> int:
        """Return the number for a due time in epoch seconds. Lower levels, from -100 to 100, go first."""
        if not self.from_arrival:
            number = round((due_s + level * LEVEL_S) * self.per_s)
            return number if self.lower_first else -number
        after_s = due_s - now_s + level * NEAR_LEVEL_S
        if self.classes:
            return int(after_s > 0.0)
        return max(0, round((101 * NEAR_LEVEL_S + (after_s if self.lower_first else -after_s)) * self.per_s))

    def in_headers(self, number: int) -> list[Header]:
        """Return the headers that carry a number."""
        if self.classes:
            return [(self.headers[0], self.classes[number])]
        if not self.has_levels:
            return [(self.headers[0], b"%d" % number)]
        steps = NEAR_LEVEL_S * self.per_s
        level, within = divmod(number + steps // 2, steps)
        return [(self.headers[0], b"%d" % within), (self.headers[1], b"%d" % level)]

    def rank(self, number: int | None, sent_s: float) -> float:
        """Return a request's rank in the queue, lowest first. Without a number it is 0 in vLLM, and last
        in SGLang and llm-d.
        """
        if number is None:
            return 0.0 if self.lower_first and not self.headers else inf
        rank = float(number if self.lower_first else -number)
        return rank + sent_s * self.per_s if self.from_arrival and not self.classes else rank


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
    """What is put into a body, and behind how many of its bytes; `headers` replace those in `drop`."""

    text: bytes = b""
    at: int = 0
    headers: tuple[Header, ...] = ()
    drop: tuple[bytes, ...] = ()


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
