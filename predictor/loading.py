"""Loads models by name or directory. All functions raise ModelError, with one line that says what to do."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.card import read_card
from predictor.errors import ModelError
from predictor.record import Predictor

if TYPE_CHECKING:
    from predictor.semantic.model import Encoder
    from predictor.urgency.model import UrgencyModel

MODELS = Path(__file__).parent / "models"
DEFAULT = "default"
SEMANTIC = "semantic"
URGENCY = "urgency"

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def load_model(model: str | Path | None = None) -> Predictor:
    """Return the predictor of a shipped name or of a model directory; the default one for None."""
    directory = find_model(model)
    _import_runtime()
    if (kind := read_card(directory).kind) != "lexical":
        raise ModelError(
            f"{directory} holds a model of kind {kind!r}, not 'lexical': train it again, or name another one"
        )
    from predictor.lexical.predictor import LexicalPredictor

    return LexicalPredictor(directory, directory.name)


def load_encoder(model: str | Path | None = None) -> "Encoder":
    """Return the encoder of a model directory, the shipped one for None."""
    _import_runtime()
    from predictor.semantic.model import Encoder

    return Encoder(find_model(model if model is not None else SEMANTIC))


def load_urgency(model: str | Path | None = None, *, with_encoder: bool = True) -> "UrgencyModel":
    """Return the urgency model of a directory, the shipped one for None. Without an encoder: words alone."""
    _import_runtime()
    from predictor.urgency.model import UrgencyModel

    encoder = read_card(MODELS / SEMANTIC).sha256.get("encoder.onnx", "") if with_encoder else ""
    return UrgencyModel(find_model(model if model is not None else URGENCY), encoder)


def _import_runtime() -> None:
    # OpenBLAS reads this once, as numpy is imported. Its threads spin while they wait for each other, so that
    # learning from an answer takes many times the CPU. Programs started from here are not limited.
    is_given = BLAS_THREADS in os.environ
    os.environ.setdefault(BLAS_THREADS, "1")
    try:
        import onnxruntime  # noqa: F401
    except Exception as error:  # a shared library that the system refuses, or half a package
        reason = (str(error) or repr(error)).splitlines()[0]
        raise ModelError(f"ONNX Runtime cannot be loaded ({reason}); install it again") from None
    finally:
        if not is_given:
            del os.environ[BLAS_THREADS]


def find_model(model: str | Path | None) -> Path:
    """Return the directory of a model; a shipped name comes before a path."""
    name = str(DEFAULT if model is None else model)
    with suppress(OSError):  # a name that is too long, for one
        for directory in (MODELS / name, Path(name)):
            if directory.is_dir():
                return directory
    raise ModelError(f"there is no model {name!r}: give a directory, or {DEFAULT!r}")
