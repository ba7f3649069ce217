"""The error that all of the predictor's functions raise for models and data files that cannot be used."""

from collections.abc import Iterator
from contextlib import contextmanager


class ModelError(Exception):
    """A model or a data file that cannot be used. The message is one line and says what to do."""


@contextmanager
def from_the_train_extra() -> Iterator[None]:
    """Turn a failed import into a ModelError that names the missing extra."""
    try:
        yield
    except ImportError as missing:
        needed = f"training needs the train extra ({missing.name} is missing)"
        raise ModelError(f"{needed}; in the checkout: pip install '.[train]'") from None
