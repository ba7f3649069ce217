"""The tables of the database, and the steps that lead to them from the tables of earlier versions.

To change a table, raise `SCHEMA_VERSION`, change `create_tables` and add a step to `STEPS`. A column of the
history is a field of `Finished` with a default; its step calls `add_columns`.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, get_args, get_type_hints

from profiles.records import Finished, Incident

if TYPE_CHECKING:
    from sqlite_utils import Database

log = logging.getLogger("clairvoyant")

SCHEMA_VERSION = 16  # SQLite's user_version
OLDEST_VERSION = 3  # no commit wrote an earlier one
INDEX = "profiles_fit"  # also the mark of our databases: see `profiles.database.MARK`

_HINTS = get_type_hints(Finished) | {"client": bytes}  # clients are stored as hashes
COLUMNS = tuple(field.name for field in fields(Finished))
KINDS: tuple[tuple[type, ...], ...] = tuple(get_args(_HINTS[name]) or (_HINTS[name],) for name in COLUMNS)
"""The columns of `history`, and the types of each; a nullable one has NoneType as well."""

CLIENT, VALUES = COLUMNS.index("client"), attrgetter(*COLUMNS)
INSERT = f"INSERT INTO history ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608

_NOT_NULL = {name for name, kinds in zip(COLUMNS, KINDS, strict=True) if len(kinds) == 1}
_DEFAULTS = {field.name: field.default for field in fields(Finished) if field.default in (0, "")}

UNIQUE_NAMES = "CREATE UNIQUE INDEX profiles_name ON profiles (name)"
UNFINISHED = (
    "CREATE TABLE unfinished (request TEXT PRIMARY KEY, daemon TEXT NOT NULL, began_at REAL NOT NULL, "
    "client BLOB NOT NULL, program TEXT NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL) WITHOUT ROWID"
)
INCIDENTS = (
    "CREATE TABLE incidents (server TEXT NOT NULL, began_at REAL NOT NULL, ended_at REAL NOT NULL, "
    "down INTEGER NOT NULL, failed INTEGER NOT NULL, cause TEXT NOT NULL, PRIMARY KEY (began_at, server)) "
    "WITHOUT ROWID"
)
INSERT_INCIDENT = (
    f"INSERT OR REPLACE INTO incidents ({', '.join(Incident._fields)}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
)
VERSIONS = (
    "CREATE TABLE versions (schema INTEGER PRIMARY KEY, product TEXT NOT NULL, at REAL NOT NULL, "
    "converted_from INTEGER NOT NULL, copy TEXT NOT NULL)"
)
"""The version of Clairvoyant that wrote each schema of the file first, when, from which schema, or 0, and the
name of the copy from before that."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create all tables, within the caller's transaction."""
    db = _utils(connection)
    # Profiles whole as JSON, beside the columns that choose between them; nothing reads chosen_at any more.
    names = ("name", "backend", "place", "model", "host", "record")
    columns = {"id": int, **dict.fromkeys(names, str), "measured_at": float, "chosen_at": float}
    profiles = db.create_table("profiles", columns, pk="id", not_null={*names, "measured_at"})
    db.execute(UNIQUE_NAMES)
    profiles.create_index(["host", "backend", "place", "measured_at"], INDEX)
    db.execute(
        "CREATE TABLE samples (profile INTEGER NOT NULL REFERENCES profiles ON DELETE CASCADE, "
        "number INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (profile, number)) WITHOUT ROWID"
    )
    columns = {"id": int, **{name: kinds[0] for name, kinds in zip(COLUMNS, KINDS, strict=True)}}
    history = db.create_table("history", columns, pk="id", not_null=_NOT_NULL, defaults=_DEFAULTS)
    history.create_index(["finished_at"], "history_time")
    history.create_index(["length_class", "finished_at", "sojourn_s", "waited_s"], "history_class")
    history.create_index(["client", "finished_at"], "history_client")
    db.execute(
        "CREATE TABLE states (name TEXT PRIMARY KEY, saved_at REAL NOT NULL, state BLOB NOT NULL) "
        "WITHOUT ROWID"
    )
    # The key of the client hashes.
    db.execute("CREATE TABLE salt (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), salt BLOB NOT NULL)")
    db.execute("INSERT INTO salt VALUES (1, randomblob(32))")
    for table in (UNFINISHED, VERSIONS, INCIDENTS):
        db.execute(table)
    _note_version(connection, 0)


def _utils(connection: sqlite3.Connection) -> "Database":
    from sqlite_utils import Database  # it takes a third of a second

    return Database(connection, execute_plugins=False)


def convert_tables(connection: sqlite3.Connection, before: int, copy: str) -> None:
    """Take the steps from an earlier version, of which there is a `copy`, in the caller's transaction."""
    for schema, step in STEPS.items():
        if schema > before:
            step(connection)
    _note_version(connection, before, copy)


def _to_14(connection: sqlite3.Connection) -> None:
    """Versions 3 to 13 have fewer columns, counts by hour, and the last message of a request."""
    for name in ("history_counts_in", "history_counts_out", "history_counts_over"):
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")
    for name in ("clocks", "tally", "_sqlite_migrations"):
        connection.execute(f"DROP TABLE IF EXISTS {name}")
    connection.execute(UNIQUE_NAMES)
    add_columns(connection)
    if "prompt" in _utils(connection).table("history").columns_dict:
        prompts = connection.execute("SELECT COUNT(prompt) FROM history").fetchone()[0]
        connection.execute("ALTER TABLE history DROP COLUMN prompt")
        if prompts:
            log.warning("history: dropped %d recorded prompts, which only earlier versions read", prompts)


def _to_15(connection: sqlite3.Connection) -> None:
    """Version 14 does not tell which requests a killed daemon had, nor which version wrote it."""
    connection.execute(UNFINISHED)
    connection.execute(VERSIONS)


def _to_16(connection: sqlite3.Connection) -> None:
    """Version 15 does not tell what went wrong with servers; `profiles use` chose a profile in it."""
    connection.execute(INCIDENTS)
    for (name,) in connection.execute("SELECT name FROM profiles WHERE chosen_at IS NOT NULL"):
        log.warning(
            "profile %s: `profiles use` was removed, the newest profile that fits is used; "
            "to use this one, remove newer ones: clairvoyant profiles rm",
            name,
        )


STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {14: _to_14, 15: _to_15, 16: _to_16}


def add_columns(connection: sqlite3.Connection) -> None:
    """Add the columns that the history lacks."""
    history = _utils(connection).table("history")
    had = history.columns_dict
    for name, kinds in zip(COLUMNS, KINDS, strict=True):
        if name not in had:
            history.add_column(name, kinds[0], not_null_default=_DEFAULTS.get(name))


def product() -> str:
    """Return the installed version of Clairvoyant."""
    from importlib.metadata import PackageNotFoundError, version  # it takes 10 ms

    with suppress(PackageNotFoundError):
        return version("clairvoyant-cli")
    return "(unknown version)"


def _note_version(connection: sqlite3.Connection, before: int, copy: str = "") -> None:
    values = SCHEMA_VERSION, product(), time.time(), before, copy
    connection.execute("INSERT INTO versions VALUES (?, ?, ?, ?, ?)", values)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
