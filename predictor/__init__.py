"""How long an answer will be, from the request alone.

`load` is the way in; it imports numpy and onnxruntime, importing this package does not.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.record import Predictor

if TYPE_CHECKING:
    from predictor.semantic.model import Encoder
    from predictor.urgency.model import UrgencyModel

# Before onnxruntime is imported anywhere: since 1.29 its wheels report to their maker, under an id that they
# keep in the user's home. Nothing of ours may leave the machine.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"


def load(model: str | Path | None = None) -> Predictor:
    """Load a predictor: None for the default, a shipped name such as "paper", or a model directory.

    Raises ModelError, with one line that says what to do, if there is no such model or it cannot be used.
    """
    from predictor.loading import load_model

    return load_model(model)


def load_encoder(model: str | Path | None = None) -> "Encoder":
    """Load the encoder that gives second opinions: None for the shipped one, or a model directory.

    Raises ModelError, with one line that says what to do, if there is none or it cannot be used.
    """
    from predictor.loading import load_encoder

    return load_encoder(model)


def load_urgency(model: str | Path | None = None, *, with_encoder: bool = True) -> "UrgencyModel":
    """Load what says how urgent a request is: None for the shipped model, or a model directory.

    Without an encoder it goes by words alone. Raises ModelError, with one line that says what to do.
    """
    from predictor.loading import load_urgency

    return load_urgency(model, with_encoder=with_encoder)
