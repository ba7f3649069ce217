"""Decides what follows from what happens to a request in the queue or on a server: events in, commands out.

Rule 1: a request that no server took up returns to its place in the queue.
Rule 2: so does one whose answer broke off, if the client does not notice: nothing was passed on, or another
part can follow (RFC 9110, 9.2.2). It is tried once on each other server that is up, and `MAX_REPEATS` times
in any case, but never after two servers went down with it.
Rule 3: one that a server refused for a reason of its own is tried once on each other server that may answer
it; the client gets the refusal of the last.
Rule 4: every request ends with exactly one `Finish` or `Abandon`.
"""

from dataclasses import dataclass

from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import (
    AttemptEnd,
    DisplacedError,
    Exchange,
    OperatorCancelledError,
    OutageError,
)
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.requests.refusals import OVERRAN, SHUTTING_DOWN, STOPPED, Refusals
from clairvoyant_cli.proxy.servers.pool import ServerPool

CLIENT_CLOSED = 499  # nginx's and Ollama's status for a client that left before its answer
BAD_GATEWAY = 502

MAX_REPEATS = 2
MAX_SERVERS_GONE = 1  # servers that may go down while they answer a request before it counts as the cause


@dataclass(frozen=True, slots=True)
class NotGranted:
    """It waited and will get no slot; `why` is TimeoutError or one of the errors in `exchange`."""

    why: Exception


@dataclass(frozen=True, slots=True)
class BodyBarred:
    """A part of its body, which came while it was sent, may not reach its server."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt is over, and its request may not be: `why` in words. `status` is 0 if no answer had begun.
    `repeatable`: after an answer that broke off, another attempt would go unnoticed by the client.
    """

    end: AttemptEnd
    why: str = ""
    status: int = 0
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole answer was passed on; `failed` if it holds an error."""

    status: int
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ClientLeft:
    """The client has left, the operator stopped the answer, or it took too long.

    `at_work`: a server still works on it; `heard_all`: the client had the whole answer except for the end of
    the message. `status` is 0 if no answer had begun.
    """

    at_work: bool = False
    heard_all: bool = False
    status: int = 0


ServingEvent = NotGranted | BodyBarred | Failed | Answered | ClientLeft


@dataclass(frozen=True, slots=True)
class WaitAgain:
    """Put it back into the queue, for the servers in `able` if there are any."""

    why: AttemptEnd
    able: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """End it and give back its place or slot, that of a server which is still `at_work` once it has stopped;
    send `refusal` if no answer has begun, else cut the answer short.
    """

    outcome: Outcome
    status: int
    refusal: Refusal | None = None
    at_work: bool = False


Command = WaitAgain | Finish


@dataclass(frozen=True, slots=True)
class ServingRules:
    pool: ServerPool
    operation: Operation
    refusals: Refusals

    def after(self, exchange: Exchange, event: ServingEvent) -> Command:
        match event:
            case Answered(status, failed):
                good = not failed and status < 400
                return Finish(Outcome.COMPLETED if good else Outcome.UPSTREAM_ERROR, status)
            case NotGranted(why):
                return self._not_granted(exchange, why)
            case BodyBarred(refusal):
                return Finish(Outcome.REJECTED, refusal.status, refusal)
            case ClientLeft():
                return self._left(exchange, event)
            case Failed(AttemptEnd.PREEMPTED):  # for another to have its slot, which is free by now
                return WaitAgain(AttemptEnd.PREEMPTED)
            case Failed(AttemptEnd.REFUSED):
                return WaitAgain(AttemptEnd.REFUSED, self.pool.ids(self.pool.elsewhere(exchange)))
            case Failed(AttemptEnd.BROKEN):
                return self._broken_off(exchange, event)
            case Failed():
                return self._not_taken(exchange, event)

    def _left(self, exchange: Exchange, event: ClientLeft) -> Finish:
        outcome, status, refusal = Outcome.CLIENT_CANCELLED, CLIENT_CLOSED, None
        if event.heard_all:
            outcome = Outcome.COMPLETED
        elif self.operation.stopped:  # it was us who hung up
            outcome, status = Outcome.REJECTED, SHUTTING_DOWN.status
        elif exchange.stopped_by_operator:
            outcome, refusal = Outcome.OPERATOR_CANCELLED, STOPPED
        elif exchange.overran:
            outcome, status, refusal = Outcome.TIMEOUT, OVERRAN.status, OVERRAN
        return Finish(outcome, event.status or status, refusal, event.at_work)

    def _not_granted(self, exchange: Exchange, why: Exception) -> Finish:
        outcome, refusal = Outcome.REJECTED, SHUTTING_DOWN  # DrainingError
        match why:
            case DisplacedError():
                refusal = self.refusals.full()
            case OutageError():
                outcome = _given_up(exchange)
                refusal = self.refusals.away(next(iter(self.pool.able_for(exchange)), None))
            case OperatorCancelledError():
                outcome, refusal = Outcome.OPERATOR_CANCELLED, STOPPED
            case TimeoutError():
                outcome = Outcome.TIMEOUT
                refusal = self.refusals.waited_too_long(self.operation.max_wait_s or 0.0, exchange)
        return Finish(outcome, refusal.status, refusal)

    def _broken_off(self, exchange: Exchange, event: Failed) -> Command:
        gone = sum(attempt.server_gone for attempt in exchange.attempts)
        others = self.pool.elsewhere(exchange)
        again = event.repeatable and (others or exchange.repeats < MAX_REPEATS) and gone <= MAX_SERVERS_GONE
        lost = gone and not self.pool.waits_for(exchange)
        if again and not lost and not self.operation.stopping and not self.pool.has_given_up(exchange):
            return WaitAgain(AttemptEnd.BROKEN, self.pool.ids(others or self.pool.able_for(exchange)))
        refusal = self.refusals.broken_off(self.pool.server_of(exchange), event.why)
        return Finish(Outcome.UPSTREAM_ERROR, event.status or BAD_GATEWAY, refusal)

    def _not_taken(self, exchange: Exchange, event: Failed) -> Command:
        server = self.pool.server_of(exchange)
        if event.end is AttemptEnd.UNREACHABLE and not self.pool.waits_for(exchange):
            refusal = self.refusals.unreachable(server, event.why)
            return Finish(Outcome.UPSTREAM_ERROR, refusal.status, refusal)
        if self.operation.stopping:
            return Finish(Outcome.REJECTED, SHUTTING_DOWN.status, SHUTTING_DOWN)
        if self.pool.has_given_up(exchange):
            refusal = self.refusals.away(server)
            return Finish(_given_up(exchange), refusal.status, refusal)
        return WaitAgain(event.end)


def _given_up(exchange: Exchange) -> Outcome:
    """Return how a request ends whose server stays away: a part of an answer is none."""
    return Outcome.UPSTREAM_ERROR if exchange.has_begun else Outcome.REJECTED
