"""Priorities for engines that order their own queues, how they are put into requests, and who heeds them.

Rule 1: the field comes first in a body, so nothing is held back, and every other byte stays. The object must
not have that field already: readers take the last of two.
Rule 2: `Barred` says what of a client's request does not reach such an engine, on every way to it: headers
and trailers that decide its order are left out, and a body that sets its priority is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import BodySink, Piece
from clairvoyant_cli.http.upstream import UpstreamError
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.outer_members import OuterMembers
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
    orders: tuple[bytes, ...] = ()  # beginnings of the names of all headers that decide the order
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
    """What is put into a body, and behind how many of its bytes, or into a head."""

    text: bytes = b""
    at: int = 0
    headers: tuple[Header, ...] = ()


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


SET_HERE = Refusal(
    400,
    f"clairvoyant: `{FIELD}` is set by this proxy; leave it out, and send X-Clairvoyant-Priority instead",
    kind="priority",
)
UNREADABLE = Refusal(
    400,
    f"clairvoyant: it cannot be seen whether this body sets `{FIELD}`; send it as a JSON object in UTF-8, "
    "without a coding",
    kind="priority",
)


class BarredError(UpstreamError):
    """A body was not passed on to its end, as a member of it is barred."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Barred:
    """What of a client's request does not pass to a server: headers of these `names`, and those that begin
    with one of `orders`. If `field`, a body that sets `FIELD` is refused.
    """

    names: tuple[bytes, ...]
    orders: tuple[bytes, ...] = ()
    field: bool = False

    def in_head(self, head: RequestHead) -> tuple[bytes, ...]:
        """Return the names of all headers to leave out, in lower case."""
        if not self.orders:
            return self.names
        return (*self.names, *(key for key in head.fields.keys if key.startswith(self.orders)))

    def objection(self, members: OuterMembers) -> Refusal | None:
        """Return why a body is refused, of which this much is known."""
        sets = members.sets(FIELD) if self.field else False
        return UNREADABLE if sets is None else SET_HERE if sets else None


class Filtering:
    """Passes a body on until a member of it is barred; then `refuse` is called instead. `members` may have
    seen the beginning already, None if the body needs no look. Barred trailers are left out.
    """

    def __init__(
        self, sink: BodySink, barred: Barred, members: OuterMembers | None, refuse: Callable[[Refusal], None]
    ) -> None:
        self._sink: BodySink | None = sink
        self._barred, self._members, self._refuse = barred, members, refuse
        self._seen = 0 if members is None else members.size

    def body(self, data: Piece) -> None:
        unseen, self._seen = data[self._seen :], max(0, self._seen - len(data))
        if self._members is not None and self._sink is not None:
            self._members.feed(unseen)
            if (objection := self._barred.objection(self._members)) is not None:
                self._sink = None
                self._refuse(objection)
        if self._sink is not None:
            self._sink.body(data)

    def body_end(self, trailers: list[Header]) -> None:
        if self._sink is not None:
            orders = self._barred.orders or b"\n"
            self._sink.body_end([each for each in trailers if not each[0].lower().startswith(orders)])
