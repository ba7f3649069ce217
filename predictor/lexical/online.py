"""Learns from the traffic: a correction of the static mean, and the spread and the classes of each model.

Rule 1: only weights and variances of hashed features, and counts, are saved. The features of the latest
answers are in memory only, and text is not kept at all.
Rule 2: learning from an answer costs the same after ten thousand answers as after a thousand.
Rule 3: where nothing was learned the correction is zero. On traffic that is only noise it costs one to two
points of ranking accuracy. It is always applied in full: weighting it by its success made
scores of different times incomparable, and cost requests 100 to 200 of a stream two to five points.
"""

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from predictor.errors import ModelError
from predictor.lexical.words import Hashes
from predictor.lognormal import LOG_LONG, LOG_SHORT

Floats = npt.NDArray[np.float32]
Buckets = npt.NDArray[np.uint16]

NOISE = np.float32(2.0)
"""Variance of what cannot be learned. A feature's square is how freely it may learn (a ridge penalty)."""

GRAM_VALUE = 0.7
MAX_GRAMS = 192
BUCKETS = 1 << 16
_OWN = np.uint32(0x9E3779B1)  # Knuth's multiplicative hash: its upper bits depend on all bits

KEY_BUCKETS = 256

REPLAYED, REPLAYED_OF = 4, 256
REPLAY_RATE = np.float32(0.1)
"""After each answer, the words learn again from `REPLAYED` of the last `REPLAYED_OF`. It ranks unseen streams
about half a point better."""

DRIFT = np.float32(1e-5)
"""Share of the certainty that is lost with each answer, so that the weights can follow changing traffic."""

LARGEST_SURPRISE = 3.0  # log units; limits the effect of a single answer
_MAGIC = b"correction 7\n"
_HEAD = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class Features:
    """A request as the correction sees it: buckets of grams, and dense numbers including the hashed keys.

    Each gram has a bucket for all clients and one for its own client, so that another client's answers to the
    same words do not undo what was learned from its own.

    Two grams of a prompt in one bucket count twice and are learned once.
    """

    grams: Buckets
    dense: Floats
    gram_value: np.float32  # of each, such that all grams of a request together have length GRAM_VALUE

    @classmethod
    def of(cls, hashes: Hashes, client: int, dense: Floats) -> "Features":
        """Describe a request by the distinct hashes of its grams and the 32-bit hash of its client."""
        kept = hashes[:MAX_GRAMS]
        own = (kept ^ np.uint32(client)) * _OWN >> np.uint32(16)
        grams = np.concatenate((kept, own), dtype=np.uint16, casting="unsafe")
        return cls(grams, dense, np.float32(GRAM_VALUE / sqrt(len(grams) or 1)))


