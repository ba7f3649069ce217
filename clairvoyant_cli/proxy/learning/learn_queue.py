"""Feeds answers to the predictor's online learning, outside the path of requests.

Each takes under half a millisecond, with a pause after it; if they arrive faster for long, some are skipped.
"""

import asyncio
import logging
from collections import deque

from clairvoyant_cli.proxy.queue.ended import Ended
from predictor.record import Prediction, Predictor

log = logging.getLogger("clairvoyant")

REST_S = 0.025  # pause between two answers: learning takes at most 2 % of the daemon's time
MAX_WAITING = 500


class LearnQueue:
    """Answers waiting to be learned."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._waiting: deque[tuple[Prediction, int]] = deque()
        self._next: asyncio.TimerHandle | None = None

    def add(self, prediction: Prediction, tokens: int) -> None:
        """Queue an answer; it is skipped if MAX_WAITING wait already."""
        if len(self._waiting) >= MAX_WAITING:
            return
        self._waiting.append((prediction, tokens))
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(REST_S, self._learn)

    def ended(self, of: Ended) -> None:
        if of.choices > 1 or of.tokens is None or of.prediction.memo is None:
            return  # of several answers the tokens are the sum, and a prediction is the length of one
        self.add(of.prediction, of.tokens)
        after = of.after_thinking
        if after is not None and after.memo is not None and of.counted_tokens:
            share = 1.0 - of.thought_tokens / of.counted_tokens
            self.add(after, max(1, round(share * of.tokens)))

    def clear(self) -> None:
        self._waiting.clear()

    def flush(self) -> None:
        """Learn the queue now, before the daemon shuts down and saves its state."""
        while self._waiting:
            if self._next is not None:
                self._next.cancel()
            self._learn()

    def _learn(self) -> None:
        """Learn one answer, and the next one after a pause."""
        self._next = None
        if not self._waiting:
            return
        prediction, tokens = self._waiting.popleft()
        if self._waiting:
            self._next = asyncio.get_running_loop().call_later(REST_S, self._learn)
        try:
            self._predictor.learn(prediction, tokens)
        except Exception:
            # A predictor that cannot learn still predicts; no request fails for it.
            log.exception("the predictor could not learn from an answer")
