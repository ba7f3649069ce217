"""A net beside the trees: a few numbers a gram, their sum, and the dense cues through one hidden layer.

Like fastText (Joulin et al., EACL 2017), with cues of the whole prompt beside the sum. Only grams that many
kinds of traffic share have numbers: what is particular to a few says nothing of the next.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from predictor.card import arrays_of
from predictor.errors import ModelError
from predictor.lexical.words import Hashes

BAG = "bag.npz"

PLACE_BITS = 20
"""Many: most grams of a prompt have no numbers, and must not take another's."""

LIMIT = 4.0  # spreads from its mean: further out a cue says no more
PLACES = np.uint32((1 << PLACE_BITS) - 1)
MAX_GRAMS = (1 << 16) - 1

Floats = npt.NDArray[np.float32]
_NOTHING = np.float32(0)


@dataclass(frozen=True, slots=True)
class Layers:
    """What the net makes of cues and of a sum of numbers, a score: how a file holds it.

    Cues count from `low` to `high`, each (cues,), `LIMIT` spreads from their mean. `by_cues` is (cues,
    hidden), `by_sum` (n, hidden), `bias` and `outer` (hidden,). What goes straight to the score stands in two
    columns, one the other's negative: of the two, rectified, one is left. `ordinary`, (n,), is the mean sum
    of the prompts it was trained on.
    """

    low: Floats
    high: Floats
    by_cues: Floats
    by_sum: Floats
    bias: Floats
    outer: Floats
    ordinary: Floats


class Bag:
    """The net; scores are in log tokens, higher is longer."""

    def __init__(self, hashes: Hashes, numbers: Floats, layers: Layers) -> None:
        """Take the hashes of its grams, at most `MAX_GRAMS`, and their numbers (grams, n)."""
        self.layers = layers
        self.centre: Floats = (layers.low + layers.high) / np.float32(2)
        self.spread: Floats = (layers.high - layers.low) / np.float32(2 * LIMIT)
        self._slots = np.zeros(1 << PLACE_BITS, np.uint16)
        self._slots[hashes & PLACES] = np.arange(1, len(hashes) + 1)
        nothing = np.zeros((1, numbers.shape[1]), np.float32)
        self._numbers = np.vstack((nothing, numbers.astype(np.float32)))

    def numbers(self, hashes: Hashes) -> Floats:
        """Return the numbers (grams, n) of grams; 0 where a gram has none."""
        return self._numbers.take(self._slots.take(hashes & PLACES, mode="clip"), axis=0, mode="clip")

    def sum(self, hashes: Hashes) -> Floats:
        """Return the sum (n,) of a prompt's numbers, over the root of how many grams it has."""
        total: Floats = np.add.reduce(self.numbers(hashes), axis=0)
        total *= np.float32(len(hashes) ** -0.5)
        return total

    def scores(self, cues: Floats, sums: Floats) -> Floats:
        """Return the scores of prompts, of their cues (..., cues) and sums (..., n)."""
        layers = self.layers
        seen = np.minimum(cues, layers.high)
        np.maximum(seen, layers.low, out=seen)
        hidden = seen @ layers.by_cues
        hidden += sums @ layers.by_sum
        hidden += layers.bias
        np.maximum(hidden, _NOTHING, out=hidden)
        scores: Floats = hidden @ layers.outer
        return scores

    def save(self, path: Path) -> None:
        """Write the net to a file."""
        places = np.flatnonzero(self._slots).astype(np.uint32)
        layers = {name: getattr(self.layers, name) for name in Layers.__slots__}
        np.savez(path, places=places, numbers=self.numbers(places).astype(np.float16), **layers)

    @classmethod
    def load(cls, path: Path, cues: int) -> "Bag":
        """Read a net over this many cues; ModelError if it cannot be used."""
        with arrays_of(path) as file:
            layers = Layers(*(file[name] for name in Layers.__slots__))
            bag = cls(file["places"], file["numbers"], layers)
        if layers.by_cues.shape[0] != cues:
            raise ModelError(f"{path} was made for other features: train the model again")
        return bag
