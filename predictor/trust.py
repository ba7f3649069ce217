"""Whether the predictor is worth following on this traffic, judged on what it said before each answer."""

import numpy as np

from predictor.ranking import ranking_accuracy
from predictor.record import Quality

WINDOW = 200
"""Judged answers that count: old merits do not excuse new errors."""

MIN_JUDGED = 40
MIN_PAIRS = 200
LOST_BELOW = 0.54
REGAINED_FROM = 0.60
"""Chance is 0.5; between the two bounds trust stays what it was, so that it does not flicker."""

TELLING_FACTOR = 2.0
"""Answers that differ by less than this say nothing about an ordering: PARS's filter with a delta of 0.5."""


class Trust:
    """Ranking accuracy and q90 coverage over the last answers, and the verdict."""

    def __init__(self) -> None:
        """Start trusting: a predictor is innocent until `MIN_JUDGED` answers say otherwise."""
        self._judged = 0
        self._trusted = True
        self._answers = np.zeros((3, WINDOW))
        self._pairs = self._right = 0.0

    def judge(self, score: float, q90_tokens: float, tokens: float) -> None:
        """Compare a prediction with the real answer's tokens."""
        slot = self._judged % WINDOW
        if self._judged >= WINDOW:
            self._count(slot, -1)
        self._answers[:, slot] = score, tokens, tokens <= q90_tokens
        self._judged += 1
        self._count(slot, 1)
        if self._judged >= MIN_JUDGED:
            self._decide()

    def quality(self) -> Quality:
        """Return how the predictor does; accuracies are None while there is nothing to count."""
        if not self._judged:
            return Quality(0, None, None, self._trusted)
        scores, tokens, covered = self._answers[:, : self._judged]
        ranking = ranking_accuracy(scores, tokens)
        accuracy = ranking.accuracy if ranking.n_short and ranking.n_long else None
        return Quality(self._judged, accuracy, float(covered.mean()), self._trusted)

    def _count(self, slot: int, times: int) -> None:
        """Add an answer's telling pairs with all others of the window, or take them off again."""
        scores, tokens, _ = self._answers[:, : self._judged]
        length = max(tokens[slot], 1)
        longer = (tokens >= TELLING_FACTOR * length).astype(float)
        longer -= tokens[slot] >= TELLING_FACTOR * np.maximum(tokens, 1)
        pairs = np.count_nonzero(longer)
        self._pairs += times * pairs
        self._right += times * (float(np.sign(scores - scores[slot]) @ longer) + pairs) / 2

    def _decide(self) -> None:
        if self._pairs < MIN_PAIRS:
            return
        accuracy = self._right / self._pairs
        if accuracy < LOST_BELOW:
            self._trusted = False
        elif accuracy >= REGAINED_FROM:
            self._trusted = True
