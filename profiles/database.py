"""The one file: where it lies, how it is opened, and what is said when it cannot be.

Rule 1: the file is its owner's alone (0600), and so are the two that SQLite keeps beside it.
Rule 2: a file that cannot be used is left exactly as it was found; only the daemon renames a damaged one, see
`set_aside`.
Rule 3: a database of another application is never opened, and one that is only read is opened read-only.
Rule 4: every sqlite3 error, and every name that is no text, leaves this package as one ProfilesError, through
`explained`.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from profiles.errors import DamagedError, ProfilesError

SCHEMA_VERSION = 7
"""One for each migration; SQLite's user_version holds that of the file."""

VARIABLE = "CLAIRVOYANT_DB"
BUSY_TIMEOUT_S = 5.0

SHAPING_TIMEOUT_S = 60.0
"""How long another process may take to bring a large file up to date."""

RETRY_S = 0.005

MARKS = (b"profiles_and_their_samples", b"history_counts_in")
"""The name of the first migration and of a trigger, which the first pages of every database of ours hold."""

FIRST_BYTES = 1 << 18
"""Where the marks are: SQLite writes the first tables first, and keeps their first pages there."""

MAGIC = b"SQLite format 3\0"


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
    except (sqlite3.Error, UnicodeDecodeError) as error:
        kind = DamagedError if is_damage(error) else ProfilesError
        raise kind(explanation(path, error)) from error
    except UnicodeEncodeError as error:
        raise ProfilesError(f"{error.object[:40]!r} is no UTF-8 text, and nothing here is named so") from None


def is_damage(error: Exception) -> bool:
    """Whether an error says that the file itself is damaged; never one that passes, such as a full disk.

    SQLite quotes a damaged schema in its messages, which Python cannot decode then.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or isinstance(error, UnicodeDecodeError)


def explanation(path: Path, error: Exception) -> str:
    """Say in one line what is wrong with a file, and what can be done."""
    text = str(error)
    if is_damage(error) or text.startswith("no such "):
        return f"{path} is damaged; clairvoyant serve renames it and begins an empty one, or move it away"
    if "full" in text or getattr(error, "errno", None) == 28:
        return f"no room for {path}: the disk is full; make room, or choose another place with --db"
    if "locked" in text or "busy" in text:
        return f"{path} is in use by another process for too long; try again, or stop that process"
    if "readonly" in text or "unable to open" in text or isinstance(error, OSError):
        why = getattr(error, "strerror", None) or text
        return f"cannot use {path} ({why}); choose another place with --db or {VARIABLE}"
    return f"{path}: {text}"


def open_database(path: Path, *, create: bool = True) -> sqlite3.Connection:
    """Open the database to write it, in its present shape; it may be used by any thread, one at a time.

    Raises ProfilesError where that cannot be: a file of another application, one of a newer version, a place
    that cannot be written; DamagedError where the file is damaged. With `create` False a file that is not
    there raises, and nothing is made.
    """
    with _found(path, create=create):
        if create:
            _make(path.resolve())
        connection = _connect(path, "rw")
        with _closed_on_error(connection):
            _bring_up_to_date(connection, path)
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that must exist to read it, for as long as the block lasts; errors in it are explained.

    One of an older shape is copied into memory and brought up to date there.
    """
    with _found(path, create=False):
        connection = _connect(path, "ro")
        with _closed_on_error(connection):
            if _version(connection, path) != SCHEMA_VERSION:
                copy = sqlite3.connect(":memory:", check_same_thread=False)
                with closing(connection), _closed_on_error(copy):
                    connection.backup(copy)
                    _bring_up_to_date(copy, path)
                connection = copy
    with closing(connection), explained(path):
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


def set_aside(path: Path, examined: os.stat_result) -> Path | None:
    """Give a damaged database another name, and return it; the way is then free for a new one.

    `examined` tells which file was found to be damaged: if another one is in its place by now, nothing is
    done, and None returned. ProfilesError if it cannot be renamed.
    """
    path, number = path.resolve(), 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    try:
        if not os.path.samestat(path.stat(), examined):
            return None
        # The log goes first: SQLite would replay one that was left behind into the new file.
        for end in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                Path(f"{path}{end}").rename(f"{aside}{end}")
    except OSError as error:
        raise ProfilesError(explanation(path, error)) from error
    return aside


@contextmanager
def _found(path: Path, *, create: bool) -> Iterator[None]:
    """Explain what goes wrong in the block, which opens the file; ProfilesError if it may not be opened."""
    try:
        with explained(path):
            found = None
            with suppress(FileNotFoundError, NotADirectoryError):
                found = path.stat()
            if found is None and not create:
                raise ProfilesError(
                    f"nothing is recorded yet (no {path}); clairvoyant calibrate and serve record"
                )
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise ProfilesError(f"{path} is not a regular file; choose another one with --db")
            if found is not None and _place(found) not in _opened and not _may_be_ours(path.resolve()):
                raise ProfilesError(f"{path} is not a database of clairvoyant; choose another file with --db")
            yield
            _opened.add(_place(path.stat()))
    except OSError as error:
        raise ProfilesError(explanation(path, error)) from error


_opened: set[tuple[int, int]] = set()
"""The files that this process has opened by SQLite. To open and close one otherwise would drop the locks that
SQLite holds on it (https://sqlite.org/howtocorrupt.html, 2.2), and another process would remove its log.
"""


def _place(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _may_be_ours(path: Path) -> bool:
    """Say by its bytes whether a file is a database of ours, sound or damaged, or holds no table at all.

    Opening it would tell less, for a damaged one does not say whose it is, and would leave SQLite's files
    beside another application's.
    """
    # The log first: what is in neither has moved from there into the file meanwhile.
    log, file = (_first_bytes(Path(f"{path}{end}")) for end in ("-wal", ""))
    if any(mark in log or mark in file for mark in MARKS):
        return True
    return file[: len(MAGIC)] in (b"", MAGIC, bytes(len(MAGIC))) and b"CREATE " not in log + file


def _first_bytes(path: Path) -> bytes:
    with suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(FIRST_BYTES)
    return b""


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # Where nothing can be written there is no writer either, and SQLite need not look for one.
        mode = "ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    with _closed_on_error(connection):
        connection.execute("PRAGMA foreign_keys = ON")
        if mode == "rw":
            _keep_a_log(connection)
            # In WAL mode NORMAL loses nothing when the process is killed, and commits without waiting.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
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
        else:
            return  # where the file system has no WAL, the mode stays as it was


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
