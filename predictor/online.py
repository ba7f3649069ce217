"""Learning the traffic at hand: a ridge correction of the static mean.

Rule 1: what is kept are weights of hashed features, hashed features of the last answers, and counts; no text.
Rule 2: an answer costs the same whether ten thousand came before it or a thousand.
Rule 3: the correction shrinks to nothing where nothing was learnt (ridge penalty), and its part that orders
requests is used only as far as it has ordered better than the static score, foretold before it was learnt.

The fit is dual: weights are a sum of the answers' features, each times a dual variable. The kernel of the
last `ACTIVE` answers is kept and grows by a row an answer; every few answers some conjugate-gradient steps
from the last solution bring their dual variables up to date. Those of older answers are frozen.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from math import sqrt
from zlib import crc32

import numpy as np
import numpy.typing as npt

from predictor.errors import ModelError
from predictor.words import Hashes

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]

BUCKETS = 1 << 16
_MASK = np.uint32(BUCKETS - 1)

PENALTY = 2.0
GRAM_VALUE = 0.7
CUE_VALUE = 0.7
KEY_VALUE = 1.0
"""How freely each kind of feature may learn, as its length in the feature vector."""

ACTIVE = 512
MOST_GRAMS = 192
MOST_KEYS = 12
REFIT_EVERY = 10
REFIT_ALWAYS_BELOW = 50
STEPS = 12

LARGEST_SURPRISE = 3.0
"""Log units; an answer ten times longer still than this must not bend everything else."""

SHARES = np.array([0.0, 0.25, 0.5, 0.75, 1.0], np.float32)
CAUTION = 0.005
"""How much more ranking accuracy the whole of the correction must have earned than none of it."""

APART = 0.7
"""Log units: only answers that differ by a factor of two say anything about an ordering (PARS, section III-A,
with a delta of 0.5)."""

LEAST_PAIRS = 300
FORGETTING = 0.998
_COMPARED = 256
_STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Features:
    """What the correction sees of a request: hashed grams, hashed keys, and `dense` numbers."""

    grams: Places
    gram_value: float
    keys: Places
    dense: Floats


class Correction:
    """Weights for hashed features, learnt from the difference between real and static log tokens."""

    def __init__(self, width: int) -> None:
        """Start with nothing learnt, for dense vectors of `width` numbers."""
        self.learnt = 0
        self.share = 0.0
        self._weights = Weights(width)
        self._answers = Answers(width)
        self._compared: deque[tuple[float, float, float]] = deque(maxlen=_COMPARED)
        self._right = np.zeros(len(SHARES), np.float32)
        self._pairs = 0.0

    def features(self, hashes: Hashes, keys: Sequence[str], dense: Floats) -> Features:
        """Describe a request; `dense` is scaled so that cues of unit spread weigh as the grams do."""
        grams = (hashes[:MOST_GRAMS] & _MASK).astype(np.intp)
        places = [crc32(key.encode("utf-8", "replace")) % BUCKETS for key in keys[:MOST_KEYS]]
        return Features(grams, GRAM_VALUE / sqrt(len(grams)), np.array(places, np.intp), dense)

    def shift(self, features: Features) -> tuple[float, float]:
        """Return what to add to the mean log tokens: the level of this kind of request, and its own part."""
        if not self.learnt:
            return 0.0, 0.0
        return self._weights.level(features), self._weights.own(features)

    def learn(self, features: Features, static: float, own: float, real: float) -> None:
        """Learn from an answer. `static` and `real` are log tokens, `own` the part foretold then."""
        self._compare(static, own, real)
        surprise = min(max(real - static, -LARGEST_SURPRISE), LARGEST_SURPRISE)
        self._answers.add(features, surprise)
        self.learnt += 1
        if self.learnt % REFIT_EVERY == 0 or self.learnt < REFIT_ALWAYS_BELOW:
            self._weights = self._answers.refit()

    def _compare(self, static: float, own: float, real: float) -> None:
        """Count how often each share of the correction orders this answer rightly against earlier ones."""
        if self._compared:
            others = np.array(self._compared, np.float32)
            apart = others[:, 2] - real
            telling = np.abs(apart) > APART
            foretold = (others[:, 0] - static) + SHARES[:, None] * (others[:, 1] - own)
            agreement = np.sign(foretold[:, telling]) * np.sign(apart[telling])
            self._right = FORGETTING * self._right + ((agreement + 1) / 2).sum(axis=1)
            self._pairs = FORGETTING * self._pairs + float(telling.sum())
        self._compared.append((static, own, real))
        if self._pairs >= LEAST_PAIRS:
            earned = self._right / self._pairs - CAUTION * SHARES
            self.share = float(SHARES[int(np.argmax(earned))])

    def export_state(self) -> bytes:
        """Return what was learnt, as hashed weights and counts."""
        used = np.flatnonzero(self._weights.table)
        buffer = BytesIO()
        np.savez_compressed(
            buffer,
            version=np.array(_STATE_VERSION),
            buckets=used.astype(np.uint32),
            weights=self._weights.table[used],
            dense=self._weights.dense,
            counts=np.array([self.learnt, self.share, self._pairs]),
            right=self._right,
        )
        return buffer.getvalue()

    def import_state(self, state: bytes) -> None:
        """Take up what `export_state` returned; ModelError if it is of another version or damaged."""
        weights = Weights(len(self._weights.dense))
        try:
            with np.load(BytesIO(state), allow_pickle=False) as file:
                parts = {name: file[name] for name in file.files}
            weights.table[parts["buckets"]] = parts["weights"]
            weights.dense += parts["dense"]
            learnt, share, pairs = (float(count) for count in parts["counts"])
            right = parts["right"].astype(np.float32).reshape(len(SHARES))
            version = int(parts["version"])
        except Exception as error:  # zipfile, struct and numpy each have errors of their own here
            raise ModelError(f"the learnt state cannot be used ({error}): it will be learnt anew") from None
        if version != _STATE_VERSION:
            raise ModelError(f"the learnt state has version {version}: it will be learnt anew")
        self._weights = weights
        self._answers = Answers(len(weights.dense), weights)
        self.learnt, self.share, self._pairs, self._right = int(learnt), share, pairs, right


class Weights:
    """One weight a bucket and one a dense number."""

    def __init__(self, width: int) -> None:
        """Start at zero."""
        self.table = np.zeros(BUCKETS, np.float32)
        self.dense = np.zeros(width, np.float32)

    def level(self, features: Features) -> float:
        """Return the part that all requests of this model, client and kind share."""
        return float(self.table[features.keys].sum()) * KEY_VALUE

    def own(self, features: Features) -> float:
        """Return the part that comes from the request's own words."""
        grams = float(self.table[features.grams].sum()) * features.gram_value
        return grams + float(self.dense @ features.dense)

    def add(self, features: Features, times: float) -> None:
        """Add a feature vector, `times` over."""
        np.add.at(self.table, features.grams, times * features.gram_value)
        np.add.at(self.table, features.keys, times * KEY_VALUE)
        self.dense += times * features.dense


