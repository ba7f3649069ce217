"""The error that all of the predictor's functions raise for models and data files that cannot be used."""


class ModelError(Exception):
    """A model or a data file that cannot be used. The message is one line and says what to do."""
