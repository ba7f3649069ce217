"""What answers teach the predictor, learned a little later: off the way of any request.

Learning from an answer costs less than half a millisecond, and never a whole refit. A serial backend finishes
a few answers a second, so one lesson at a time, with a rest in between, keeps up; what comes faster than that
for long is sampled.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from clairvoyant_cli.proxy.queue.exchange import End, Exchange
from predictor.record import Prediction, Predictor

log = logging.getLogger("clairvoyant")

REST_S = 0.025
"""Between two lessons: learning takes at most about two hundredths of the daemon's time."""

MAX_WAITING = 500


class LearnQueue:
    """Answers on their way to the predictor. `learned` is called after each."""

    def __init__(self, predictor: Predictor, learned: Callable[[], None]) -> None:
        self._predictor = predictor
        self._learned = learned
        self._waiting: deque[tuple[Prediction, int]] = deque()
        self._next: asyncio.TimerHandle | None = None

    def add(self, prediction: Prediction, tokens: int) -> None:
        """Take note of an answer; it is learned soon, unless too many wait already."""
        if len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append((prediction, tokens))
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(REST_S, self._one)

    def ended(self, exchange: Exchange, end: End) -> None:
        """Take note of a request that has ended, if its answer was whole."""
        totals, prediction = exchange.totals, exchange.asked.prediction
        if totals.complete and totals.tokens is not None and prediction.memo is not None:
            self.add(prediction, totals.tokens)

    def clear(self) -> None:
        """Learn nothing from what waits: it is of requests that are to be forgotten."""
        self._waiting.clear()

    def flush(self) -> None:
        """Learn now what waits: the daemon goes down and what it knows is saved."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._waiting:
            self._learn()

    def _one(self) -> None:
        self._next = None
        if self._waiting:
            self._learn()
        if self._waiting:
            self._next = asyncio.get_running_loop().call_later(REST_S, self._one)

    def _learn(self) -> None:
        prediction, tokens = self._waiting.popleft()
        try:
            self._predictor.learn(prediction, tokens)
            self._learned()
        except Exception:
            # A predictor that cannot learn still predicts; no request pays for its fault.
            log.exception("the predictor could not learn from an answer")
