"""The one error a caller of the predictor can do something about."""

from collections.abc import Iterator
from contextlib import contextmanager


class ModelError(Exception):
    """A model or a data file that cannot be used. The message is one line and says what to do."""


@contextmanager
def from_the_train_extra() -> Iterator[None]:
    """Say which extra is missing where an import fails."""
    try:
        yield
    except ImportError as missing:
        needed = f"training needs the train extra ({missing.name} is missing)"
        raise ModelError(f"{needed}; in the checkout: pip install '.[train]'") from None
