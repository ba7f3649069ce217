"""Learns from the traffic: a correction of the static mean, and the spread and the classes of each model.

Rule 1: only weights and variances of hashed features are saved. The features of the latest answers are in
memory only, and text is not kept at all.
Rule 2: learning from an answer costs the same after ten thousand answers as after a thousand.
Rule 3: where nothing was learned the correction is zero. On traffic that is only noise it costs one to two
points of ranking accuracy. It is always applied in full: weighting it by its success made scores of different
times incomparable, and cost requests 100 to 200 of a stream two to five points.
"""

import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import sqrt
from zlib import crc32

import numpy as np
import numpy.typing as npt

from predictor.errors import ModelError
from predictor.lexical.words import Hashes
from predictor.lognormal import LOG_LONG, LOG_SHORT

Floats = npt.NDArray[np.float32]
Buckets = npt.NDArray[np.uint16]

NOISE = np.float32(2.0)
"""Variance of what cannot be learned, in squared log units. The evidence of streams is for 0.5 or less, but a
lower one ranks pairs that differ by a fifth worse. The square of a feature is how freely it may learn."""

GRAM_VALUE = 0.9
MAX_GRAMS = 192
BUCKETS = 1 << 14
_OWN = np.uint32(0x9E3779B1)  # Knuth's multiplicative hash: its upper bits depend on all bits
_BITS = np.uint32(18)

KEY_BUCKETS = 256

REMEMBERED = 400
"""How many of the latest answers are weighed against each other. Older ones stay in the weights."""

LEAST_VARIANCE = np.float32(1e-3)
"""Lower bound of a dense weight's variance, so that it still changes after many answers."""

LARGEST_SURPRISE = 3.0  # log units; limits the effect of a single answer
_MAGIC = b"correction 8\n"
_HEAD = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class Features:
    """A request as the correction sees it: buckets of grams, and dense numbers including the hashed keys.

    Each gram has a bucket for all clients and one for its own client, so that another client's answers to the
    same words do not undo what was learned from its own.
    """

    grams: Buckets
    dense: Floats

    @classmethod
    def of(cls, hashes: Hashes, client: int, dense: Floats) -> "Features":
        """Describe a request by the distinct hashes of its grams and the 32-bit hash of its client."""
        kept = hashes[:MAX_GRAMS]
        own = (kept ^ np.uint32(client)) * _OWN
        return cls((np.concatenate((kept * _OWN, own)) >> _BITS).astype(np.uint16), dense)

    @property
    def gram_value(self) -> float:
        """Value of each gram, such that the grams of a request have unit length times GRAM_VALUE."""
        return GRAM_VALUE / sqrt(len(self.grams))


def hashed_keys(keys: Mapping[str, float]) -> Floats:
    """Return keys with their values as numbers, (KEY_BUCKETS,). Collisions are rare and have random signs."""
    numbers = np.zeros(KEY_BUCKETS, np.float32)
    for key, value in keys.items():
        place = crc32(key.encode("utf-8", "replace"))
        numbers[place % KEY_BUCKETS] += value if place >> 31 else -value
    return numbers


