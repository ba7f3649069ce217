"""How long an answer will be, from the request alone.

`load` is the way in; it imports numpy and onnxruntime, importing this package does not.
"""

from pathlib import Path

from predictor.record import LoadedPredictor


def load(model: str | Path | None = None) -> LoadedPredictor:
    """Load a predictor: None for the default, a shipped name such as "paper", or a model directory.

    Raises ModelError, with one line that says what to do, if there is no such model or it cannot be used.
    """
    from predictor.loading import load_model

    return load_model(model)
