"""Reads a model directory: its card (data, calibration, and what a loader must check), and its arrays."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import ModelError

if TYPE_CHECKING:
    import numpy.typing as npt

CARD = "card.json"

LOGIT_OF_NORMAL = 1.702  # the logistic of this times z is within 0.01 of the normal distribution at z


@dataclass(frozen=True, slots=True)
class Calibration:
    """From a model's score to log tokens: mean = offset + slope * score, spread likewise, but bounded.

    An edge (bias, slope) turns the distance of the class boundary from the mean, in spreads, into the log
    odds of an answer below it (Platt, 1999): lengths are not quite normal, each boundary in its own way.
    """

    offset: float
    slope: float
    spread: float
    spread_slope: float = 0.0
    q90_at: float = 1.2816
    short_edge: tuple[float, float] = (0.0, LOGIT_OF_NORMAL)
    long_edge: tuple[float, float] = (0.0, LOGIT_OF_NORMAL)

    def mean_at(self, score: float) -> float:
        """Return the mean of log tokens for a score."""
        return self.offset + self.slope * score

    def spread_at(self, mean: float) -> float:
        """Return the standard deviation of log tokens where their mean is `mean`."""
        return min(max(self.spread + self.spread_slope * mean, 0.2), 1.6)


@dataclass(frozen=True, slots=True)
class Card:
    """The contents of a model directory's card.json."""

    name: str
    kind: str  # lexical, semantic, urgency
    features_version: int
    calibration: Calibration  # of an encoder: for it and the lexical model together
    data: list[str]
    licence: str
    metrics: dict[str, float]
    sha256: dict[str, str] = field(default_factory=dict)
    seed: int = 42
    sources: dict[str, str] = field(default_factory=dict)  # where each of `data` is from, and its licence
    share: float = 1.0  # the encoder's share of the score where both it and the lexical model give one


def read_card(directory: Path) -> Card:
    """Read a model directory's card; ModelError if there is none or it is not one."""
    path = directory / CARD
    if not path.is_file():
        raise ModelError(f"{directory} is no model directory: it holds no {CARD}")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Card(**{**fields, "calibration": Calibration(**fields["calibration"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{path} cannot be read as a model card ({error}): train the model again") from None


@contextmanager
def arrays_of(path: Path) -> "Iterator[Mapping[str, npt.NDArray[Any]]]":
    """Open a file of arrays; ModelError if it is damaged, or the block fails to use it."""
    import numpy as np

    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except Exception as error:  # numpy's, zipfile's, zlib's: a damaged file makes them raise anything
        raise ModelError(f"{path} cannot be read ({error}): train the model again") from None
