"""The queue's asyncio side: who waits is granted a slot when the scheduler says so.

Rule 1: a slot is given back exactly once, whatever way a request ends.
Rule 2: a slot whose client left in mid-answer is given back only when the backend has really stopped.
Rule 3: each request ends exactly once, and all who listen are told how.
"""

import asyncio
from collections.abc import Awaitable, Callable

from clairvoyant_cli.proxy.queue.exchange import (
    Attempt,
    AttemptEnd,
    DisplacedError,
    End,
    Exchange,
    OperatorCancelledError,
    Outcome,
    Phase,
)
from clairvoyant_cli.scheduler.job import Dispatch, Estimates, Job, Reason
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.urgency import Said

Release = Callable[[Exchange], Awaitable[None]]
"""Waits until the backend has stopped working for a request whose client is gone."""

Spawn = Callable[[Awaitable[None]], "asyncio.Task[None]"]

Ended = Callable[[Exchange, End], None]

MAX_FIRINGS = 200

LOOK_AGAIN_S = 0.25
"""While a slot is left free for a better one, it is looked at this often whether that still holds."""


class Dispatcher:
    """Grants slots to waiting exchanges in the scheduler's order.

    `ended` are told of each exchange that ends, `changed` after each change of the queue, `reestimated` of
    each exchange that was predicted anew, and of its job before, `urgency_set` of each of which somebody has
    said anew how urgent it is.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        self.scheduler = scheduler
        self.live: dict[str, Exchange] = {}
        self.firings: list[float] = []
        self.ended: list[Ended] = []
        self.changed: list[Callable[[], None]] = []
        self.reestimated: list[Callable[[Exchange, Job], None]] = []
        self.urgency_set: list[Callable[[Exchange], None]] = []
        self._clock = clock
        self._spawn = spawn
        self._will_look = False

    def __repr__(self) -> str:
        return f"<Dispatcher {self.scheduler!r}>"

    def submit(self, exchange: Exchange) -> None:
        """Queue an exchange; QueueFullError if there is no room. It may be granted before this returns.

        Where another had to give way to it, that one is sent away.
        """
        displaced = self.scheduler.submit(exchange.job, self._clock())
        if displaced is not None:
            self.send_away(self.live[displaced.id], DisplacedError())
        self.live[exchange.id] = exchange
        self.moved()

    def pump(self) -> None:
        """Grant every slot that can be granted now."""
        now = self._clock()
        while (dispatch := self.scheduler.next(now)) is not None:
            self._grant(self.live[dispatch.job.id], dispatch, now)
        if self.scheduler.deferring and not self._will_look:
            self._will_look = True
            asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        self._will_look = False
        self.pump()

    def _grant(self, exchange: Exchange, dispatch: Dispatch, now: float) -> None:
        exchange.set_urgency(dispatch.job.urgency, dispatch.job.urgency_by)
        entry = self.scheduler.running[exchange.id]
        exchange.begin(
            Attempt(
                dispatch,
                slot=self._free_slot(dispatch.worker),
                granted_s=now,
                expected_s=exchange.service_s(now) + entry.expected_s,
                moves=tuple(entry.moves),
            )
        )
        if dispatch.reason is Reason.TAU:
            self.firings.append(now)
            del self.firings[:-MAX_FIRINGS]

    def _free_slot(self, worker: str) -> int:
        # The backend names no slots to us; ours are numbered so that a dashboard's rows stay where they are.
        taken = {each.slot for each in self.attempts_on(worker)}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def attempts_on(self, worker: str) -> list[Attempt]:
        """Return what holds a worker's slots."""
        running = (self.live[job_id].attempt for job_id in self.scheduler.running)
        return [each for each in running if each is not None and each.worker == worker]

    def end(self, exchange: Exchange, outcome: Outcome, status: int) -> None:
        """Note how an exchange ended, and give back what it held: its place in the queue, or its slot."""
        if exchange.end is not None:
            return
        try:
            self._tell(exchange, outcome, status)
        finally:
            if exchange.attempt is None:
                self.scheduler.cancel(exchange.id, self._clock())
            else:
                self.scheduler.finish(exchange.id, self._clock(), served=_is_success(status))
            self._forget(exchange)

    def abandon(self, exchange: Exchange, outcome: Outcome, status: int, release: Release) -> None:
        """End an exchange whose backend is still at work; its slot follows when `release` returns."""
        if exchange.end is not None:
            return
        exchange.phase = Phase.RELEASING
        self._spawn(self._release(exchange, status, release))
        self._tell(exchange, outcome, status)

    def cancel(self, job_id: str) -> bool:
        """Take a waiting or running exchange away on the operator's word."""
        exchange = self.live.get(job_id)
        if exchange is None or exchange.phase in (Phase.RELEASING, Phase.ENDED):
            return False
        exchange.stopped_by_operator = True
        if exchange.attempt is None:
            self.send_away(exchange, OperatorCancelledError())
        elif exchange.task is not None:
            exchange.task.cancel()
        return True

    def wait_again(self, exchange: Exchange, why: AttemptEnd, able: frozenset[str] | None = None) -> None:
        """Take a slot back from an exchange, which keeps its age. One that was cut goes on where it was, on
        the worker that has its beginning in its cache; `able` says who can take another, None if as before.
        """
        now = self._clock()
        worker = "" if exchange.attempt is None or why is not AttemptEnd.CUT else exchange.attempt.worker
        self.scheduler.requeue(exchange.id, now, served=bool(worker), worker=worker, able=able)
        exchange.wait_again(why, now)
        self.moved()

    def reestimate(self, exchange: Exchange, estimates: Estimates) -> bool:
        """Place a waiting exchange by better estimates; False if it does not wait."""
        if not self.scheduler.reestimate(exchange.id, self._clock(), **estimates):
            return False
        before = exchange.job
        exchange.reestimated(estimates)
        for listener in self.reestimated:
            listener(exchange, before)
        return True

    def set_urgency(self, exchange: Exchange, level: int | None, by: Said) -> bool:
        """Say how urgent an exchange is, waiting or running; False if it is neither."""
        if not self.scheduler.set_urgency(exchange.id, level, by, self._clock()):
            return False
        exchange.set_urgency(level, by)
        for listener in self.urgency_set:
            listener(exchange)
        return True

    def send_away_waiting(self, why: Callable[[], Exception], *, suspended: bool = True) -> int:
        """Have everything that still waits refused for a reason; return how many. Without `suspended` what
        has a part of its answer is left to go on.
        """
        waiting = [
            exchange
            for exchange in self.live.values()
            if exchange.attempt is None and (suspended or not exchange.is_suspended)
        ]
        for exchange in waiting:
            self.send_away(exchange, why())
        return len(waiting)

    def send_away(self, exchange: Exchange, why: Exception) -> None:
        """Tell a waiting exchange's task that it will not be served; it ends the exchange."""
        if not exchange.granted.done():
            exchange.granted.set_exception(why)
            exchange.granted.exception()  # a task that is cancelled in the same moment never asks

    def moved(self) -> None:
        """Look again after something changed."""
        self.pump()
        for listener in self.changed:
            listener()

    async def _release(self, exchange: Exchange, status: int, release: Release) -> None:
        try:
            await release(exchange)
        finally:
            self.scheduler.finish(exchange.id, self._clock(), served=_is_success(status))
            self._forget(exchange)

    def _tell(self, exchange: Exchange, outcome: Outcome, status: int) -> None:
        end = exchange.end = End(outcome, status, self._clock())
        for listener in self.ended:
            listener(exchange, end)

    def _forget(self, exchange: Exchange) -> None:
        exchange.phase = Phase.ENDED
        exchange.shed()
        self.live.pop(exchange.id, None)
        self.moved()


def _is_success(status: int) -> bool:
    """Whether the backend began an answer that is no error: then it had loaded what that needs."""
    return 200 <= status < 300