class Correction:
    """A Bayesian linear regression of the difference between real and static log tokens.

    It is exact for the latest REMEMBERED answers: their features and the inverse of their kernel matrix are
    kept, which takes less than the covariance of all weights (sliding-window kernel recursive least squares:
    Van Vaerenbergh et al., ICASSP 2006). Of an older answer, what it taught stays in the weights, and how
    certain it made each weight in that weight's variance.
    """

    def __init__(self, width: int) -> None:
        """Start with nothing learned, for dense vectors of `width` numbers."""
        self.learnt = 0
        self._dense, self._dense_variances = np.zeros(width, np.float32), np.ones(width, np.float32)
        self._table, self._variances = np.zeros(BUCKETS + 1, np.float32), np.ones(BUCKETS + 1, np.float32)
        self._variances[BUCKETS] = 0.0  # it fills the rows of answers with few grams
        self._place = 0  # of the next answer among the latest
        self._last_dense = np.zeros((REMEMBERED, width), np.float32)
        self._last_grams = np.full((REMEMBERED, 2 * MAX_GRAMS), BUCKETS, np.intp)
        self._last_values = np.zeros(REMEMBERED, np.float32)
        self._widest = 0  # of the rows of grams
        self._inverse = np.zeros((REMEMBERED, REMEMBERED), np.float32)
        self._change = np.empty_like(self._inverse)

    def shift(self, features: Features) -> float:
        """Return what to add to the mean log tokens."""
        if not self.learnt:
            return 0.0
        words = self._table.take(features.grams).sum() * features.gram_value
        return float(self._dense @ features.dense + words)

    def learn(self, features: Features, static: float, real: float) -> None:
        """Learn from an answer of `real` log tokens where the static prediction was `static`."""
        surprise = min(max(real - static, -LARGEST_SURPRISE), LARGEST_SURPRISE) - self.shift(features)
        place, grams = self._place, features.grams
        self._place = (place + 1) % REMEMBERED
        self._drop(place)
        self._widest = max(self._widest, len(grams))
        self._last_dense[place] = features.dense
        self._last_grams[place] = BUCKETS
        self._last_grams[place, : len(grams)] = grams
        self._last_values[place] = value = np.float32(features.gram_value)

        marks = self._variances * np.bincount(grams, minlength=BUCKETS + 1).astype(np.float32)
        alike = marks.take(self._last_grams[:, : self._widest]).sum(axis=1) * self._last_values * value
        alike += self._last_dense @ (features.dense * self._dense_variances)
        own, alike[place] = alike[place], 0.0
        # The inverse without the answer whose place is taken, then with the new one: two changes of rank one.
        dropped = self._inverse[place].copy()
        known = dropped[place] or np.float32(1.0)
        moves = self._inverse @ alike - dropped * (dropped @ alike / known)
        variance = NOISE + max(own - moves @ alike, np.float32(0.0))
        moves[place] = -1.0
        left = np.stack((moves / variance, -dropped / known), axis=1)
        self._inverse += np.matmul(left, np.stack((moves, dropped)), out=self._change)
        self._inverse[place] = self._inverse[:, place] = left[:, 0] * np.float32(-1.0)

        steps = left[:, 0] * np.float32(-surprise)
        self._dense += self._dense_variances * (steps @ self._last_dense)
        self._table += self._variances * self._in_table(steps * self._last_values)
        self.learnt += 1

    def _drop(self, place: int) -> None:
        """Keep what an answer makes certain of each weight (AROW: Crammer et al., NIPS 2009)."""
        grams, value = self._last_grams[place], self._last_values[place]
        words, dense = self._variances[grams] * value, self._dense_variances * self._last_dense[place]
        variance = NOISE + words.sum() * value + dense @ self._last_dense[place]
        self._variances[grams] -= words * words / variance
        self._dense_variances -= dense * dense / variance
        np.maximum(self._dense_variances, LEAST_VARIANCE, out=self._dense_variances)

    def _in_table(self, weights: Floats) -> Floats:
        """Return for each bucket the sum of the weights of the latest answers that have a gram there."""
        grams = self._last_grams[:, : self._widest]
        each = np.repeat(weights, self._widest)
        return np.bincount(grams.ravel(), each, BUCKETS + 1).astype(np.float32)

    def export_state(self) -> bytes:
        """Return what was learned, as weights and variances of hashed features.

        The variances ignore how weights depend on each other.
        """
        used = np.flatnonzero(self._table[:BUCKETS] != 0)  # a tenth of the time of finding floats
        seen = self._in_table(self._last_values**2)[used], np.square(self._last_dense).sum(axis=0)
        before = self._variances[used], self._dense_variances
        after = (
            np.maximum(variances / (1 + variances * each / NOISE), LEAST_VARIANCE)
            for variances, each in zip(before, seen, strict=True)
        )
        words, dense = zip((self._table[used], self._dense), after, strict=True)
        head = _HEAD.pack(self.learnt, len(used), len(self._dense))
        parts = (part.tobytes() for part in (*words, *dense))
        return b"".join((_MAGIC, head, used.astype(np.uint16).tobytes(), *parts))

    @classmethod
    def of_state(cls, state: bytes, width: int) -> "Correction":
        """Return the correction of what `export_state` returned; ModelError if it cannot be used."""
        if not state.startswith(_MAGIC):
            raise ModelError("the learnt state is of another version: learning starts over")
        body = state[len(_MAGIC) :]
        try:
            learnt, used, counted = _HEAD.unpack_from(body)
            buckets = np.frombuffer(body, np.uint16, used, offset=_HEAD.size)
            numbers = np.frombuffer(body, np.float32, offset=_HEAD.size + buckets.nbytes)
            words, dense = numbers[: 2 * used].reshape(2, used), numbers[2 * used :].reshape(2, counted)
        except (struct.error, ValueError) as error:
            raise ModelError(f"the learnt state is damaged ({error}): learning starts over") from None
        whole = counted == width and np.isfinite(numbers).all() and (buckets < BUCKETS).all()
        if not (whole and (words[1] >= 0).all() and (dense[1] >= 0).all()):
            raise ModelError("the learnt state is damaged: learning starts over")
        correction = cls(width)
        correction.learnt = learnt
        correction._table[buckets], correction._variances[buckets] = words
        correction._dense, correction._dense_variances = dense.copy()
        return correction


