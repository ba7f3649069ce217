"""The encoder's word on what waits: read on a thread of its own, and placed anew when it has spoken.

Rule 1: nobody waits for it. A request stands in the queue by its first prediction at once; what starts before
its turn to be read comes is not read any more.
Rule 2: one prompt at a time, in the order of arrival: two would take turns on the same core.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from clairvoyant_cli.proxy.dispatcher import Dispatcher
from clairvoyant_cli.proxy.exchange import Exchange
from clairvoyant_cli.proxy.pool import BackendPool
from clairvoyant_cli.proxy.urgency import Levels
from clairvoyant_cli.scheduler.urgency import Said
from predictor.record import LoadedPredictor, Task

if TYPE_CHECKING:  # numpy comes with it
    from predictor.semantic.opinion import Opinion

log = logging.getLogger("clairvoyant")

Encode = Callable[[str, int], "Opinion"]
"""Reads a prompt that was so many characters longer; takes milliseconds, on any thread."""

MIN_SERVICE_S = 0.05
"""What is served sooner than this is not worth a second opinion: to form one takes some 5 ms."""


class SecondOpinions:
    """Has waiting requests read by an encoder."""

    def __init__(
        self,
        encode: Encode,
        predictor: LoadedPredictor,
        pool: BackendPool,
        dispatcher: Dispatcher,
        levels: Levels,
    ) -> None:
        self._encode = encode
        self._predictor = predictor
        self._pool = pool
        self._dispatcher = dispatcher
        self._levels = levels
        self._unread: deque[Exchange] = deque()
        self._some = asyncio.Event()
        self._given_up = False

    def arrived(self, exchange: Exchange) -> None:
        """Have a request read if it waits."""
        view = exchange.asked.parsed.view
        if self._given_up or not self._may_read(exchange):
            return
        if view is None or view.task is Task.EMBEDDING or not view.prompt or view.chore is not None:
            return
        if exchange.job.cost_s >= MIN_SERVICE_S:
            self._unread.append(exchange)
            self._some.set()

    async def run(self) -> None:
        """Read for ever; a prompt that cannot be read ends it, and first predictions hold."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="encoder") as thread:
            while True:
                await self._some.wait()
                exchange = self._next()
                if exchange is None or exchange.asked.parsed.view is None:
                    continue
                view = exchange.asked.parsed.view
                try:
                    opinion = await loop.run_in_executor(thread, self._encode, view.prompt, view.cut)
                    self._heard(exchange, opinion)
                except Exception as error:
                    log.warning("the encoder gives no second opinions: %s", error)
                    self._given_up = True
                    self._unread.clear()
                    return

    def _next(self) -> Exchange | None:
        """Return the oldest that still waits."""
        while self._unread:
            exchange = self._unread.popleft()
            if self._may_read(exchange):
                return exchange
        self._some.clear()
        return None

    def _may_read(self, exchange: Exchange) -> bool:
        """Whether a request still waits; of one that runs only how urgent it is would matter any more."""
        waits = exchange.attempt is None or exchange.job.urgency_by == Said.PREDICTOR
        return waits and exchange.end is None

    def _heard(self, exchange: Exchange, opinion: "Opinion") -> None:
        """Predict anew; of what has started meanwhile, too, for it will be learnt from."""
        view = exchange.asked.parsed.view
        if view is None or exchange.end is not None:
            return
        prediction = self._predictor.predict(view, opinion)
        exchange.predicted_anew(prediction)
        if self._dispatcher.reestimate(exchange, self._pool.estimates(exchange.asked.parsed, prediction)):
            self._dispatcher.moved()
        if exchange.job.urgency_by == Said.PREDICTOR:
            level, by = self._levels.predicted(exchange.job.client, exchange.asked.parsed, opinion)
            if level != exchange.job.urgency and self._dispatcher.set_urgency(exchange, level, by):
                self._dispatcher.moved()