class Correction:
    """A Bayesian linear regression of the difference between real and static log tokens.

    It keeps the full covariance of the dense features, and only the variances of the words
    (AROW: Crammer et al., NIPS 2009).
    """

    def __init__(self, width: int) -> None:
        """Start with nothing learned, for dense vectors of `width` numbers."""
        self.learnt = 0
        self._dense = np.zeros(width, np.float32)
        # Few of the dense features ever occur: the covariance has these alone, in the order of `_occurred`.
        self._has_occurred = np.zeros(width, np.bool_)
        self._occurred = np.empty(0, np.intp)
        self._covariance = np.empty((0, 0), np.float32)
        self._table = np.zeros(BUCKETS, np.float32)
        self._variances = np.ones(BUCKETS, np.float32)
        self._last: deque[tuple[Features, float]] = deque(maxlen=REPLAYED_OF)
        self._random = np.random.default_rng(0)

    def shift(self, features: Features) -> float:
        """Return what to add to the mean log tokens."""
        if not self.learnt:
            return 0.0
        words = np.add.reduce(self._table.take(features.grams)) * features.gram_value
        return float(self._dense @ features.dense + words)

    def learn(self, features: Features, static: float, real: float) -> None:
        """Learn from an answer of `real` log tokens where the static prediction was `static`."""
        surprise = min(max(real - static, -LARGEST_SURPRISE), LARGEST_SURPRISE)
        value, grams = features.gram_value, features.grams
        self._widen(features.dense != 0)
        dense = features.dense[self._occurred]
        moved, words = self._covariance @ dense, self._variances[grams] * value
        variance = NOISE + np.float32(max(float(dense @ moved), 0.0)) + words.sum() * value
        unforeseen = np.float32(surprise - self.shift(features)) / variance
        self._dense[self._occurred] += moved * unforeseen
        self._table[grams] += words * unforeseen
        self._covariance -= np.multiply.outer(moved, moved / variance)
        self._variances[grams] -= words * words / variance
        certain = self._covariance.reshape(-1)[:: len(moved) + 1]  # the diagonal, to be written to
        certain += DRIFT * (1 - certain)
        self.learnt += 1
        self._last.append((features, surprise))
        for place in self._random.integers(0, len(self._last), REPLAYED):
            again, told = self._last[place]
            missed = REPLAY_RATE * np.float32(told - self.shift(again)) * again.gram_value
            self._table[again.grams] += missed * self._variances[again.grams]

    def _widen(self, occurring: npt.NDArray[np.bool_]) -> None:
        """Give the covariance the dense features that occur for the first time."""
        added = np.flatnonzero(occurring & ~self._has_occurred)
        if not len(added):
            return
        self._has_occurred[added] = True
        known = len(self._occurred)
        self._occurred = np.concatenate((self._occurred, added))
        widened = np.eye(len(self._occurred), dtype=np.float32)
        widened[:known, :known] = self._covariance
        self._covariance = widened

    def export_state(self) -> bytes:
        """Return what was learned, as hashed weights and variances. Cheap enough for an event loop."""
        used = np.flatnonzero(self._table != 0)  # a tenth of the time of finding floats
        head = _HEAD.pack(self.learnt, len(used), len(self._dense))
        variances = np.ones_like(self._dense)
        variances[self._occurred] = self._covariance.diagonal()
        parts = self._table[used], self._variances[used], self._dense, variances
        return b"".join((_MAGIC, head, used.astype(np.uint16).tobytes(), *(part.tobytes() for part in parts)))

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
        whole = counted == width and np.isfinite(numbers).all()
        if not (whole and (words[1] >= 0).all() and (dense[1] >= 0).all()):
            raise ModelError("the learnt state is damaged: learning starts over")
        correction = cls(width)
        correction.learnt = learnt
        correction._table[buckets], correction._variances[buckets] = words
        correction._dense += dense[0]
        correction._widen(dense[1] != 1)
        np.fill_diagonal(correction._covariance, dense[1][correction._occurred])
        return correction


# -- the spread and the classes of each model's answers ------------------------------------------------

SCALE_GUESSED, SCALE_STEP = 10.0, 0.01
"""How many answers the card's spread counts as, and the least weight of a new answer."""

Q90_STEP = 0.08
"""How far, in spreads, the quantile moves; an exceedance moves it nine times as far as the reverse, so
that it rests where one answer in ten exceeds it (Gibbs and Candes, adaptive conformal inference, 2021)."""

EDGE_STEP, EDGE_LEARNED, EDGE_LEAST = 0.4, 50.0, 0.05
"""Initial step of a class boundary in log odds, the number of answers after which it has halved, and the
least step. The mean may be right and the classes wrong, because the boundaries were fitted to other traffic
(Platt scaling, one answer at a time)."""

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
        """Return a model's edges; defaults, not kept, for a model without answers."""
        return self._known.get(model) or Edges()

    def to_teach(self, model: int) -> Edges:
        """Return a model's edges, to be kept; beyond `MAX_MODELS` the one with the fewest answers is
        dropped: clients choose the names.
        """
        if model not in self._known and len(self._known) >= MAX_MODELS:
            del self._known[min(self._known, key=lambda each: self._known[each].answers)]
        return self._known.setdefault(model, Edges())

    def export_state(self) -> dict[str, tuple[float, ...]]:
        """Return what was learned, as values for JSON."""
        return {str(model): astuple(edges) for model, edges in self._known.items()}

    def import_state(self, state: Mapping[str, tuple[float, ...]]) -> None:
        """Restore what `export_state` returned; TypeError or ValueError if it is damaged."""
        self._known = {int(model): Edges(*map(float, shifts)) for model, shifts in state.items()}
