"""A ridge regression on hashed features that learns from one answer at a time, in bounded time.

The fit is dual: weights are a sum of the answers' features, each times a dual variable. Of the last `ACTIVE`
answers the inverse of kernel plus penalty is kept: a new answer takes the place of the oldest in it (kernel
recursive least squares over a sliding window: Van Vaerenbergh et al., ICASSP 2006), and the dual variables
follow exactly. What older answers have added to the weights stays there.

Rule: no answer pays for a whole refit. A new set of weights is made a slice of answers at a time, and used
once it is whole: in between, what the answers say in common would be out of balance.
"""

from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

BUCKETS = 1 << 16

PENALTY = 2.0
GRAM_VALUE = 1.0
KEY_VALUE = 1.0
"""How freely each kind of feature may learn, as its length in the feature vector: the square root of its
variance, where `PENALTY` is that of the noise."""

ACTIVE = 384
MAX_GRAMS = 192
MAX_KEYS = 12

SLICE = 64


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
        # In single precision its errors grow where all answers share a large feature, as long prompts do.
        self._inverse = np.zeros((ACTIVE, ACTIVE))
        self._change = np.zeros(ACTIVE * ACTIVE)
        self._duals = np.zeros(ACTIVE)
        self._aims = np.zeros(ACTIVE)
        self._applied = np.zeros(ACTIVE)
        self._scratch = np.zeros(BUCKETS + 1, np.float32)

    def predict(self, features: Features) -> float:
        """Return what answers to such requests were off the static mean, in log units."""
        return _weighed(self.table, self.dense, features)

    # OpenBLAS at times computes on what lies beyond a row, and drops it: the flag it leaves means nothing.
    @np.errstate(invalid="ignore", over="ignore")
    def learn(self, features: Features, surprise: float) -> None:
        """Take in an answer that was `surprise` log units off the static mean."""
        slot = self._free_slot()
        self._store(slot, features)
        row = self._kernel_row(features)
        # What the older answers alone predict is what all predict less the active ones' part of it.
        older = self._predicted(features) - float(row @ self._applied[: self._count])
        moved, left = self._replace(slot, row)
        unforeseen = surprise - older - float(row @ self._duals[: self._count])
        self._duals[: self._count] -= unforeseen / left * moved
        self._sweep()

    def _free_slot(self) -> int:
        """Return the slot of the oldest active answer, which from now on counts among the older ones."""
        slot = self._next
        self._next = (slot + 1) % ACTIVE
        if self._count < ACTIVE:
            self._count += 1
        else:
            # It stays as it is in the weights, whole or coming; the others make up for the difference.
            row, left_out = self._inverse[slot], self._aims[slot] - self._duals[slot]
            self._duals += row * (left_out / row[slot])
            self._apply(slice(slot, slot + 1), self._aims)
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

    def _replace(self, slot: int, row: Floats) -> tuple[Doubles, float]:
        """Put an answer into a slot of the inverse of kernel plus penalty; `row` is its kernel.

        The inverse loses the old row and column and gains new ones: a change of rank two, or of one where the
        slot was free. Returns how the dual variables move for each unit of what the others did not foresee of
        the new answer, times its variance given them, negative and -1 in its own slot; and that variance.
        """
        count = self._count
        inverse, change = self._inverse[:count, :count], self._change[: count * count].reshape(count, count)
        others = row.astype(np.float64)
        others[slot] = 0.0
        moved, old = inverse @ others, inverse[slot].copy()
        freed = 1 / old[slot] if old[slot] else 0.0
        moved -= old * (moved[slot] * freed)
        left = float(row[slot] + PENALTY - others @ moved)
        moved[slot] = -1.0
        np.matmul(np.stack((moved / left, old * -freed), 1), np.stack((moved, old)), out=change)
        inverse += change
        inverse[slot] = inverse[:, slot] = moved / -left
        return moved, left

    def _predicted(self, features: Features) -> float:
        """Return what the weights in use and those to come on top of them say together."""
        return self.predict(features) + _weighed(*self._coming, features)

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

    def _apply(self, rows: slice, aims: Doubles) -> None:
        """Change the weights to come so that a slice of the active answers adds what is aimed at."""
        table, dense = self._coming
        change = (aims[rows] - self._applied[rows]).astype(np.float32)
        grams = np.repeat(change * self._values[rows], self._widest)
        np.add.at(table, self._grams[rows, : self._widest].ravel(), grams)
        np.add.at(table, self._keys[rows].ravel(), np.repeat(change * np.float32(KEY_VALUE), MAX_KEYS))
        dense += change @ self._dense[rows]
        self._applied[rows] = aims[rows]


def _weighed(table: Floats, dense: Floats, features: Features) -> float:
    keys = float(table[features.keys].sum()) * KEY_VALUE
    grams = float(table[features.grams].sum()) * features.gram_value
    return keys + grams + float(dense @ features.dense)
