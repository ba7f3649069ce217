"""Queries and erases the history of requests."""

import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiles.database import (
    ProfilesError,
    explained,
    open_database,
    overwrite,
    remove_copy,
    set_aside_files,
)
from profiles.records import Finished, Incident, ServedRequest
from profiles.schema import CLIENT, COLUMNS, KINDS
from profiles.states import client_hash, drop_states, note_forgetting, salt

log = logging.getLogger("clairvoyant")

CHECKPOINT_TRIES = 20
SOUND = (
    "typeof(model) = 'text' AND typeof(outcome) = 'text' AND typeof(length_class) = 'text' "
    "AND typeof(finished_at) = 'real' AND abs(finished_at) < 1e12 AND (tokens IS NULL OR abs(tokens) < 1e12) "
    "AND typeof(waited_s) = 'real' AND abs(waited_s) < 1e12 "
    "AND typeof(sojourn_s) = 'real' AND abs(sojourn_s) < 1e12 AND typeof(session) = 'text' "
    "AND abs(COALESCE(read_tokens, 0)) < 1e12 AND abs(COALESCE(cached_tokens, 0)) < 1e12"
)
"""Condition that skips damaged rows in sums: SQLite stores any type in any column."""

SELECT = f"SELECT {', '.join(COLUMNS)} FROM history"  # noqa: S608 - column names of our own
ALWAYS, FOREVER = -1e12, 1e12
"""Epoch seconds before and after all recorded times; a wrong clock can give times before 1970."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time [since, until), epoch seconds, optionally of one client and model."""

    since: float = ALWAYS
    until: float = FOREVER
    client: str | None = None
    model: str | None = None


def newest(connection: sqlite3.Connection, span: Span, limit: int) -> list[Finished]:
    """Return the newest requests of a span, newest first; clients are hashes."""
    where, values = where_of(connection, span)
    rows = connection.execute(
        f"{SELECT} WHERE {where} ORDER BY finished_at DESC LIMIT ?", (*values, min(limit, 2**63 - 1))
    )
    return list(_sound(rows))


def each(connection: sqlite3.Connection, span: Span) -> Iterator[Finished]:
    """Yield the requests of a span in order of their end."""
    where, values = where_of(connection, span)
    yield from _sound(connection.execute(f"{SELECT} WHERE {where} ORDER BY finished_at", values))


def served_since(connection: sqlite3.Connection, since: float) -> list[ServedRequest]:
    """Return the requests since a time, epoch seconds, in order."""
    rows = connection.execute(
        f"SELECT {', '.join(ServedRequest._fields)} FROM history INDEXED BY history_time "  # noqa: S608
        f"WHERE finished_at >= ? AND {SOUND} AND typeof(program) = 'text' ORDER BY finished_at",
        (since,),
    )
    return [ServedRequest(*row) for row in rows]


def incidents_since(connection: sqlite3.Connection, since: float) -> list[Incident]:
    """Return the incidents that lasted until a time, epoch seconds, or began later; in order."""
    rows = connection.execute(
        f"SELECT {', '.join(Incident._fields)} FROM incidents "  # noqa: S608 - names of our own
        "WHERE typeof(began_at) = 'real' AND typeof(ended_at) = 'real' AND ended_at >= ? AND began_at < 1e12 "
        "AND typeof(failed) = 'integer' AND typeof(server) = 'text' AND typeof(cause) = 'text' "
        "ORDER BY began_at",
        (since,),
    )
    return [Incident(*row)._replace(down=bool(row[3])) for row in rows]


@dataclass(frozen=True, slots=True)
class Erased:
    """The number of erased requests, and their first and last recorded time, epoch seconds; a `copy` that has
    some yet.
    """

    requests: int
    first_at: float = 0.0
    last_at: float = 0.0
    copy: Path | None = None


def forget(path: Path, span: Span, *, states: bool) -> Erased:
    """Erase the requests of a span by their recorded times, and learned states if `states`.

    Nothing of it remains in the file or its log: deleted data is overwritten, the file rebuilt and the log
    emptied. ProfilesError if another process prevents that. A running daemon does not write it again.
    Damaged databases that were set aside are removed with all requests; a span cannot be erased in them. The
    copy from before a conversion is removed with any, unless it was used since.
    """
    with closing(open_database(path, create=False)) as connection, explained(path):
        if span == Span():
            for aside in set_aside_files(path):
                overwrite(aside)
        copy = remove_copy(connection, path, kept_s=0.0)
        erased = _erase(connection, span, states)
        connection.execute("VACUUM")
        _empty_log(connection, path)
    return replace(erased, copy=copy)


def _erase(connection: sqlite3.Connection, span: Span, states: bool) -> Erased:
    connection.execute("BEGIN IMMEDIATE")
    damaged = " OR typeof(finished_at) != 'real' OR abs(finished_at) >= 1e12"  # belongs to every span
    where, values = where_of(connection, span, damaged)
    erased = Erased(
        *connection.execute(
            # Adding a number converts a damaged row's text.
            "SELECT COUNT(*), COALESCE(MIN(finished_at + 0.0), 0), COALESCE(MAX(finished_at + 0.0), 0) "  # noqa: S608
            f"FROM history WHERE {where}",
            values,
        ).fetchone()
    )
    connection.execute(f"DELETE FROM history WHERE {where}", values)  # noqa: S608
    began = where.replace("finished_at", "began_at")  # of a killed daemon, they would come back as lost
    connection.execute(f"DELETE FROM unfinished WHERE {began}", values)  # noqa: S608
    if span.client is None and span.model is None:
        connection.execute(f"DELETE FROM incidents WHERE {began}", values)  # noqa: S608
    if states:
        drop_states(connection)
    note_forgetting(connection, states=states)
    connection.commit()
    return erased


def _empty_log(connection: sqlite3.Connection, path: Path) -> None:
    for _ in range(CHECKPOINT_TRIES):
        if not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            return
        time.sleep(0.1)
    raise ProfilesError(
        f"erased, but {path}-wal still has the old pages because another process reads them; "
        "stop it and run the command again"
    )


def where_of(connection: sqlite3.Connection, span: Span, more: str = "") -> tuple[str, tuple[object, ...]]:
    """Return the SQL condition of a span, and its values; rows at other times may fit `more`."""
    where = f"(finished_at >= ? AND finished_at < ?{more})"
    values: list[object] = [span.since, span.until]
    if span.client is not None:
        where += " AND client = ?"
        values.append(client_hash(salt(connection), span.client))
    if span.model is not None:
        where += " AND model = ?"
        values.append(span.model)
    return where, tuple(values)


def _sound(rows: Iterable[tuple[Any, ...]]) -> Iterator[Finished]:
    """Yield rows as requests, clients as hashes; skip and count damaged ones."""
    damaged = 0
    for row in rows:
        if all(map(isinstance, row, KINDS)):
            yield Finished(*(*row[:CLIENT], row[CLIENT].hex()[:12], *row[CLIENT + 1 :]))
        else:
            damaged += 1
    if damaged:
        log.warning("history: skipped %d damaged rows", damaged)
