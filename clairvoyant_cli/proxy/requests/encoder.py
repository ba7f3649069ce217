"""Reads the prompts of waiting requests with an encoder, on its own thread, and reorders them.

A request is queued by its first prediction at once. Prompts are read one at a time, of the shortest predicted
answer first; where urgency is predicted, in order of arrival and until they end. Results of tools are not
read: learning ranks the steps of four sets of agents as well without it (0.675 and 0.674).
"""

import asyncio
import time
from asyncio import sleep
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.admission import UrgencyLevels
from clairvoyant_cli.proxy.servers.service_times import ServiceTimes
from clairvoyant_cli.proxy.tasks import repeat
from clairvoyant_cli.scheduler.urgency import UrgencySource
from predictor.record import Predictor, PromptView

if TYPE_CHECKING:  # numpy comes with it
    from predictor.semantic.opinion import EncoderEstimate

Encode = Callable[[str, int], "EncoderEstimate"]
"""Reads a prompt, of which that many characters were cut; takes milliseconds, on any thread."""

MIN_SERVICE_S = 0.05
"""What is served sooner than this is not worth a second opinion: to form one takes some 5 ms."""

AT_ONCE = 50
"""With more unread, it pauses after each for `REST_SHARE` times as long as that took: thousands take 4 % of a
core for some minutes."""

REST_SHARE = 24

AT_ARRIVAL = 0.0
"""The turn of those that are read by the order of their arrival; the others' is their predicted cost."""


@dataclass
class SecondOpinions:
    """Has waiting requests read by an encoder."""

    encode: Encode
    predictor: Predictor
    times: ServiceTimes
    dispatcher: Dispatcher
    levels: UrgencyLevels
    _unread: list[tuple[float, int, Exchange]] = field(default_factory=list)  # a heap
    _number: Iterator[int] = field(default_factory=count)
    _some: asyncio.Event = field(default_factory=asyncio.Event)

    def arrived(self, exchange: Exchange) -> None:
        view = exchange.asked.parsed.view
        if not self._may_read(exchange):
            return
        if view is None or not view.is_encoded:
            return
        if exchange.job.cost_s >= MIN_SERVICE_S:
            if len(self._unread) > AT_ONCE + 2 * len(self.dispatcher.live):  # what has ended is let go
                self._unread = [each for each in self._unread if self._may_read(each[-1])]
                heapify(self._unread)
            turn = AT_ARRIVAL if exchange.job.urgency_by == UrgencySource.PREDICTOR else exchange.job.cost_s
            heappush(self._unread, (turn, next(self._number), exchange))
            self._some.set()

    async def run(self) -> None:
        """Read until cancelled. Where reading fails, first predictions hold."""
        with ThreadPoolExecutor(1, thread_name_prefix="encoder") as thread:
            await repeat("second predictions", partial(self._read_one, thread))

    async def _read_one(self, thread: ThreadPoolExecutor) -> None:
        await self._some.wait()
        exchange = self._next()
        if exchange is None or (view := exchange.asked.parsed.view) is None:
            return
        opinion, took_s = await asyncio.get_running_loop().run_in_executor(thread, self._read, view)
        self._heard(exchange, opinion)
        if len(self._unread) > AT_ONCE and self._unread[0][0] > AT_ARRIVAL:
            await sleep(REST_SHARE * took_s)

    def _read(self, view: PromptView) -> "tuple[EncoderEstimate, float]":
        """Return the opinion of a prompt, and the seconds that this thread has worked for it."""
        begun_s = time.thread_time()
        opinion = self.encode(view.prompt, view.cut)
        return opinion, time.thread_time() - begun_s

    def _next(self) -> Exchange | None:
        """Return whose turn it is of those that still wait."""
        while self._unread:
            *_, exchange = heappop(self._unread)
            if self._may_read(exchange):
                return exchange
        self._some.clear()
        return None

    def _may_read(self, exchange: Exchange) -> bool:
        waits = exchange.attempt is None or exchange.job.urgency_by == UrgencySource.PREDICTOR
        return waits and exchange.end is None

    def _heard(self, exchange: Exchange, opinion: "EncoderEstimate") -> None:
        """Predict again, also what has started meanwhile: it will be learned from."""
        view = exchange.asked.parsed.view
        if view is None or exchange.end is not None:
            return
        prediction = self.predictor.predict(view, opinion)
        exchange.asked.prediction, exchange.reasons = prediction, None  # it is shown, judged and learned from
        prompt_tokens = exchange.job.prompt_tokens
        estimates = self.times.estimates(exchange.asked.parsed, prediction, prompt_tokens)
        if self.dispatcher.reestimate(exchange, estimates):
            self.dispatcher.moved()
        if exchange.job.urgency_by == UrgencySource.PREDICTOR:
            level, by = self.levels.predicted(exchange.job.client, exchange.asked.parsed, opinion)
            if level != exchange.job.urgency and self.dispatcher.set_urgency(exchange, level, by):
                self.dispatcher.moved()
