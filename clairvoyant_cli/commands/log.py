"""Sets up the log of `clairvoyant serve`: standard error, or a rotated file that only its owner can read."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

import click

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, InputError, printable
from clairvoyant_cli.files import refuse_pipe
from clairvoyant_cli.system import create_for_owner

MAX_LOG_BYTES = 5 << 20
OLD_LOGS = 3


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


FORMAT = _Printable("%(asctime)s %(levelname).1s %(message)s", "%Y-%m-%dT%H:%M:%S")


class LogFile(RotatingFileHandler):
    """A private log, rotated at `max_bytes`. If it cannot be written, standard error says so once."""

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        self._every = max_bytes
        self._told = False
        super().__init__(path, maxBytes=max_bytes, backupCount=OLD_LOGS, encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Report lost lines once, rather than print a traceback for each."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            why = f"cannot write the log {self.baseFilename}: {error.strerror}"
            with suppress(OSError):
                click.echo(f"clairvoyant: {why}", err=True)

    def _open(self) -> TextIOWrapper:
        with suppress(FileExistsError):
            os.close(create_for_owner(Path(self.baseFilename)))
        return super()._open()

    def doRollover(self) -> None:  # noqa: N802 - the library's name
        """Rotate; if that fails, as on Windows while the file is open elsewhere, try again much later."""
        try:
            super().doRollover()
            self.maxBytes = self._every
        except OSError:
            self.stream = self.stream or self._open()
            self.maxBytes += self._every


@contextmanager
def kept_lines() -> Iterator[list[logging.LogRecord]]:
    """Print what is logged while the configuration is read, and keep it for the log file that this names."""
    keeper = MemoryHandler(1000, logging.CRITICAL + 1)
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(FORMAT)
    logging.basicConfig(handlers=[shown, keeper], level=logging.INFO)
    try:
        yield keeper.buffer
    finally:
        for handler in (shown, keeper):
            logging.getLogger().removeHandler(handler)


@contextmanager
def log_of(config: ServeConfig, earlier: Iterable[logging.LogRecord] = ()) -> Iterator[None]:
    """Log as configured during the block; an error that ends it goes to the log file too, and so do lines
    that were only printed `earlier`.
    """
    handler = _handler(config.log_file)
    handler.setFormatter(FORMAT)
    for record in earlier if config.log_file is not None else ():
        handler.handle(record)
    # No line tells these, and each is looked up for it (logging HOWTO, "Optimization").
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(handlers=[handler], level=config.log_level.upper())
    try:
        yield
    except Exception as error:
        if config.log_file is not None:
            if isinstance(error, ClairvoyantError):
                logging.getLogger("clairvoyant").critical(printable(str(error)))
            else:
                logging.getLogger("clairvoyant").exception("internal error")
        raise
    finally:
        if config.log_file is not None:
            logging.getLogger().removeHandler(handler)
            with suppress(OSError):
                handler.close()


def _handler(log_file: str | None) -> logging.Handler:
    if log_file is None:
        return logging.StreamHandler(sys.stderr)
    path = Path(log_file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_pipe(path)
        return LogFile(path)
    except OSError as error:
        raise InputError(f"cannot write the log {path}: {error.strerror or error}") from None
