"""Loads predictors and opens the database for several commands."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from sqlite3 import Connection
from threading import Thread
from typing import TYPE_CHECKING

from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.system import process_start
from predictor.errors import ModelError
from predictor.record import Predictor, PromptView, UrgencyPredictor
from profiles.database import ProfilesError, default_path, reading, writing

if TYPE_CHECKING:
    from clairvoyant_cli.proxy.requests.encoder import Encode
    from predictor.semantic.model import Encoder
    from profiles.ledger import Ledger


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turn errors of models and of the database into ClairvoyantError."""
    try:
        yield
    except ModelError as error:
        raise InputError(str(error)) from None
    except ProfilesError as error:
        raise ClairvoyantError(str(error)) from None


def load_predictor(directory: str | None) -> Predictor:
    """Load the shipped predictor, or the user's own from `directory`."""
    from predictor import load

    with told_plainly():
        predictor = load(Path(directory) if directory is not None else None)
    predictor.predict(PromptView("Hello"))  # the first run of a session is slow; nobody should wait for it
    return predictor


def load_working_predictor(config: ServeConfig) -> Predictor:
    """Load the daemon's predictor. If the shipped one cannot be loaded, warn and return one that knows
    nothing: the proxy must start.
    """
    try:
        return load_predictor(config.predictor)
    except ClairvoyantError as error:
        if config.predictor is not None:
            raise
        logging.getLogger("clairvoyant").warning("no predictions, so arrival order: %s", error)
        return Predictor()


def has_encoder(config: ServeConfig) -> bool:
    return config.semantic == "on" or (config.semantic == "auto" and config.predictor is None)


def second_opinion(config: ServeConfig) -> "Encode | None":
    """Return the encoder's function, loaded on first use; None if it is off."""

    @cache
    def encoder() -> "Encoder":
        from predictor import load_encoder

        return load_encoder()

    return (lambda text, cut: encoder().encode(text, cut)) if has_encoder(config) else None


def urgency_predictor(config: ServeConfig) -> UrgencyPredictor | None:
    """Load the urgency model; None if it is off, or the shipped one is unusable. It uses the encoder if
    that is on.
    """
    if config.urgency is None:
        return None
    from predictor import load_urgency

    named = None if config.urgency == "shipped" else Path(config.urgency)
    try:
        return load_urgency(named, with_encoder=has_encoder(config))
    except ModelError as error:
        if named is not None:
            raise ClairvoyantError(str(error)) from None
        logging.getLogger("clairvoyant").warning("no predicted urgency: %s", error)
        return None


def open_ledger(config: ServeConfig) -> "Ledger | None":
    """Open the daemon's database; None, with a warning, if it cannot be used."""
    from profiles.ledger import Ledger
    from profiles.writer import Bounds

    path = Path(config.db) if config.db else default_path()
    try:
        bounds = Bounds(config.history_days, config.history_rows)
        return Ledger(path, bounds=bounds, started=process_start)
    except ProfilesError as error:
        logging.getLogger("clairvoyant").warning("no profiles and no history: %s", error)
    return None


@contextmanager
def opened_ledger(config: ServeConfig) -> Iterator["Future[Ledger | None]"]:
    """Open the daemon's database on a thread, as it may wait for a lock; close it after the block."""
    opening: Future[Ledger | None] = Future()

    def run() -> None:
        try:
            opening.set_result(open_ledger(config))
        except BaseException as error:
            opening.set_exception(error)

    # A daemon thread: one that hangs must not keep the process.
    Thread(target=run, name="database", daemon=True).start()
    try:
        yield opening
    finally:
        if opening.done() and opening.exception() is None and (ledger := opening.result()) is not None:
            ledger.close()


def database_path(named: Path | None) -> Path:
    """Return the database: `named`, else the configured one, else the default."""
    configured = None if named else load_serve_config({}).db
    return named or (Path(configured) if configured else default_path())


@contextmanager
def opened_database(named: Path | None, *, write: bool = False) -> Iterator[Connection]:
    """Open the database of `database_path` during the block; errors become ClairvoyantError."""
    with told_plainly(), (writing if write else reading)(database_path(named)) as connection:
        yield connection
