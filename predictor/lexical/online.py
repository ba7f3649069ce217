"""Learning the traffic at hand: a ridge correction of the static mean.

Rule 1: what outlives the daemon are weights of hashed features and counts. Of the last answers hashes and
embeddings are in memory; text is nowhere.
Rule 2: an answer costs the same whether ten thousand came before it or a thousand.
Rule 3: the correction shrinks to nothing where nothing was learnt (ridge penalty); where there is nothing to
learn but noise it costs one to two points of ranking accuracy. No second judge weighs it: one that used it
only as far as it had ordered better made scores of different times incomparable, and cost requests 100 to 200
of a stream two to five points where it had not been chosen.
"""

import struct
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from predictor.errors import ModelError
from predictor.lexical.ridge import BUCKETS, MAX_GRAMS, MAX_KEYS, Features, Floats, Ridge
from predictor.lexical.words import Hashes

_MASK = np.uint32(BUCKETS - 1)

CUE_VALUE = 0.5
"""How freely cues of unit spread may learn, all of them together; half as freely as the grams."""

LARGEST_SURPRISE = 3.0
"""Log units; an answer ten times longer still than this must not bend everything else."""

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
            raise ModelError("the learnt state is of another version: it will be learnt anew")
        ridge, body = Ridge(self._width), state[len(_MAGIC) :]
        try:
            learnt, used, width = _HEAD.unpack_from(body)
            parts = body[_HEAD.size :]
            buckets = np.frombuffer(parts, np.uint16, used)
            weights = np.frombuffer(parts, np.float32, used + width, offset=buckets.nbytes)
        except (struct.error, ValueError) as error:
            raise ModelError(f"the learnt state is damaged ({error}): it will be learnt anew") from None
        whole = len(parts) == buckets.nbytes + weights.nbytes and width == self._width
        if not (whole and np.isfinite(weights).all()):
            raise ModelError("the learnt state is damaged: it will be learnt anew")
        ridge.table[buckets] = weights[:used]
        ridge.dense += weights[used:]
        self._ridge, self.learnt = ridge, learnt
