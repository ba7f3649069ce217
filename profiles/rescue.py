"""Copies what can be read of a damaged database, of any version, into a new one."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

TABLES = ("profiles", "samples", "salt", "states", "history")
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)


def rescue(connection: sqlite3.Connection, damaged: Path) -> str:
    """Copy the rows that can be read into a new database; return how many there are, in words."""
    connection.execute("PRAGMA foreign_keys = OFF")  # a profile may be lost, and its samples not
    connection.execute("BEGIN IMMEDIATE")
    source = sqlite3.connect(f"{damaged.as_uri()}?mode=ro", uri=True)
    source.text_factory = lambda text: text.decode(errors="replace")
    with closing(source):
        kept = {table: _copy(connection, source, table) for table in TABLES}
    connection.commit()
    return f"profiles {kept['profiles']}, requests {kept['history']}, learned states {kept['states']}"


def _copy(connection: sqlite3.Connection, source: sqlite3.Connection, table: str) -> int:
    """Copy the columns that both have; return the number of rows."""
    here, there = (
        {name for (name,) in _rows(each, f"SELECT name FROM pragma_table_info('{table}')")}  # noqa: S608
        for each in (connection, source)
    )
    names = sorted(here & there)
    before = connection.total_changes
    if names:
        columns, marks = ", ".join(names), ", ".join("?" * len(names))
        how = "REPLACE" if table == "salt" else "IGNORE"  # the new salt is nobody's
        connection.executemany(
            f"INSERT OR {how} INTO {table} ({columns}) VALUES ({marks})",  # noqa: S608 - names of our own
            _rows(source, f"SELECT {columns} FROM {table}"),  # noqa: S608
        )
    return connection.total_changes - before


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows up to the first one that cannot be read."""
    with suppress(*UNREADABLE):
        yield from connection.execute(query)
