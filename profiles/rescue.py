"""Copies what can be read of a damaged database, of any version, into a new one."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

TABLES = ("profiles", "samples", "salt", "states", "history", "incidents")
MOST_MISSED = 100_000  # numbers without a row, one after the other
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
        insert = f"INSERT OR {how} INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608 - names of our own
        query = f"SELECT {columns} FROM {table}"  # noqa: S608
        rows = _by_number(source, table, query) if "id" in names else _rows(source, query)
        connection.executemany(insert, rows)
    return connection.total_changes - before


def _by_number(source: sqlite3.Connection, table: str, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield each row that can be found by its number, beyond pages that cannot be read."""
    ends = f"SELECT id FROM {table} ORDER BY id "  # noqa: S608
    first, last = (
        next((row[0] for row in _rows(source, f"{ends}{way} LIMIT 1")), None) for way in ("ASC", "DESC")
    )
    missed = 0
    for number in range(first or 1, sys.maxsize) if last is None else range(last, (first or 1) - 1, -1):
        found = [*_rows(source, f"{query} WHERE id = {number}")]
        yield from found
        missed = 0 if found else missed + 1
        if missed > MOST_MISSED:
            break


def _rows(connection: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows up to the first one that cannot be read."""
    with suppress(*UNREADABLE):
        yield from connection.execute(query)
