"""Decides for which clients the predictor ranks answers well enough, from its earlier predictions."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from predictor.ranking import ranking_accuracy
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, USUAL, Distrusted, Prediction, Quality

WINDOW = 200  # judged answers that count: older ones say little about the present
MIN_JUDGED = 40
MIN_PAIRS = 200
LOST_BELOW = 0.54
REGAINED_FROM = 0.60
"""Chance is 0.5; between the two bounds trust stays what it was, so that it does not flicker."""

REGAINED_SOON_FROM = 0.66
"""Of fewer than twice `MIN_JUDGED` answers since trust was lost: chance comes so far once in 300 times (the
standard error of Kendall's tau over 40 answers is 0.11, and accuracy is half of it)."""

MAX_MODELS = 4  # models with their own verdict for one client; the others share one

MAX_CLIENTS = 1000
"""Clients with verdicts: with four models each some 10 MB. Beyond that, the least recent is forgotten."""

MODEL_CHARS = 64  # characters of a model's name that are kept: clients choose it

TELLING_FACTOR = 2.0
"""Answers that differ by less than this say nothing about an ordering: PARS's filter with a delta of 0.5."""


class Usual(NamedTuple):
    """A summary of answers: shares of the classes, mean and upper quantile of the tokens."""

    short: float
    medium: float
    long: float
    tokens: float
    tokens_q90: float


class Trust:
    """The verdict over the last answers; `usual` summarises them while the predictor is not trusted.
    `evidence` is how many answers it rests on, and the share of their telling pairs ranked right.
    """

    def __init__(self) -> None:
        """Start trusting, until `MIN_JUDGED` answers show otherwise."""
        self._begin()
        self.usual: Usual | None = None
        self.evidence: tuple[int, float | None] = (0, None)
        self._verdict_fell = False

    def _begin(self) -> None:
        self._judged = 0
        self._answers = np.zeros((3, WINDOW), np.float32)
        self._pairs = self._right = 0.0

    def judge(self, score: float, q90_tokens: float, tokens: float) -> None:
        """Compare a prediction with the real answer's tokens."""
        if self._verdict_fell:
            self._begin()  # judge again from new answers alone
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
        return self.usual is None

    def quality(self) -> Quality:
        """Return how the predictor does; accuracies are None while there is nothing to count."""
        if not self._judged:
            return Quality(0, None, None)
        scores, tokens, covered = self._answers[:, : self._judged]
        ranking = ranking_accuracy(scores, tokens)
        accuracy = ranking.accuracy if ranking.n_short and ranking.n_long else None
        return Quality(self._judged, accuracy, float(covered.mean()))

    def _count(self, slot: int, times: int) -> None:
        """Add an answer's telling pairs with all others of the window, or subtract them."""
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
        accuracy = float(self._right / self._pairs)
        self.evidence = min(self._judged, WINDOW), accuracy
        if self.trusted and accuracy < LOST_BELOW:
            self.usual, self._verdict_fell = self._usual(), True
        elif accuracy >= (REGAINED_FROM if self._judged >= 2 * MIN_JUDGED else REGAINED_SOON_FROM):
            self.usual = None
        elif not self.trusted:
            self.usual = self._usual()

    def _usual(self) -> Usual:
        tokens = self._answers[1, : self._judged]
        short, long = (tokens < SHORT_BELOW_TOKENS).mean(), (tokens >= LONG_FROM_TOKENS).mean()
        middle = max(0.0, 1.0 - float(short) - float(long))
        return Usual(float(short), middle, float(long), float(tokens.mean()), float(np.quantile(tokens, 0.9)))


class Trusts:
    """A verdict for each client and model, so that one client's answers do not decide how the requests of
    others are ordered, and the quality over all of them. Clients without a name have no verdict.
    """

    def __init__(self) -> None:
        """Start trusting for all clients."""
        self._of: dict[str, dict[str, Trust]] = {}  # the client with the latest answer last
        self._distrusted: dict[tuple[str, str], Distrusted] = {}  # likewise
        self._all = Trust()
        self._judged = 0

    def judge(self, client: str, model: str, score: float, q90_tokens: float, tokens: float) -> None:
        """Compare a prediction for a client's request to a model with the real answer's tokens."""
        self._all.judge(score, q90_tokens, tokens)
        self._judged += 1
        if not client:
            return
        models = self._of[client] = self._of.pop(client, {})
        if len(self._of) > MAX_CLIENTS:
            forgotten = next(iter(self._of))
            for name in self._of.pop(forgotten):
                self._distrusted.pop((forgotten, name), None)
        name = _told_apart(models, model)
        trust = models.setdefault(name, Trust())
        trust.judge(score, q90_tokens, tokens)
        self._distrusted.pop((client, name), None)
        if not trust.trusted:
            self._distrusted[client, name] = Distrusted(client, name, *trust.evidence)

    def trusted(self, prediction: Prediction, client: str, model: str, cap: int | None) -> Prediction:
        """Return the prediction, or the summary of recent answers for a client that cannot be ranked."""
        models = self._of.get(client)
        trust = None if models is None else models.get(_told_apart(models, model))
        if trust is None or trust.usual is None:
            return prediction
        short, medium, long, tokens, tokens_q90 = trust.usual
        if cap is not None and cap >= 0:
            tokens, tokens_q90 = min(tokens, cap), min(tokens_q90, cap)
        return replace(
            prediction,
            p_short=short,
            p_medium=medium,
            p_long=long,
            expected_tokens=tokens,
            q90_tokens=tokens_q90,
            source=USUAL,
        )

    def quality(self) -> Quality:
        """Return the quality over all recent answers, and the clients for which it is not trusted."""
        distrusted = tuple(reversed(self._distrusted.values()))
        trusted = not distrusted or len(distrusted) < sum(map(len, self._of.values()))
        return replace(self._all.quality(), judged=self._judged, trusted=trusted, distrusted=distrusted)


def _told_apart(models: dict[str, Trust], model: str) -> str:
    """Return the name under which the answers of a model are judged."""
    name = model[:MODEL_CHARS]
    return name if name in models or len(models) < MAX_MODELS else "others"
