"""Compares the latest predictions with the answers."""

from collections import deque

from predictor.ranking import pairs_in_order
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, Quality

WINDOW = 200  # judged answers that count: older ones say little about the present


class Judged:
    """The latest predictions beside their answers, and how many there were in all."""

    def __init__(self) -> None:
        self._count = 0
        self._latest: deque[tuple[float, float, bool]] = deque(maxlen=WINDOW)

    def judge(self, score: float, q90_tokens: float, tokens: float) -> None:
        """Compare a prediction with the real answer's tokens."""
        self._count += 1
        self._latest.append((score, tokens, tokens <= q90_tokens))

    def quality(self) -> Quality:
        """Return how the predictor does; accuracies are None while there is nothing to count."""
        if not self._count:
            return Quality(0, None, None)
        short = (score for score, tokens, _ in self._latest if tokens < SHORT_BELOW_TOKENS)
        long = (score for score, tokens, _ in self._latest if tokens >= LONG_FROM_TOKENS)
        covered = sum(covered for _, _, covered in self._latest) / len(self._latest)
        return Quality(self._count, pairs_in_order(short, long), covered)
