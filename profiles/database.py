"""The one file: where it lies, how it is opened, and what is said when it cannot be.

Rule 1: the file is its owner's alone (0600), and so are the two that SQLite keeps beside it.
Rule 2: a file that cannot be used is left exactly as it was found.
Rule 3: every sqlite3 error, and every name that is no text, leaves this package as one ProfilesError, through
`explained`.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from profiles.errors import ProfilesError

SCHEMA_VERSION = 7
"""One for each migration; SQLite's user_version holds that of the file."""

VARIABLE = "CLAIRVOYANT_DB"
BUSY_TIMEOUT_S = 5.0

SHAPING_TIMEOUT_S = 60.0
"""How long another process may take to bring a large file up to date."""

RETRY_S = 0.005


def default_path() -> Path:
    """Return where the database is kept: $CLAIRVOYANT_DB, or the user's data directory."""
    from platformdirs import user_data_path

    named = os.environ.get(VARIABLE)
    return Path(named) if named else user_data_path("clairvoyant", appauthor=False) / "clairvoyant.db"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn whatever SQLite has against a file into a ProfilesError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise ProfilesError(explanation(path, error)) from error
    except UnicodeEncodeError as error:
        raise ProfilesError(f"{error.object[:40]!r} is no UTF-8 text, and nothing here is named so") from None


def explanation(path: Path, error: BaseException) -> str:
    """Say in one line what is wrong with a file, and what can be done."""
    text = str(error)
    if "malformed" in text or "not a database" in text:
        return f"{path} is damaged ({text}); it was left as it is: move it away to start afresh"
    if "full" in text or getattr(error, "errno", None) == 28:
        return f"no room for {path}: the disk is full; make room, or choose another place with --db"
    if "locked" in text or "busy" in text:
        return f"{path} is in use by another process for too long; try again, or stop that process"
    if "readonly" in text or "unable to open" in text or isinstance(error, OSError):
        why = getattr(error, "strerror", None) or text
        return f"cannot write {path} ({why}); choose another place with --db or {VARIABLE}"
    return f"{path}: {text}"


def open_database(path: Path, *, create: bool = True) -> sqlite3.Connection:
    """Open the database and bring its shape up to date; it may be used by any thread, one at a time.

    Raises ProfilesError where that cannot be: a damaged file, one of a newer version, a place that cannot
    be written. With `create` False a file that is not there raises, and nothing is made.
    """
    if not create and not path.exists():
        raise ProfilesError(f"nothing is recorded yet (no {path}); clairvoyant calibrate and serve record")
    try:
        if create:
            _make(path)
        with explained(path):
            connection = _connect(path)
            try:
                _bring_up_to_date(connection, path)
            except BaseException:
                connection.close()
                raise
    except OSError as error:
        raise ProfilesError(explanation(path, error)) from error
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that must exist, for as long as the block lasts; errors in it are explained."""
    with closing(open_database(path, create=False)) as connection, explained(path):
        yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database, made if need be; what the block does is done whole or not at all."""
    with closing(open_database(path)) as connection, explained(path):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _connect(path: Path) -> sqlite3.Connection:
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    # Where nothing can be written there is no writer either, and SQLite need not look for one.
    mode = "mode=rw" if writable else "mode=ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        if writable:
            _keep_a_log(connection)
            # In WAL mode NORMAL loses nothing when the process is killed, and commits without waiting.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Put the file into WAL mode, for good; at the first opening several processes may try at once.

    SQLite waits for readers here, but not for another process that switches the same file: both hold a read
    lock and want the whole file, and one is turned away at once. It asks again.
    """
    ends_s = time.monotonic() + SHAPING_TIMEOUT_S
    while _journal_mode(connection) != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends_s:
                raise
            time.sleep(RETRY_S)


def _journal_mode(connection: sqlite3.Connection) -> str:
    mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
    return mode


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection, path) == SCHEMA_VERSION:
        return
    # sqlite-utils takes a third of a second to import: only whoever migrates pays for it.
    from sqlite_utils import Database

    from profiles.migrations import migrations

    # Whoever comes first does it, and the others wait. The write lock is asked for at the beginning: a
    # transaction that asked for it midway would be turned away.
    connection.execute(f"PRAGMA busy_timeout = {SHAPING_TIMEOUT_S * 1000:.0f}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection, path) != SCHEMA_VERSION:
            migrations.apply(Database(connection, execute_plugins=False))
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise ProfilesError(
            f"{path} was written by a newer clairvoyant (version {version} of its shape, "
            f"this one knows {SCHEMA_VERSION}); update, or choose another file with --db"
        )
    return version
