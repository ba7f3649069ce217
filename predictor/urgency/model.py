"""Estimates the urgency of a text by two linear models, of its words and of an encoder's embedding.

Both also see the vital signs or the form (`vitals.cues`). Their scores are averaged; without an embedding,
the words count alone. Hospitals word their records differently, so in a text about a patient only the words
count that distinguished patients in training. The level is the one of least expected cost: errors of more
than one level cost most, and so does too low a level for an urgent case.
"""

from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import numpy.typing as npt

from predictor.card import Card, arrays_of, read_card
from predictor.errors import ModelError
from predictor.lexical.words import gram_hashes, in_english, split, window
from predictor.record import PromptView
from predictor.urgency.vitals import NAMES, Signs, cues, read_signs

if TYPE_CHECKING:
    from predictor.semantic.opinion import EncoderEstimate

LEVELS = 5
TABLE_BITS = 16
BUCKETS = np.uint32((1 << TABLE_BITS) - 1)
HEAD, TAIL = 1200, 600  # characters of each end whose words are read
STEM = 5  # characters of a word's stem: "bleeding" and "bleeds" share one
WEIGHTS = "weights.npz"
FEATURES_VERSION = 3

WORDS_SCALE, EMBEDDING_SCALE = 3.0, 4.0  # bring both to the spread of the cues, so that one penalty suits all
URGENT = 1  # the least of the urgent levels
TOO_LATE = 2.5  # cost of too low a level for an urgent case, where being more than one level off costs 1
EACH_LEVEL = 0.15  # additional cost per squared level of error

SHARE_OF_PATIENT, SHARE = 0.15, 0.5
"""The encoder's share of the scores, lower for records, whose form it notices more than their content."""

Floats = npt.NDArray[np.float32]


_TRUE = np.arange(LEVELS)[:, None]
_OFF = np.arange(LEVELS)[None, :] - _TRUE
COST = (np.abs(_OFF) > 1) + TOO_LATE * ((_OFF > 0) & (_TRUE <= URGENT)) + EACH_LEVEL * _OFF**2
"""The cost of predicting each level for each true one, (LEVELS, LEVELS) as [true][said]."""


def words_read(text: str) -> list[bytes]:
    """Return the words of a text that are read, digits blurred."""
    return in_english(split(window(text, HEAD, TAIL)))


def telling_words(text: str, signs: Signs, telling: Set[int]) -> list[bytes]:
    """Return the words of a text; of one about a patient only those whose hash is among the `telling`."""
    words = words_read(text)
    return [word for word in words if crc32(word) in telling] if signs.of_patient else words


def buckets_of(words: list[bytes]) -> npt.NDArray[np.uint32]:
    """Return the distinct buckets of words and of their stems, and of pairs of either."""
    stems = [word[:STEM] for word in words]
    return np.unique(np.concatenate([gram_hashes(words), gram_hashes(stems)]) & BUCKETS)


def least_cost(chances: Floats) -> npt.NDArray[np.intp]:
    """Return the level of least expected cost for each row of chances, (n, LEVELS)."""
    best: npt.NDArray[np.intp] = (chances @ COST).argmin(axis=1)
    return best


def softmax(scores: Floats) -> Floats:
    raised: Floats = np.exp(scores - scores.max(axis=1, keepdims=True))
    raised /= raised.sum(axis=1, keepdims=True)
    return raised


class UrgencyModel:
    """The urgency model of one directory; it does not learn."""

    def __init__(self, directory: Path, encoder: str) -> None:
        """Load the model in `directory`; ModelError if it cannot be used.

        `encoder` is the SHA-256 of the encoder whose opinions it gets, "" if none: opinions of an encoder
        that it was not trained with are ignored.
        """
        self.card: Card = read_card(directory)
        self.name = self.card.name
        if self.card.kind != "urgency":
            raise ModelError(f"{directory} holds a model of kind {self.card.kind!r}, not of urgency")
        if self.card.features_version != FEATURES_VERSION:
            raise ModelError(f"{directory} was made for another version: train it again")
        with arrays_of(directory / WEIGHTS) as file:
            self._words = np.zeros((1 << TABLE_BITS, LEVELS), np.float32)
            self._words[file["buckets"]] = file["words"]
            self._telling = frozenset(file["telling"].tolist())
            self._words_rest: Floats = file["words_rest"]
            self._embedding: Floats = file["embedding"]
            self._embedding_rest: Floats = file["embedding_rest"]
        if self._words_rest.shape != (len(NAMES) + 1, LEVELS):
            raise ModelError(f"{directory / WEIGHTS} has another shape: train the model again")
        self.hears = bool(encoder) and encoder == self.card.sources.get("encoder")

    def chances(self, text: str, embedding: Floats | None = None) -> Floats:
        """Return the probability of each level, (LEVELS,), with an encoder's embedding or without."""
        signs = read_signs(text)
        seen = np.append(cues(text, signs), np.float32(1.0))
        buckets = buckets_of(telling_words(text, signs, self._telling))
        scores = self._words[buckets].sum(axis=0) * (WORDS_SCALE / np.sqrt(len(buckets)))
        scores = scores + seen @ self._words_rest
        if embedding is not None and self.hears:
            other = EMBEDDING_SCALE * embedding @ self._embedding + seen @ self._embedding_rest
            share = SHARE_OF_PATIENT if signs.of_patient else SHARE
            scores = (1.0 - share) * scores + share * other
        chances: Floats = softmax(scores[None])[0]
        return chances

    def level(self, view: PromptView, opinion: "EncoderEstimate | None" = None) -> int:
        """Return the level of a request, 0 (immediate) to 4, by its prompt alone."""
        embedding = None if opinion is None else opinion.embedding
        return int(least_cost(self.chances(view.prompt, embedding)[None])[0])
