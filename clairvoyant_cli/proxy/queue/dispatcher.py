"""The asyncio side of the queue: grants slots to waiting requests as the scheduler decides.

Rule 1: a slot is freed exactly once, however a request ends.
Rule 2: the slot of a request whose client left during the answer is freed once the backend has stopped.
Rule 3: each request ends exactly once. Its accounts are settled while it still has its slot or its place, its
record is handed on once that is free, and `changed` comes last.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, Protocol

from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import (
    Attempt,
    AttemptEnd,
    DisplacedError,
    Exchange,
    OperatorCancelledError,
    Phase,
    RequestEnd,
)
from clairvoyant_cli.scheduler.job import Estimates, Reason, Run
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.urgency import UrgencySource

Release = Callable[[Exchange], Awaitable[None]]
"""Waits until the backend has stopped working on an abandoned request."""

Spawn = Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]

MAX_FIRINGS = 200

ASK_AGAIN_S = 0.25
"""How often the scheduler is asked again while a slot is left free for a better one."""


class Listener(Protocol):
    """Hears of each start by tau, each end, each change of the queue, and each new urgency.

    `settle` updates what the next decision depends on; it must not raise, grant slots or tell of changes.
    `ended` hands the request's record on.
    """

    def fired(self) -> None: ...
    def settle(self, exchange: Exchange, end: RequestEnd) -> None: ...
    def ended(self, exchange: Exchange) -> None: ...
    def changed(self) -> None: ...
    def urgency_set(self, exchange: Exchange) -> None: ...


class Dispatcher:
    """Grants slots to waiting exchanges in the scheduler's order."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float],
        spawn: Spawn,
        listener: Listener,
    ) -> None:
        self.scheduler = scheduler
        self.live: dict[str, Exchange] = {}
        self.firings: list[float] = []
        self._clock = clock
        self._spawn = spawn
        self._listener = listener
        self._will_ask = False

    def __repr__(self) -> str:
        return f"<Dispatcher {self.scheduler!r}>"

    def submit(self, exchange: Exchange) -> None:
        """Queue an exchange and reject the one dropped for it; QueueFullError without room."""
        displaced = self.scheduler.submit(exchange.job, self._clock())
        if displaced is not None:
            self.send_away(self.live[displaced.id], DisplacedError())
        self.live[exchange.id] = exchange
        self.moved()

    def pump(self) -> None:
        """Grant every slot that can be granted now."""
        now = self._clock()
        while (run := self.scheduler.next(now)) is not None:
            self._grant(self.live[run.job.id], run)
        if self.scheduler.deferring and not self._will_ask:
            self._will_ask = True
            asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_again)

    def _ask_again(self) -> None:
        self._will_ask = False
        self.pump()

    def _grant(self, exchange: Exchange, run: Run) -> None:
        # Backends do not name their slots. The lowest free number keeps a dashboard's rows stable.
        taken = {other.slot for other in self.attempts_on(run.server_id)}
        slot = next(number for number in count() if number not in taken)
        exchange.attempt = Attempt(
            run, exchange.asked, slot, exchange.service_s(run.started_s) + run.expected_s
        )
        exchange.attempts.append(exchange.attempt)
        if not exchange.granted.done():
            exchange.granted.set_result(None)
        if run.reason is Reason.TAU:
            self.firings.append(run.started_s)
            del self.firings[:-MAX_FIRINGS]
            self._listener.fired()

    def attempts_on(self, server: str) -> list[Attempt]:
        """Return the attempts that hold slots of a server."""
        known = self.scheduler.fleet.servers.get(server)
        attempts = [self.live[job_id].attempt for job_id in known.running] if known is not None else []
        return [attempt for attempt in attempts if attempt is not None]

    def end(self, exchange: Exchange, outcome: Outcome, status: int) -> None:
        """Record the end of an exchange and free its place in the queue or its slot."""
        if exchange.end is not None:
            return
        self._settle(exchange, outcome, status)
        if exchange.attempt is None:
            self.scheduler.cancel(exchange.id, self._clock())
        else:
            self._free(exchange, status)
        self._listener.ended(exchange)
        self._forget(exchange)

    def refuse(self, exchange: Exchange, status: int) -> None:
        """End an exchange that was not queued."""
        self._settle(exchange, Outcome.REJECTED, status)
        self._listener.ended(exchange)
        exchange.drop_text()

    def abandon(self, exchange: Exchange, outcome: Outcome, status: int, release: Release) -> None:
        """End an exchange whose backend is still working; its slot is freed when `release` returns."""
        if exchange.end is not None:
            return
        if exchange.attempt is not None:
            exchange.attempt.phase = Phase.RELEASING
        self._spawn(self._release(exchange, status, release))
        self._settle(exchange, outcome, status)
        self._listener.ended(exchange)
        self._listener.changed()

    def withdraw(self, exchange: Exchange) -> None:
        """Drop a waiting exchange that another daemon serves from now on. It has no record here."""
        exchange.end = RequestEnd(Outcome.CLIENT_CANCELLED, 0, self._clock())
        self.scheduler.cancel(exchange.id, self._clock())
        self._forget(exchange)

    def cancel(self, job_id: str) -> bool:
        exchange = self.live.get(job_id)
        if exchange is None or exchange.end is not None:
            return False
        exchange.stopped_by_operator = True
        if exchange.attempt is None:
            self.send_away(exchange, OperatorCancelledError())
        elif exchange.task is not None:
            exchange.task.cancel()
        return True

    def wait_again(self, exchange: Exchange, why: AttemptEnd, able: frozenset[str] | None = None) -> None:
        """Requeue a running exchange, which keeps its age. A preempted one goes on with the server that has
        its context in the KV cache; `able` names the servers for any other, None if unchanged.
        """
        preempted = why is AttemptEnd.PREEMPTED
        self.scheduler.requeue(exchange.id, self._clock(), preempted=preempted, able=able)
        exchange.wait_again(why)
        self.moved()

    def reestimate(self, exchange: Exchange, estimates: Estimates) -> bool:
        """Replace the estimates of a waiting exchange; False if it is not waiting."""
        return self.scheduler.reestimate(exchange.id, self._clock(), **estimates)

    def set_urgency(self, exchange: Exchange, level: int | None, by: UrgencySource) -> bool:
        """Set the urgency of a waiting or running exchange; False if it is neither."""
        if not self.scheduler.set_urgency(exchange.id, level, by, self._clock()):
            return False
        self._listener.urgency_set(exchange)
        return True

    def send_away_waiting(self, why: Callable[[], Exception], *, suspended: bool = True) -> int:
        """Reject all waiting exchanges, preempted ones only if `suspended`; return their number."""
        waiting = [
            exchange
            for exchange in self.live.values()
            if exchange.attempt is None and (suspended or not exchange.is_put_off)
        ]
        for exchange in waiting:
            self.send_away(exchange, why())
        return len(waiting)

    def send_away(self, exchange: Exchange, why: Exception) -> None:
        """Reject a waiting exchange: its task receives the error and ends it."""
        if not exchange.granted.done():
            exchange.granted.set_exception(why)
            exchange.granted.exception()  # retrieved, in case the task is cancelled at the same moment

    def moved(self) -> None:
        """Grant slots after a change, and tell of it."""
        self.pump()
        self._listener.changed()

    async def _release(self, exchange: Exchange, status: int, release: Release) -> None:
        try:
            await release(exchange)
        finally:
            self._free(exchange, status)
            self._forget(exchange)

    def _free(self, exchange: Exchange, status: int) -> None:
        # With a successful answer, the backend had loaded the model.
        self.scheduler.finish(exchange.id, self._clock(), served=200 <= status < 300)

    def _settle(self, exchange: Exchange, outcome: Outcome, status: int) -> None:
        exchange.end = RequestEnd(outcome, status, self._clock())
        self._listener.settle(exchange, exchange.end)

    def _forget(self, exchange: Exchange) -> None:
        exchange.drop_text()
        self.live.pop(exchange.id, None)
        self.moved()
