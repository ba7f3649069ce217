"""Loads predictors and opens the database for several commands."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError
from predictor.record import Predictor, PromptView, UrgencyPredictor

if TYPE_CHECKING:
    from clairvoyant_cli.proxy.requests.encoder import Encode
    from predictor.semantic.model import Encoder
    from profiles.ledger import Ledger


def load_predictor(directory: str | None) -> Predictor:
    """Load the shipped predictor, or the user's own from `directory`."""
    from predictor import load
    from predictor.errors import ModelError

    try:
        predictor = load(Path(directory) if directory is not None else None)
    except ModelError as error:
        raise ClairvoyantError(str(error)) from None
    predictor.predict(PromptView("Hello"))  # the first run of a session is slow; nobody should wait for it
    return predictor


def gives_second_opinions(config: ServeConfig) -> bool:
    """Whether an encoder is to read what waits."""
    return config.semantic == "on" or (config.semantic == "auto" and config.predictor is None)


def second_opinion(config: ServeConfig) -> "Encode | None":
    """Return what reads prompts in earnest, None if nothing is to; loaded when it is first asked.

    The shipped encoder's opinions are weighed for the shipped predictor: one of the user's own has its own.
    """
    if not gives_second_opinions(config):
        return None

    @cache
    def encoder() -> "Encoder":
        from predictor import load_encoder

        return load_encoder()

    return lambda text, cut: encoder().encode(text, cut)


def urgency_predictor(config: ServeConfig) -> UrgencyPredictor | None:
    """Load what says how urgent requests are, None where nothing is to.

    It hears the encoder where that gives second opinions.
    """
    if config.urgency is None:
        return None
    from predictor import load_urgency
    from predictor.errors import ModelError

    named = None if config.urgency == "shipped" else Path(config.urgency)
    try:
        return load_urgency(named, with_encoder=gives_second_opinions(config))
    except ModelError as error:
        raise ClairvoyantError(str(error)) from None


@contextmanager
def kept_in(config: ServeConfig) -> Iterator["Ledger | None"]:
    """Yield what a daemon remembers with; None, and a warning, where the database cannot be used.

    A profile that was named must be there: its absence raises ClairvoyantError.
    """
    from profiles.database import ProfilesError, default_path
    from profiles.ledger import Ledger
    from profiles.writer import Bounds

    path = Path(config.db) if config.db else default_path()
    ledger = None
    try:
        ledger = Ledger(path, profile=config.profile, bounds=Bounds(config.history_days, config.history_rows))
    except ProfilesError as error:
        if config.profile is not None:
            raise ClairvoyantError(str(error)) from None
        logging.getLogger("clairvoyant").warning("no profiles and no history: %s", error)
    try:
        yield ledger
    finally:
        if ledger is not None:
            ledger.close()


def database_path(named: Path | None) -> Path:
    """Return the database to use: the one named, the one `serve` is configured for, or the usual one."""
    from profiles.database import default_path

    configured = None if named else load_serve_config({}).db
    return named or (Path(configured) if configured else default_path())


@contextmanager
def told_plainly() -> Iterator[None]:
    """Say in one line what is wrong with the database."""
    from profiles.database import ProfilesError

    try:
        yield
    except ProfilesError as error:
        raise ClairvoyantError(str(error)) from None
