"""Learns the traffic at hand: a ridge correction of the static mean, and the spread of each model.

Rule 1: what outlives the daemon are weights of hashed features and counts. Of the last answers hashes and
embeddings are in memory; text is nowhere.
Rule 2: an answer costs the same whether ten thousand came before it or a thousand.
Rule 3: the correction shrinks to nothing where nothing was learnt (ridge penalty); where there is nothing to
learn but noise it costs one to two points of ranking accuracy. It is always applied in full: weighting it by
its success made scores of different times incomparable, and cost requests 100 to 200 of a stream two to five
points.
"""

import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import sqrt
from zlib import crc32

import numpy as np

from predictor.errors import ModelError
from predictor.lexical.ridge import BUCKETS, MAX_GRAMS, MAX_KEYS, Features, Floats, Ridge
from predictor.lexical.words import Hashes
from predictor.lognormal import LOG_LONG, LOG_SHORT

_MASK = np.uint32(BUCKETS - 1)

CUE_VALUE = 0.5  # how freely cues of unit spread may learn, all of them together; half as freely as the grams
LARGEST_SURPRISE = 3.0  # log units; an answer ten times longer still than this must not bend everything else
_MAGIC = b"correction 5\n"
_HEAD = struct.Struct("<QII")


class Correction:
    """What is added to the static log tokens, learnt from their difference from the real ones."""

    def __init__(self, width: int) -> None:
        """Start with nothing learnt, for dense vectors of `width` numbers."""
        self.learnt = 0
        self._width = width
        self._ridge = Ridge(width)

    def features(self, hashes: Hashes, keys: Sequence[str], dense: Floats) -> Features:
        """Describe a request; `dense` is scaled so that cues of unit spread weigh `CUE_VALUE`."""
        grams = (hashes[:MAX_GRAMS] & _MASK).astype(np.intp)
        places = [crc32(key.encode("utf-8", "replace")) % BUCKETS for key in keys[:MAX_KEYS]]
        return Features(grams, np.array(places, np.intp), dense)

    def shift(self, features: Features) -> float:
        """Return what to add to the mean log tokens."""
        return self._ridge.predict(features) if self.learnt else 0.0

    def learn(self, features: Features, static: float, real: float) -> None:
        """Learn from an answer of `real` log tokens, `static` without what was learnt."""
        self._ridge.learn(features, min(max(real - static, -LARGEST_SURPRISE), LARGEST_SURPRISE))
        self.learnt += 1

    def export_state(self) -> bytes:
        """Return what was learnt, as hashed weights and counts; a copy and no more, for an event loop."""
        used = np.flatnonzero(self._ridge.table[:BUCKETS] != 0)  # a tenth of the time of finding floats
        head = _HEAD.pack(self.learnt, len(used), self._width)
        weights = self._ridge.table[used]
        return b"".join(
            (_MAGIC, head, used.astype(np.uint16).tobytes(), weights.tobytes(), self._ridge.dense.tobytes())
        )

    def import_state(self, state: bytes) -> None:
        """Take up what `export_state` returned; ModelError if it is of another version or damaged."""
        if not state.startswith(_MAGIC):
            raise ModelError("the learnt state is of another version: learning starts over")
        ridge, body = Ridge(self._width), state[len(_MAGIC) :]
        try:
            learnt, used, width = _HEAD.unpack_from(body)
            parts = body[_HEAD.size :]
            buckets = np.frombuffer(parts, np.uint16, used)
            weights = np.frombuffer(parts, np.float32, used + width, offset=buckets.nbytes)
        except (struct.error, ValueError) as error:
            raise ModelError(f"the learnt state is damaged ({error}): learning starts over") from None
        whole = len(parts) == buckets.nbytes + weights.nbytes and width == self._width
        if not (whole and np.isfinite(weights).all()):
            raise ModelError("the learnt state is damaged: learning starts over")
        ridge.table[buckets] = weights[:used]
        ridge.dense += weights[used:]
        self._ridge, self.learnt = ridge, learnt


