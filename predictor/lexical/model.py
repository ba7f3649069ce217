"""The default predictor's model: trees of dense cues, and a weight for each word and pair of words.

The score is the sum of both. The rest of a prediction follows from the score by the card's calibration, from
what a proxy sees besides the prompt (`context`), and from what has been learned of this traffic (`online`).
"""

from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from predictor.card import Card, arrays_of, read_card
from predictor.errors import ModelError
from predictor.lexical.cues import FEATURES_VERSION, NAMES, read
from predictor.lexical.words import Hashes, gram_hash, gram_hashes

TREES = "trees.onnx"
WORDS = "words.npz"

PLACES = np.uint32((1 << 20) - 1)  # many: most grams have no weight, and must not take another's

ASKED_LENGTH = NAMES.index("asked_length")
STATED_MEAN, STATED_SHARE = NAMES.index("told"), NAMES.index("told_share")

STATED_DRAWS = 0.95
STATED_SPREAD = 0.35
STATED_BELOW = 0.065
"""Where a length is stated: the weight of that length in the mean, the factor of the spread, and how far in
log tokens the median lies below it. Half of the answers in the data are within a quarter of what was asked,
up to some 2,000 tokens."""

Floats = npt.NDArray[np.float32]


class Reading(NamedTuple):
    """A prompt as the model sees it: hashes of its grams, features, the score, and whether the prompt states
    how long an answer it wants.

    `row` holds the features, (len(NAMES),).
    """

    hashes: Hashes
    row: Floats
    score: float
    states_length: bool

    def drawn(self, mean: float) -> float:
        """Return a mean of log tokens drawn to the length that the prompt states, if it does."""
        share = STATED_DRAWS if self.states_length else self.row.item(STATED_SHARE)
        return mean + share * (self.row.item(STATED_MEAN) - STATED_BELOW - mean)


class WordWeights:
    """A weight in log tokens for each gram that several families of traffic share, 0 for all others.

    `ordinary` is the mean effect in training; `means` and `spreads`, each
    (len(NAMES),), are those of the cues.
    """

    def __init__(
        self, places: Hashes, weights: Floats, ordinary: float, means: Floats, spreads: Floats
    ) -> None:
        """Take the weights (grams,) of grams, and their hashes or places in the table."""
        self.ordinary, self.means, self.spreads = ordinary, means, spreads
        self._table = np.zeros(int(PLACES) + 1, np.float16)
        self._table[places & PLACES] = weights

    def of(self, hashes: Hashes) -> Floats:
        """Return the weight of each gram, (grams,)."""
        weights: Floats = self._table.take(hashes & PLACES).astype(np.float32)
        return weights

    def effect(self, hashes: Hashes) -> float:
        """Return what all grams of a prompt add to its score."""
        weights = self._table.take(hashes & PLACES)
        effect: float = np.add.reduce(weights, dtype=np.float32).item() * len(hashes) ** -0.5
        return effect

    def save(self, path: Path) -> None:
        """Write the weights to a file."""
        places = np.flatnonzero(self._table).astype(np.uint32)
        np.savez(
            path,
            places=places,
            weights=self._table[places],
            ordinary=self.ordinary,
            means=self.means,
            spreads=self.spreads,
        )

    @classmethod
    def load(cls, path: Path) -> "WordWeights":
        """Read a file of weights; ModelError if it cannot be used."""
        with arrays_of(path) as file:
            return cls(
                file["places"], file["weights"], float(file["ordinary"]), file["means"], file["spreads"]
            )


class LexicalModel:
    """A score for a prompt; higher is longer. Holds no state that a prediction changes."""

    def __init__(self, directory: Path) -> None:
        """Load the model in `directory`; ModelError if it was made for other features or is damaged."""
        self.card: Card = read_card(directory)
        if self.card.features_version != FEATURES_VERSION:
            raise ModelError(
                f"{directory} was made for features version {self.card.features_version}, "
                f"this program reads version {FEATURES_VERSION}: train it again"
            )
        self._words = WordWeights.load(directory / WORDS)
        self.means, self.spreads = self._words.means, self._words.spreads
        self._pack = Struct(f"{len(NAMES)}f").pack  # np.array takes twice as long over a list
        self._session = open_session(directory / TREES, len(NAMES))
        self._input = self._session.get_inputs()[0].name
        self._outputs = [self._session.get_outputs()[-1].name]

    def read(self, prompt: str, cut: int = 0) -> Reading:
        """Read and score a prompt, which was `cut` characters longer."""
        words, cues = read(prompt, cut)
        hashes = gram_hashes(words)
        row: Floats = np.ndarray(len(NAMES), np.float32, self._pack(*cues))
        (scores,) = self._session.run(self._outputs, {self._input: row[None]})
        score, asked = scores.item() + self._words.effect(hashes), cues[ASKED_LENGTH]
        return Reading(hashes, row, score, asked > 0)

    def effects(self, reading: Reading) -> dict[str, float]:
        """Return how much each feature moves the score away from what its training mean would give."""
        rows = np.repeat(reading.row[None], len(NAMES) + 1, axis=0)
        np.fill_diagonal(rows, self._words.means)
        (scores,) = self._session.run(self._outputs, {self._input: rows})
        effects = dict(zip(NAMES, (scores[-1, 0] - scores[:-1, 0]).tolist(), strict=True))
        return effects | {"words": self._words.effect(reading.hashes) - self._words.ordinary}

    def word_effects(self, prompt: str, cut: int = 0) -> dict[str, float]:
        """Return the weight of each word and pair of words of a prompt."""
        words, _ = read(prompt, cut)
        grams = [*([word] for word in words), *map(list, pairwise(words))]
        weights = self._words.of(np.array([gram_hash(gram) for gram in grams], np.uint32))
        names = (b" ".join(gram).decode("utf-8", "replace") for gram in grams)
        return dict(zip(names, weights.tolist(), strict=True))


def open_session(path: Path, width: int | None = None) -> ort.InferenceSession:
    """Open an ONNX file on one thread; ModelError if it does not take rows of `width` features, if given."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a family of its own, which it does not export
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path} cannot be loaded ({reason}): train it or install it again") from None
    takes = session.get_inputs()[0].shape[-1]
    if width is not None and takes != width:
        raise ModelError(f"{path} takes {takes} features, not {width}: train it again with this version")
    return session
