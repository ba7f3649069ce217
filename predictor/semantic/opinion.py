"""The record of what the encoder estimates from a prompt."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.card import Calibration

EMBEDDED = 384  # numbers of an embedding: MiniLM's width


@dataclass(frozen=True, slots=True)
class EncoderEstimate:
    """A score in log tokens, and an embedding, (EMBEDDED,), centred and of unit length on average.

    `share` of the score is the encoder's where both have spoken, the rest the lexical model's; `calibration`
    holds for the two together.
    """

    score: float
    embedding: npt.NDArray[np.float32]
    share: float
    calibration: Calibration
