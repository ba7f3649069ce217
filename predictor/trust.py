"""Whether the predictor is worth following on this traffic, judged on what it said before each answer."""

from collections import Counter, deque
from dataclasses import replace

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

REGAINED_SOON_FROM = 0.66
"""Of fewer than twice `MIN_JUDGED` answers since trust was lost: chance comes so far once in 300 times (the
standard error of Kendall's tau over 40 answers is 0.11, and accuracy is half of it)."""

MAX_MODELS = 50

TELLING_FACTOR = 2.0
"""Answers that differ by less than this say nothing about an ordering: PARS's filter with a delta of 0.5."""


class Trust:
    """Ranking accuracy and q90 coverage over the last answers, and the verdict."""

    def __init__(self) -> None:
        """Start trusting: a predictor is innocent until `MIN_JUDGED` answers say otherwise."""
        self._begin()
        self._trusted = True
        self._verdict_fell = False

    def _begin(self) -> None:
        self._judged = 0
        self._answers = np.zeros((3, WINDOW))
        self._pairs = self._right = 0.0

    def judge(self, score: float, q90_tokens: float, tokens: float) -> None:
        """Compare a prediction with the real answer's tokens."""
        if self._verdict_fell:
            self._begin()  # what spoke against it has been heard; new answers may clear it
            self._verdict_fell = False
        slot = self._judged % WINDOW
        if self._judged >= WINDOW:
            self._count(slot, -1)
        self._answers[:, slot] = score, tokens, tokens <= q90_tokens
        self._judged += 1
        self._count(slot, 1)
        if self._judged >= MIN_JUDGED:
            self._decide()

    @property
    def trusted(self) -> bool:
        """The verdict."""
        return self._trusted

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
        if self._trusted and accuracy < LOST_BELOW:
            self._trusted, self._verdict_fell = False, True
        elif accuracy >= (REGAINED_FROM if self._judged >= 2 * MIN_JUDGED else REGAINED_SOON_FROM):
            self._trusted = True


class Trusts:
    """A verdict for each model, and one for them all: that of whichever model the recent answers came from.

    Models are told apart by a number; of more than `MAX_MODELS` the rest shares one verdict.
    """

    def __init__(self) -> None:
        """Start trusting, whatever the model."""
        self._by_model: dict[int, Trust] = {}
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._judged = 0

    def judge(self, model: int, score: float, q90_tokens: float, tokens: float) -> None:
        """Compare a prediction for a model with the real answer's tokens."""
        if model not in self._by_model and len(self._by_model) >= MAX_MODELS:
            model = -1
        self._recent.append(model)
        self._judged += 1
        self._by_model.setdefault(model, Trust()).judge(score, q90_tokens, tokens)

    def quality(self) -> Quality:
        """Return how the predictor does on the model that is asked most; trusted unless most answers come
        from models on which it is not.
        """
        if not self._recent:
            return Trust().quality()
        counts = Counter(self._recent)
        busiest = self._by_model[counts.most_common(1)[0][0]].quality()
        distrusted = sum(n for model, n in counts.items() if not self._by_model[model].trusted)
        return replace(busiest, judged=self._judged, trusted=2 * distrusted <= len(self._recent))
