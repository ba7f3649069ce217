"""Opens the SQLite database of profiles and history.

Rule 1: the file and SQLite's two files beside it have mode 0600.
Rule 2: an unusable file is left as it is; only the daemon renames a damaged one (`set_aside`).
Rule 3: a database of another application is never opened, and one of a later version never changed. Readers
open it read-only. The first process that opens a database of an earlier version converts it.
Rule 4: every sqlite3 error becomes a ProfilesError (`explained`).
"""

import filecmp
import logging
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from profiles.schema import INDEX, OLDEST_VERSION, SCHEMA_VERSION, convert_tables, create_tables, product

log = logging.getLogger("clairvoyant")

VARIABLE = "CLAIRVOYANT_DB"
BUSY_TIMEOUT_S = 5.0
CONVERSION_S = 60.0  # how long another process may take to convert a large file
COPY_KEPT_S = 86_400.0  # how long the copy from before a conversion is kept
OVERWRITTEN_BYTES = 1 << 20  # at once
RETRY_S = 0.005

MARK = INDEX.encode()
"""In the schema of each of our databases."""

FIRST_BYTES = 1 << 18  # where `MARK` is found: SQLite stores the schema first
NOTHING_YET = "nothing is recorded yet in {}; run: clairvoyant serve"
DAMAGED = "{} is damaged; start clairvoyant serve, which renames it and keeps what can be read of it"
MAGIC = b"SQLite format 3\0"


class ProfilesError(Exception):
    """The database cannot be used as asked; the message is one line for the user."""


class DamagedError(ProfilesError):
    """The database is damaged."""


def default_path() -> Path:
    """Return the default path: $CLAIRVOYANT_DB, else in the user data directory."""
    from platformdirs import user_data_path

    named = os.environ.get(VARIABLE)
    return Path(named) if named else user_data_path("clairvoyant", appauthor=False) / "clairvoyant.db"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite errors of the block into a ProfilesError that says what to do."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        kind = DamagedError if is_damage(error) else ProfilesError
        raise kind(explanation(path, error)) from error
    except UnicodeEncodeError as error:
        raise ProfilesError(f"{error.object[:40]!r} is not UTF-8 text, so nothing has this name") from None


