"""The default predictor: a few dense cues and hashed n-grams, trees and a net, and a log-normal.

A regression forest in ONNX reads the cues, and a net (`bag`) reads them beside the grams; the score lies
between what the two say. Everything else in the record follows from the score by the card's calibration, from
what a proxy sees besides the prompt (`context`), and from what has been learnt of this traffic (`online`).
"""

from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from predictor.card import Card, read_card
from predictor.errors import ModelError
from predictor.lexical.cues import FEATURES_VERSION, NAMES, read
from predictor.lexical.ngram_net import BAG, Bag
from predictor.lexical.words import Hashes, gram_hash, gram_hashes

TREES = "trees.onnx"

ASKED_LENGTH = NAMES.index("asked_length")
STATED_MEAN, STATED_SHARE = NAMES.index("told"), NAMES.index("told_share")

NET_SHARE = 0.25
"""Of the score; the rest is the trees'. Both rank families never seen better than either alone. With a larger
share second turns and small files gain a point and chat loses as much."""

STATED_DRAWS = 0.95
STATED_SPREAD = 0.35
STATED_BELOW = 0.065
"""Of answers whose length was stated, how near their mean is to it, how much less they spread, and how far in
log tokens half of them stay below it: what is stated is what answers come to on average. Half of the answers
that data holds are within a quarter of what was asked, up to some 2,000 tokens."""

Floats = npt.NDArray[np.float32]
Score = TypeVar("Score", float, Floats, npt.NDArray[np.float64])


class Reading(NamedTuple):
    """A prompt as the model sees it: hashes of its grams, features, and the score.

    `row` holds the features, (len(NAMES),).
    """

    hashes: Hashes
    row: Floats
    score: float

    @property
    def states_length(self) -> bool:
        """Whether the prompt states how long an answer it wants."""
        return self.row.item(ASKED_LENGTH) > 0

    def drawn(self, mean: float) -> float:
        """Return a mean of log tokens drawn to the length that the prompt states, if it does."""
        share = STATED_DRAWS if self.states_length else self.row.item(STATED_SHARE)
        return mean + share * (self.row.item(STATED_MEAN) - STATED_BELOW - mean)

    def blended(self, score: float, share: float) -> float:
        """Return the score mixed with a share of another one."""
        return self.score + share * (score - self.score)


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
        self._bag = Bag.load(directory / BAG, len(NAMES))
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
        net = self._bag.scores(row, self._bag.sum(hashes))
        return Reading(hashes, row, together(scores.item(), net.item()))

    def scores(self, features: Floats, sums: Floats) -> Floats:
        """Return the scores (n,) of rows of features (n, width) and of the net's sums, one or n."""
        (scores,) = self._session.run(self._outputs, {self._input: features})
        return together(scores[:, 0], self._bag.scores(features, sums))

    def effects(self, reading: Reading) -> dict[str, float]:
        """Return how much each feature moves the score away from what its training mean would give."""
        ordinary = np.repeat(reading.row[None], len(NAMES) + 2, axis=0)
        np.fill_diagonal(ordinary, self._bag.centre)
        sums = np.repeat(self._bag.sum(reading.hashes)[None], len(ordinary), axis=0)
        sums[len(NAMES)] = self._bag.layers.ordinary
        scores = self.scores(ordinary, sums)
        return dict(zip((*NAMES, "words"), (scores[-1] - scores[:-1]).tolist(), strict=True))

    def word_effects(self, prompt: str, cut: int = 0) -> dict[str, float]:
        """Return how much each word and pair of words that the net knows moves its score."""
        reading, words = self.read(prompt, cut), read(prompt)[0]
        grams = [*([word] for word in words), *map(list, pairwise(words))]
        hashes = np.array([gram_hash(gram) for gram in grams], np.uint32)
        whole = self._bag.sum(reading.hashes)
        without = whole - self._bag.numbers(hashes) / np.float32(len(reading.hashes) ** 0.5)
        rows = np.repeat(reading.row[None], len(grams), axis=0)
        effects = self._bag.scores(reading.row, whole) - self._bag.scores(rows, without)
        return {
            b" ".join(gram).decode("utf-8", "replace"): effect
            for gram, effect in zip(grams, effects.tolist(), strict=True)
        }

    def standardise(self, row: Floats, value: float) -> Floats:
        """Return a reading's row, each feature of zero mean and a spread of `value` in the training data."""
        standard: Floats = row - self._bag.centre
        standard *= np.float32(value) / self._bag.spread
        return standard


def together(trees: Score, net: Score) -> Score:
    """Return the score of what the trees and the net say."""
    score: Score = trees + NET_SHARE * (net - trees)
    return score


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
