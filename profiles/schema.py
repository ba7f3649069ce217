"""The tables of the database. A change of them raises `SCHEMA_VERSION`."""

import sqlite3
from dataclasses import fields
from typing import get_args, get_type_hints

from profiles.records import Finished

SCHEMA_VERSION = 14  # SQLite's user_version; files of other versions are rejected
INDEX = "profiles_fit"  # also the mark of our databases: see `profiles.database.MARK`

_HINTS = get_type_hints(Finished) | {"client": bytes}  # clients are stored as hashes
COLUMNS = tuple(field.name for field in fields(Finished))
KINDS: tuple[tuple[type, ...], ...] = tuple(get_args(_HINTS[name]) or (_HINTS[name],) for name in COLUMNS)
"""The columns of `history`, and the types of each; a nullable one has NoneType as well."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Create all tables, within the caller's transaction."""
    # Import lazily: sqlite-utils takes a third of a second.
    from sqlite_utils import Database

    db = Database(connection, execute_plugins=False)
    # Profiles whole as JSON, beside the columns that choose between them.
    names = ("name", "backend", "place", "model", "host", "record")
    columns = {"id": int, **dict.fromkeys(names, str), "measured_at": float, "chosen_at": float}
    profiles = db.create_table("profiles", columns, pk="id", not_null={*names, "measured_at"})
    profiles.create_index(["name"], "profiles_name", unique=True)
    profiles.create_index(["host", "backend", "place", "measured_at"], INDEX)
    db.execute(
        "CREATE TABLE samples (profile INTEGER NOT NULL REFERENCES profiles ON DELETE CASCADE, "
        "number INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (profile, number)) WITHOUT ROWID"
    )
    history = db.create_table(
        "history",
        {"id": int, **{name: kinds[0] for name, kinds in zip(COLUMNS, KINDS, strict=True)}},
        pk="id",
        not_null={name for name, kinds in zip(COLUMNS, KINDS, strict=True) if len(kinds) == 1},
    )
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
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