# -- the spread and the classes of each model's answers ------------------------------------------------

SCALE_GUESSED, SCALE_STEP = 10.0, 0.01
"""How many answers the card's spread counts for, and the least weight of a new one."""

Q90_STEP = 0.08
"""How far, in spreads, the quantile moves; an exceedance moves it nine times as far as the reverse, so
that it rests where one answer in ten exceeds it (Gibbs and Candes, adaptive conformal inference, 2021)."""

EDGE_STEP, EDGE_LEARNED, EDGE_LEAST = 0.4, 50.0, 0.05
"""How far, in log odds, a class boundary moves for an answer wholly unforeseen, after how many answers half
as far, and the least step. The mean may be right and the classes wrong: an edge fitted to other traffic has
its skew (Platt scaling, one answer at a time)."""

LARGEST_EDGE = 3.0

MAX_MODELS = 256


@dataclass(slots=True)
class Edges:
    """The variance of a model's answers, in the card's spreads. `q90_shift` is added to the card's quantile,
    in spreads; `short_shift` and `long_shift` to the log odds of being below the boundaries of the classes,
    learnt from `answers`.
    """

    variance: float = 1.0
    q90_shift: float = 0.0
    short_shift: float = 0.0
    long_shift: float = 0.0
    answers: float = 0.0

    @property
    def scale(self) -> float:
        """The factor on the card's spread, within [0.5, 2]."""
        return min(max(sqrt(self.variance), 0.5), 2.0)

    def learn(self, deviation: float, exceeded: bool) -> None:
        """Learn from an answer `deviation` of the card's spreads off the mean; did it exceed its q90?"""
        self.answers += 1
        rate = max(1 / (SCALE_GUESSED + self.answers), SCALE_STEP)
        self.variance += rate * (min(deviation * deviation, 9.0) - self.variance)
        self.q90_shift = min(max(self.q90_shift + Q90_STEP * (0.9 if exceeded else -0.1), -1.2), 3.0)

    def learn_class(self, real: float, short: float, long: float) -> None:
        """Learn from an answer of `real` log tokens that was Short or Long with these probabilities."""
        step = max(EDGE_STEP / (1 + self.answers / EDGE_LEARNED), EDGE_LEAST)
        short_shift = self.short_shift + step * ((real < LOG_SHORT) - short)
        long_shift = self.long_shift + step * (long - (real >= LOG_LONG))
        self.short_shift = min(max(short_shift, -LARGEST_EDGE), LARGEST_EDGE)
        self.long_shift = min(max(long_shift, -LARGEST_EDGE), LARGEST_EDGE)


class ModelEdges:
    """The edges of each model, by the hash of its name."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[int, Edges] = {}

    def of(self, model: int) -> Edges:
        """Return a model's edges; fresh ones, not kept, for a model not learnt yet."""
        return self._known.get(model) or Edges()

    def to_teach(self, model: int) -> Edges:
        """Return a model's edges, to be kept; past `MAX_MODELS` the one known longest is forgotten."""
        if model not in self._known and len(self._known) >= MAX_MODELS:
            del self._known[next(iter(self._known))]
        return self._known.setdefault(model, Edges())

    def export_state(self) -> dict[str, tuple[float, ...]]:
        """Return what was learnt, fit for JSON."""
        return {str(model): astuple(edges) for model, edges in self._known.items()}

    def import_state(self, state: Mapping[str, tuple[float, ...]]) -> None:
        """Take up what `export_state` returned; TypeError or ValueError if that cannot be."""
        self._known = {int(model): Edges(*map(float, shifts)) for model, shifts in state.items()}
