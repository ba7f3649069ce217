"""Predicts the answer lengths of chores from their own history: three numbers a chore, model and client."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from math import isfinite, sqrt
from typing import NamedTuple
from zlib import crc32

from predictor.card import Calibration
from predictor.lognormal import log_tokens, prediction_of
from predictor.record import Prediction, PromptView

GUESSED = 1.0  # answers that the guess at a chore's length counts for
GUESSED_SPREAD = 0.5
LEAST_SPREAD, MOST_SPREAD = 0.1, 1.2  # log tokens
SLOWEST = 0.05  # the least weight of a new answer: it follows the last twenty
MAX_CHORES = 512


class ChoreMemo(NamedTuple):
    """What is needed to learn from a chore's answer later."""

    key: str
    guess: float
    mean: float
    cap: int | None


@dataclass(slots=True)
class _Length:
    """Mean and variance of a chore's log tokens, and how many answers they are from."""

    answers: int
    mean: float
    variance: float = GUESSED_SPREAD**2

    def learn(self, real: float) -> None:
        self.answers += 1
        rate = max(1.0 / (GUESSED + self.answers), SLOWEST)
        off = real - self.mean
        self.mean += rate * off
        self.variance = (1 - rate) * (self.variance + rate * off * off)


class ChoreLengths:
    """The lengths of chores, learnt answer by answer from a guess."""

    def __init__(self, state: Mapping[str, Sequence[float]] | None = None) -> None:
        """Take up what `export_state` returned; TypeError or ValueError if that cannot be."""
        self._known: dict[str, _Length] = {}
        for key, (answers, mean, variance) in (state or {}).items():
            if not (isfinite(mean) and isfinite(variance) and variance >= 0):
                raise ValueError(key)
            self._known[key] = _Length(int(answers), mean, variance)

    def predict(self, view: PromptView, chore: str, guessed_tokens: float) -> Prediction:
        """Return the prediction for a chore of this name; `source` is that name."""
        key, guess = _key(view, chore), log_tokens(guessed_tokens)
        known = self._known.get(key) or _Length(0, guess)
        spread = min(max(sqrt(known.variance), LEAST_SPREAD), MOST_SPREAD)
        calibration = Calibration(0.0, 1.0, spread)
        q90 = known.mean + calibration.q90_at * spread
        memo = ChoreMemo(key, guess, known.mean, view.max_tokens)
        return prediction_of(calibration, known.mean, spread, q90, view.max_tokens, chore, memo)

    def learn(self, memo: ChoreMemo, tokens: int) -> None:
        """Learn from a real answer; one that was cut off at the client's cap was at least that long."""
        real = log_tokens(tokens)
        if memo.cap is not None and tokens >= memo.cap and real <= memo.mean:
            return
        if memo.key not in self._known and len(self._known) >= MAX_CHORES:
            del self._known[next(iter(self._known))]
        self._known.setdefault(memo.key, _Length(0, memo.guess)).learn(real)

    def export_state(self) -> dict[str, tuple[float, ...]]:
        """Return what was learnt, fit for JSON."""
        return {key: astuple(each) for key, each in self._known.items()}


def _key(view: PromptView, chore: str) -> str:
    """Return a hash that identifies a chore of a model and a client, all users of the client together."""
    owner = view.client.partition("/")[0]
    return f"{crc32(f'{owner} {view.model} {chore}'.encode('utf-8', 'replace')):08x}"