def is_damage(error: Exception) -> bool:
    """Return whether an error means that the file is damaged, not a temporary problem such as a full disk.
    UnicodeDecodeError: SQLite quotes a damaged schema in its messages.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or isinstance(error, UnicodeDecodeError)


def explanation(path: Path, error: Exception) -> str:
    """Return one line with the problem of a file and its remedy."""
    text = str(error)
    if is_damage(error) or text.startswith("no such "):
        return DAMAGED.format(path)
    if "full" in text or getattr(error, "errno", None) == 28:
        return f"the disk of {path} is full; free some space, or choose another path with --db"
    if "locked" in text or "busy" in text:
        return (
            f"{path} is locked by another process; try again, or stop that process. If there is none, "
            f"it is on a file system without locks; choose another path with --db or {VARIABLE}"
        )
    if any(word in text for word in ("readonly", "unable to open", "disk I/O")) or isinstance(error, OSError):
        why = getattr(error, "strerror", None) or text
        return f"cannot use {path} ({why}); choose another path with --db or {VARIABLE}"
    return f"{path}: {text}"


def open_database(path: Path, *, create: bool = True) -> sqlite3.Connection:
    """Open the database for writing; create its tables in an empty one. Any thread may use the connection,
    one at a time.

    A file of an earlier version is copied (`_copy`) and converted in one transaction: it has the old schema
    or the new one, whatever stops this. Raises ProfilesError for a file of another application or a
    later version, or an unwritable path, and for a missing file if not `create`; DamagedError for a damaged
    file.
    """
    with _found(path, create=create):
        if create:
            path.resolve().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError):
                os.close(os.open(path.resolve(), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = _connect(path, "rw")
        with _closed_on_error(connection):
            if (version := _version(connection, path)) != SCHEMA_VERSION:
                _bring_up_to_date(connection, path, version)
    return connection


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an existing database for reading, during the block; SQLite errors in it become ProfilesError."""
    with _found(path, create=False):
        try:
            connection = _connect(path, "ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            open_database(path, create=False).close()  # takes back what a killed process has not finished
            connection = _connect(path, "ro")
        with _closed_on_error(connection):
            version = _version(connection, path)
            if version == 0:
                raise ProfilesError(NOTHING_YET.format(path))
        if version != SCHEMA_VERSION:
            connection.close()
            open_database(path, create=False).close()
            connection = _connect(path, "ro")
    with closing(connection), explained(path):
        yield connection


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database, created if missing, and run the block as one transaction."""
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


def set_aside_files(path: Path) -> list[Path]:
    """Return the damaged databases that were set aside in the place of one, and their logs."""
    path = path.resolve()
    name = re.compile(rf"{re.escape(path.name)}\.damaged-\d+(-wal|-shm)?")
    return sorted(each for each in path.parent.iterdir() if name.fullmatch(each.name))


@contextmanager
def _found(path: Path, *, create: bool) -> Iterator[None]:
    """Check the file before the block opens it; errors become ProfilesError."""
    try:
        with explained(path):
            found = None
            with suppress(FileNotFoundError, NotADirectoryError):
                found = path.stat()
            if found is None and not create:
                raise ProfilesError(NOTHING_YET.format(path))
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise ProfilesError(f"{path} is not a regular file; choose another one with --db")
            if found is not None and _place(found) not in _opened and not _may_be_ours(path.resolve()):
                raise ProfilesError(f"{path} is not a database of clairvoyant; choose another file with --db")
            yield
            _opened.add(_place(path.stat()))
    except OSError as error:
        raise ProfilesError(explanation(path, error)) from error


_opened: set[tuple[int, int]] = set()
"""Files that this process has opened with SQLite. Opening and closing one by other means would drop SQLite's
locks on it (https://sqlite.org/howtocorrupt.html, 2.2).
"""


def _place(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _may_be_ours(path: Path) -> bool:
    """Return whether a file is our database, sound or damaged, or has no tables. Judged by its bytes:
    opening it would create SQLite's files beside another application's database.
    """
    # The log first: SQLite moves pages from the log into the file.
    log = file = b""
    with suppress(FileNotFoundError), Path(f"{path}-wal").open("rb") as opened:
        log = opened.read(FIRST_BYTES)
    with suppress(FileNotFoundError), path.open("rb") as opened:
        file = opened.read(FIRST_BYTES)
    if MARK in log or MARK in file:
        return True
    return file[: len(MAGIC)] in (b"", MAGIC, bytes(len(MAGIC))) and b"CREATE " not in log + file


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if not _is_writable(path):
        # Nobody can write it, so SQLite needs no locks.
        mode = "ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    with _closed_on_error(connection):
        connection.execute("PRAGMA foreign_keys = ON")
        _version(connection, path)  # before anything is changed: it rejects what cannot be used
        if mode == "rw":
            _keep_a_log(connection)
            # In WAL mode, NORMAL survives a killed process and commits without waiting for the disk.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")
    return connection


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Switch the file to WAL mode; retry while another process does the same, which SQLite does not."""
    ends_s = time.monotonic() + BUSY_TIMEOUT_S
    connection.execute("PRAGMA busy_timeout = 0")
    while True:
        try:
            # Without file system support for WAL the mode stays as it is.
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends_s:
                raise
            time.sleep(RETRY_S)
        else:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
            return


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema of the database, 0 if it has no tables; an error if it cannot be used."""
    version, tables = connection.execute(
        "SELECT user_version, (SELECT COUNT(*) FROM sqlite_master) FROM pragma_user_version"
    ).fetchone()
    if version > SCHEMA_VERSION:
        raise ProfilesError(_written_later(connection, path, version))
    if (tables or version) and version < OLDEST_VERSION:
        raise DamagedError(DAMAGED.format(path))
    return int(version)


def _written_later(connection: sqlite3.Connection, path: Path, version: int) -> str:
    writer, back = "a later version of clairvoyant", "another file with --db"
    with suppress(sqlite3.Error):
        last = "SELECT product, copy FROM versions ORDER BY schema DESC LIMIT 1"
        for product_then, name in connection.execute(last):
            writer, copy = f"clairvoyant {product_then}", _beside(path, name)
            if name and copy.exists():
                back = f"the copy from before the upgrade, with --db {copy}"
    return (
        f"{path} was written by {writer} (schema {version}), and this is {product()} (schema "
        f"{SCHEMA_VERSION}); install that version again, or choose {back}"
    )


def _bring_up_to_date(connection: sqlite3.Connection, path: Path, before: int) -> None:
    """Create the tables, or convert those of an earlier version, unless another process has been first."""
    if before and not _is_writable(path):
        raise ProfilesError(
            f"{path} has the schema of an earlier version and is read-only; "
            "copy it to a folder that can be written, and choose the copy with --db"
        )
    connection.execute(f"PRAGMA busy_timeout = {CONVERSION_S * 1000:.0f}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        before = _version(connection, path)
        if before == 0:
            create_tables(connection)
        elif before != SCHEMA_VERSION:
            copy = _copy(path, before)
            convert_tables(connection, before, copy.name)
    except BaseException as error:
        connection.rollback()
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:  # a table or column is missing
            raise DamagedError(DAMAGED.format(path)) from error
        raise
    connection.commit()
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
    if 0 < before < SCHEMA_VERSION:
        text = "converted %s from schema %d to %d; the copy %s is kept for a day"
        log.info(text, path, before, SCHEMA_VERSION, copy)


def _beside(path: Path, name: str) -> Path:
    return path.resolve().with_name(Path(name).name or "none")


def _copy(path: Path, version: int) -> Path:
    """Copy the database as it is, and return where: never over a file with other content."""
    copy, number = _beside(path, f"{path.resolve().name}.{version}"), 0
    part = Path(f"{copy}.part")
    part.unlink(missing_ok=True)  # of a process that was killed: others wait for the caller's lock
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        source = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(part)) as target:
            target.execute("PRAGMA journal_mode = OFF")
            source.backup(target)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        while os.path.lexists(copy) and not (copy.is_file() and filecmp.cmp(part, copy, shallow=False)):
            number += 1
            copy = _beside(path, f"{path.resolve().name}.{version}-{number}")
        part.replace(copy)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return copy


def remove_copy(connection: sqlite3.Connection, path: Path, *, kept_s: float = COPY_KEPT_S) -> Path | None:
    """Overwrite and remove the copy from before the last conversion, if that was `kept_s` ago. A copy that
    was written to since is somebody's database: return it.
    """
    sound = "typeof(copy) = 'text' AND copy != '' AND typeof(at) = 'real'"
    last = f"SELECT copy, at FROM versions WHERE {sound} ORDER BY schema DESC LIMIT 1"  # noqa: S608
    for name, converted_at in connection.execute(last).fetchall():
        copy = _beside(path, name)
        if converted_at > time.time() - kept_s or not copy.is_file() or not _may_be_ours(copy):
            continue
        if copy.stat().st_mtime > converted_at or Path(f"{copy}-wal").exists():
            return copy
        overwrite(copy)
    return None


def overwrite(path: Path) -> None:
    """Overwrite a file and remove it, so that most disks keep nothing of it; may raise ProfilesError."""
    try:
        with path.open("r+b", buffering=0) as file:
            for _ in range(0, path.stat().st_size, OVERWRITTEN_BYTES):
                file.write(bytes(OVERWRITTEN_BYTES))
        path.unlink()
    except OSError as error:
        raise ProfilesError(f"cannot erase {path}: {error.strerror or error}; remove it yourself") from error