class Answers:
    """The last answers, their kernel, and the dual variables that solve the ridge."""

    def __init__(self, width: int, frozen: Weights | None = None) -> None:
        """Start empty, on top of weights that no longer change."""
        self._width = width
        self._frozen = frozen or Weights(width)
        self._features: list[Features] = []
        self._oldest = 0
        # Unused places point at the bucket after the last, whose weight is always zero.
        self._grams = np.full((ACTIVE, MOST_GRAMS), BUCKETS, np.intp)
        self._keys = np.full((ACTIVE, MOST_KEYS), BUCKETS, np.intp)
        self._values = np.zeros(ACTIVE, np.float32)
        self._dense = np.zeros((ACTIVE, width), np.float32)
        self._kernel = np.zeros((ACTIVE, ACTIVE), np.float32)
        self._targets = np.zeros(ACTIVE, np.float32)
        self._duals = np.zeros(ACTIVE, np.float32)
        self._scratch = np.zeros(BUCKETS + 1, np.float32)

    def add(self, features: Features, surprise: float) -> None:
        """Take in an answer that was `surprise` log units off the static mean."""
        slot = self._free_slot()
        self._store(slot, features)
        row = self._kernel_row(features, len(self._features))
        self._kernel[slot, : len(row)] = row
        self._kernel[: len(row), slot] = row
        self._targets[slot] = surprise - self._frozen.level(features) - self._frozen.own(features)
        self._duals[slot] = 0.0

    def refit(self) -> Weights:
        """Bring the dual variables up to date and return the weights they make."""
        count = len(self._features)
        self._descend(count)
        weights = Weights(self._width)
        duals = self._duals[:count]
        grams = np.repeat(duals * self._values[:count], MOST_GRAMS)
        keys = np.repeat(duals * np.float32(KEY_VALUE), MOST_KEYS)
        table = np.bincount(self._grams[:count].ravel(), grams, BUCKETS + 1)
        table += np.bincount(self._keys[:count].ravel(), keys, BUCKETS + 1)
        weights.table += self._frozen.table + table[:BUCKETS].astype(np.float32)
        weights.dense += self._frozen.dense + duals @ self._dense[:count]
        return weights

    def _free_slot(self) -> int:
        if len(self._features) < ACTIVE:
            self._features.append(_NO_FEATURES)
            return len(self._features) - 1
        slot = self._oldest
        self._oldest = (slot + 1) % ACTIVE
        dual = float(self._duals[slot])
        self._frozen.add(self._features[slot], dual)
        self._targets -= dual * self._kernel[slot]
        return slot

    def _store(self, slot: int, features: Features) -> None:
        self._features[slot] = features
        self._grams[slot] = BUCKETS
        self._grams[slot, : len(features.grams)] = features.grams
        self._keys[slot] = BUCKETS
        self._keys[slot, : len(features.keys)] = features.keys
        self._values[slot] = features.gram_value
        self._dense[slot] = features.dense

    def _kernel_row(self, features: Features, count: int) -> Floats:
        scratch = self._scratch
        np.add.at(scratch, features.grams, features.gram_value)
        np.add.at(scratch, features.keys, KEY_VALUE)
        row: Floats = scratch[self._grams[:count]].sum(axis=1) * self._values[:count]
        row += scratch[self._keys[:count]].sum(axis=1) * KEY_VALUE
        row += self._dense[:count] @ features.dense
        scratch[features.grams] = 0.0
        scratch[features.keys] = 0.0
        return row

    def _descend(self, count: int) -> None:
        """Take conjugate-gradient steps on (K + penalty I) duals = targets."""
        kernel, duals = self._kernel[:count, :count], self._duals[:count]
        residual = self._targets[:count] - kernel @ duals - PENALTY * duals
        direction, error = residual.copy(), float(residual @ residual)
        for _ in range(STEPS):
            if error < 1e-6 * count:
                return
            image = kernel @ direction + PENALTY * direction
            step = error / float(direction @ image)
            duals += step * direction
            residual -= step * image
            previous, error = error, float(residual @ residual)
            direction *= error / previous
            direction += residual


_NO_FEATURES = Features(np.empty(0, np.intp), 0.0, np.empty(0, np.intp), np.empty(0, np.float32))
