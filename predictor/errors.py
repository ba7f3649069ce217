"""The one error a caller of the predictor can do something about."""


class ModelError(Exception):
    """A model or a data file that cannot be used. The message is one line and says what to do."""