# -- the spread of each model's answers --------------------------------------------------------------

SHRINKAGE = 20.0  # answers the card's own spread counts for

Q90_STEP = 0.08
"""How far, in spreads, the quantile moves; an exceedance moves it nine times as far as the reverse, so
that it rests where one answer in ten exceeds it (Gibbs and Candes, adaptive conformal inference, 2021)."""

SLOWEST = 0.005  # the least weight of a new answer: traffic changes
EDGE_STEP = 4.0
SLOWEST_EDGE = 0.05
"""How far, in log odds, a class boundary moves for an answer wholly unforeseen: `EDGE_STEP`, over the number
of answers and `SHRINKAGE`, but never less than `SLOWEST_EDGE`. The mean may be right and the classes wrong:
an edge fitted to other traffic has its skew (Platt scaling, one answer at a time)."""

LARGEST_EDGE = 3.0

MAX_MODELS = 256


@dataclass(slots=True)
class ResidualScale:
    """`scale` multiplies the card's spread, `q90_shift` is added to its quantile, in spreads.

    `short_shift` and `long_shift` are added to the log odds of being below the boundaries of the classes.
    """

    answers: int = 0
    variance: float = 1.0
    q90_shift: float = 0.0
    short_shift: float = 0.0
    long_shift: float = 0.0

    @property
    def scale(self) -> float:
        """The factor on the card's spread, within [0.5, 2]."""
        return min(max(sqrt(self.variance), 0.5), 2.0)

    def learn(self, deviation: float, exceeded: bool) -> None:
        """Learn from an answer `deviation` of the card's spreads off the mean; did it exceed its q90?"""
        self.answers += 1
        rate = max(1.0 / (SHRINKAGE + self.answers), SLOWEST)
        self.variance += rate * (min(deviation * deviation, 9.0) - self.variance)
        self.q90_shift += Q90_STEP * (0.9 if exceeded else -0.1)
        self.q90_shift = min(max(self.q90_shift, -1.2), 3.0)

    def learn_class(self, real: float, short: float, long: float) -> None:
        """Learn from an answer of `real` log tokens that was Short or Long with these probabilities."""
        rate = max(EDGE_STEP / (SHRINKAGE + self.answers), SLOWEST_EDGE)
        short_shift = self.short_shift + rate * ((real < LOG_SHORT) - short)
        long_shift = self.long_shift + rate * (long - (real >= LOG_LONG))
        self.short_shift = min(max(short_shift, -LARGEST_EDGE), LARGEST_EDGE)
        self.long_shift = min(max(long_shift, -LARGEST_EDGE), LARGEST_EDGE)


class ResidualScales:
    """The spread of each model, by the hash of its name."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[int, ResidualScale] = {}

    def of(self, model: int) -> ResidualScale:
        """Return a model's spread; a fresh one, not kept, for a model not learnt yet."""
        return self._known.get(model) or ResidualScale()

    def to_teach(self, model: int) -> ResidualScale:
        """Return a model's spread, to be kept; past `MAX_MODELS` the one known longest is forgotten."""
        if model not in self._known and len(self._known) >= MAX_MODELS:
            del self._known[next(iter(self._known))]
        return self._known.setdefault(model, ResidualScale())

    def export_state(self) -> bytes:
        """Return six numbers a model."""
        rows = [(key, *astuple(each)) for key, each in self._known.items()]
        return np.array(rows, np.float64).tobytes()

    def import_state(self, state: bytes) -> None:
        """Take up what `export_state` returned; ModelError if it is damaged."""
        try:
            rows = np.frombuffer(state, np.float64).reshape(-1, 6)
            self._known = {
                int(key): ResidualScale(int(answers), *shifts)
                for key, answers, *shifts in rows[np.isfinite(rows).all(axis=1)].tolist()
            }
        except ValueError as error:
            raise ModelError(f"the learnt spreads are damaged ({error}): learning starts over") from None
