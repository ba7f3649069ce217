"""The encoder: a prompt to a score and an embedding, in milliseconds; never on an event loop.

MiniLM's lower layers (Wang et al., 2020), fine-tuned to rank pairs of prompts by their answers' length (PARS,
section III), in ONNX with weights of eight bits. It reads the prompt's two ends, and how long it is.
"""

from math import log1p
from pathlib import Path

import numpy as np
import numpy.typing as npt

from predictor.card import Card, read_card
from predictor.errors import ModelError
from predictor.lexical.model import open_session
from predictor.semantic.opinion import EncoderEstimate
from predictor.semantic.tokenizer import Tokenizer

ENCODER = "encoder.onnx"
VOCABULARY = "vocab.txt"

FOREIGN_SHARE = 0.25
"""Of its share in other scripts, of which its pieces hold single characters: docs/bench/predictor.md."""

SCRIPT_CHARACTERS = 1000
LAST_LATIN = "\u024f"

Floats = npt.NDArray[np.float32]


class Encoder:
    """One model directory, opened on one thread. `encode` changes nothing: any thread may call it."""

    def __init__(self, directory: Path) -> None:
        """Load the encoder in `directory`; ModelError if it cannot be used."""
        self.card: Card = read_card(directory)
        if self.card.kind != "semantic":
            raise ModelError(f"{directory} holds a model of kind {self.card.kind!r}, not an encoder")
        self._tokenizer = Tokenizer(directory / VOCABULARY)
        self._session = open_session(directory / ENCODER)

    def encode(self, text: str, cut: int = 0) -> EncoderEstimate:
        """Estimate from a prompt, which was `cut` characters longer."""
        ids = np.array(self._tokenizer.read(text), np.int64)
        score, embedding = self._session.run(None, {"ids": ids, "shape": shape(text, cut)})
        return EncoderEstimate(
            float(score), embedding, share_of(text, self.card.share), self.card.calibration
        )


def share_of(text: str, share: float) -> float:
    """Return the encoder's share of a prompt's score: all of `share` where most letters are Latin."""
    seen = text[:SCRIPT_CHARACTERS]
    latin = sum(each.isascii() and each.isalpha() for each in seen)
    foreign = sum(each > LAST_LATIN for each in seen)
    return share * FOREIGN_SHARE if foreign > latin else share


def shape(text: str, cut: int = 0) -> Floats:
    """Return the log length of a prompt in characters and lines, near unit spread, float32 of shape (2,)."""
    lines: float = text.count("\n")
    if cut and lines:  # they are as long in between as they are at the ends
        lines *= 1 + cut / len(text)
    return np.array([(log1p(len(text) + cut) - 5) / 1.5, log1p(lines) - 0.7], np.float32)
