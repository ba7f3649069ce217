"""Reads the arrays of a model from a file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import ModelError


@contextmanager
def arrays_of(path: Path) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """Open a file of arrays; ModelError if it is damaged, or the block fails to use it."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            yield arrays
    except Exception as error:  # numpy's, zipfile's, zlib's: a damaged file makes them raise anything
        raise ModelError(f"{path} cannot be read ({error}): train the model again") from None
