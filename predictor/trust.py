"""Whether the predictor is worth following on this traffic, judged on what it said before each answer."""

from collections import deque

import numpy as np

from predictor.ranking import ranking_accuracy
from predictor.record import Quality

WINDOW = 200
"""Judged answers that count: old merits do not excuse new errors."""

LEAST_JUDGED = 40
LEAST_PAIRS = 200
LOST_BELOW = 0.54
REGAINED_FROM = 0.60
"""Chance is 0.5; between the two bounds trust stays what it was, so that it does not flicker."""

TELLING_FACTOR = 2.0
"""Answers that differ by less than this say nothing about an ordering: PARS's filter with a delta of 0.5."""


class Trust:
    """Ranking accuracy and q90 coverage over the last answers, and the verdict."""

    def __init__(self) -> None:
        """Start trusting: a predictor is innocent until `LEAST_JUDGED` answers say otherwise."""
        self._judged = 0
        self._trusted = True
        self._answers: deque[tuple[float, float, bool]] = deque(maxlen=WINDOW)

    def judge(self, score: float, q90_tokens: float, tokens: float) -> None:
        """Compare a prediction with the real answer's tokens."""
        self._answers.append((score, tokens, tokens <= q90_tokens))
        self._judged += 1
        if len(self._answers) >= LEAST_JUDGED:
            self._decide()

    def quality(self) -> Quality:
        """Return how the predictor does; accuracies are None while there is nothing to count."""
        if not self._answers:
            return Quality(0, None, None, self._trusted)
        scores, tokens, covered = np.array(self._answers, np.float64).T
        ranking = ranking_accuracy(scores, tokens)
        accuracy = ranking.accuracy if ranking.n_short and ranking.n_long else None
        return Quality(self._judged, accuracy, float(covered.mean()), self._trusted)

    def _decide(self) -> None:
        scores, tokens, _ = np.array(self._answers, np.float64).T
        longer = tokens[:, None] >= TELLING_FACTOR * np.maximum(tokens, 1)[None, :]
        pairs = int(longer.sum())
        if pairs < LEAST_PAIRS:
            return
        difference = np.sign(scores[:, None] - scores[None, :])[longer]
        accuracy = float((difference + 1).mean() / 2)
        if accuracy < LOST_BELOW:
            self._trusted = False
        elif accuracy >= REGAINED_FROM:
            self._trusted = True
