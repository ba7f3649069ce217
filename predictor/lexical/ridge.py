"""A ridge regression on hashed features that learns from one answer at a time, in bounded time.

The fit is dual: weights are a sum of the answers' features, each times a dual variable. The kernel of the
last `ACTIVE` answers is kept and grows by a row an answer; a few conjugate-gradient steps from the last
solution bring their dual variables up to date. What older answers have added to the weights stays there.

Rule: no answer pays for a whole refit. A new set of weights is made a slice of answers at a time, and used
once it is whole: in between, what the answers say in common would be out of balance.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]

BUCKETS = 1 << 16

PENALTY = 2.0
GRAM_VALUE = 1.0
KEY_VALUE = 1.0
"""How freely each kind of feature may learn, as its length in the feature vector."""

ACTIVE = 512
MAX_GRAMS = 192
MAX_KEYS = 12

SLICE = 64
STEPS = 3
STEPS_AT_FIRST = 12
"""While a slice holds all there is."""


class Features(NamedTuple):
    """What the regression sees of a request: hashed grams, hashed keys, and `dense` numbers."""

    grams: Places
    keys: Places
    dense: Floats

    @property
    def gram_value(self) -> float:
        """The value of each gram: they are as long together whatever their number."""
        return GRAM_VALUE / sqrt(len(self.grams))


class Ridge:
    """Weights for hashed features, and the answers that they still change with."""

    def __init__(self, width: int) -> None:
        """Start with nothing learnt, for dense vectors of `width` numbers."""
        # Unused places point at the bucket after the last: what is added there is never read.
        self.table = np.zeros(BUCKETS + 1, np.float32)
        self.dense = np.zeros(width, np.float32)
        self._coming = np.zeros_like(self.table), np.zeros_like(self.dense)
        self._count = self._next = self._swept = 0
        self._widest = 1
        self._grams = np.full((ACTIVE, MAX_GRAMS), BUCKETS, np.intp)
        self._keys = np.full((ACTIVE, MAX_KEYS), BUCKETS, np.intp)
        self._values = np.zeros(ACTIVE, np.float32)
        self._dense = np.zeros((ACTIVE, width), np.float32)
        self._kernel = np.zeros((ACTIVE, ACTIVE), np.float32)
        self._targets = np.zeros(ACTIVE, np.float32)
        self._duals = np.zeros(ACTIVE, np.float32)
        self._aims = np.zeros(ACTIVE, np.float32)
        self._applied = np.zeros(ACTIVE, np.float32)
        self._scratch = np.zeros(BUCKETS + 1, np.float32)

    def level(self, features: Features) -> float:
        """Return the part that all requests of this model, client and kind share."""
        return float(self.table[features.keys].sum()) * KEY_VALUE

    def own(self, features: Features) -> float:
        """Return the part that comes from the request's own words."""
        grams = float(self.table[features.grams].sum()) * features.gram_value
        return grams + float(self.dense @ features.dense)

    # OpenBLAS at times computes on what lies beyond a row, and drops it: the flag it leaves means nothing.
    @np.errstate(invalid="ignore", over="ignore")
    def learn(self, features: Features, surprise: float) -> None:
        """Take in an answer that was `surprise` log units off the static mean."""
        slot = self._free_slot()
        self._store(slot, features)
        row = self._kernel_row(features)
        # What the older answers alone predict is what all predict less the active ones' part of it.
        older = self._predicted(features) - float(row @ self._applied[: self._count])
        self._kernel[slot, : self._count] = row
        self._kernel[: self._count, slot] = row
        self._targets[slot] = surprise - older
        self._descend(STEPS if self._count > SLICE else STEPS_AT_FIRST)
        self._sweep()

    def _free_slot(self) -> int:
        """Return the slot of the oldest active answer, which from now on counts among the older ones."""
        slot = self._next
        self._next = (slot + 1) % ACTIVE
        if self._count < ACTIVE:
            self._count += 1
        else:
            self._apply(slice(slot, slot + 1), self._duals)
            self._targets -= self._duals[slot] * self._kernel[slot]
            self._duals[slot] = self._aims[slot] = self._applied[slot] = 0.0
        return slot

    def _store(self, slot: int, features: Features) -> None:
        self._grams[slot] = BUCKETS
        self._grams[slot, : len(features.grams)] = features.grams
        self._keys[slot] = BUCKETS
        self._keys[slot, : len(features.keys)] = features.keys
        self._values[slot] = features.gram_value
        self._dense[slot] = features.dense
        self._widest = max(self._widest, len(features.grams))

    def _kernel_row(self, features: Features) -> Floats:
        scratch, count = self._scratch, self._count
        np.add.at(scratch, features.grams, np.float32(features.gram_value))
        np.add.at(scratch, features.keys, np.float32(KEY_VALUE))
        row: Floats = scratch.take(self._grams[:count, : self._widest]).sum(axis=1) * self._values[:count]
        row += scratch.take(self._keys[:count]).sum(axis=1) * np.float32(KEY_VALUE)
        row += self._dense[:count] @ features.dense
        scratch[features.grams] = 0.0
        scratch[features.keys] = 0.0
        return row

    def _descend(self, steps: int) -> None:
        """Take conjugate-gradient steps on (K + penalty I) duals = targets."""
        count = self._count
        kernel, duals = self._kernel[:count, :count], self._duals[:count]
        residual = self._targets[:count] - kernel @ duals - PENALTY * duals
        direction, error = residual.copy(), float(residual @ residual)
        for _ in range(steps):
            if error < 1e-6 * count:
                return
            image = kernel @ direction + PENALTY * direction
            step = error / float(direction @ image)
            duals += step * direction
            residual -= step * image
            previous, error = error, float(residual @ residual)
            direction *= error / previous
            direction += residual

    def _predicted(self, features: Features) -> float:
        """Return what the weights in use and those to come on top of them say together."""
        table, dense = self._coming
        keys = float(table[features.keys].sum()) * KEY_VALUE
        grams = float(table[features.grams].sum()) * features.gram_value
        coming = keys + grams + float(dense @ features.dense)
        return self.level(features) + self.own(features) + coming

    def _sweep(self) -> None:
        """Take one slice of the active answers into the weights to come; use them after the last."""
        if not self._swept:
            self._aims[:] = self._duals
        rows = slice(self._swept, self._swept + SLICE)
        self._apply(rows, self._aims)
        self._swept = rows.stop
        if self._swept >= self._count:
            self._swept = 0
            for weights, coming in zip((self.table, self.dense), self._coming, strict=True):
                weights += coming
                coming[:] = 0.0

    def _apply(self, rows: slice, aims: Floats) -> None:
        """Change the weights to come so that a slice of the active answers adds what is aimed at."""
        table, dense = self._coming
        change = aims[rows] - self._applied[rows]
        grams = np.repeat(change * self._values[rows], self._widest)
        np.add.at(table, self._grams[rows, : self._widest].ravel(), grams)
        np.add.at(table, self._keys[rows].ravel(), np.repeat(change * np.float32(KEY_VALUE), MAX_KEYS))
        dense += change @ self._dense[rows]
        self._applied[rows] = aims[rows]
