"""Repairs a database at the start of a daemon: a lost salt and a damaged tally are replaced.

Recorded rows are never changed. What was lost is logged once.
"""

import logging
import secrets
import sqlite3
from dataclasses import fields

from profiles.database import DamagedError
from profiles.records import Finished
from profiles.states import kept_salt

log = logging.getLogger("clairvoyant")

_HISTORY = ", ".join(field.name for field in fields(Finished))
_USES = (
    f"INSERT INTO history ({_HISTORY}) SELECT {_HISTORY} FROM history",  # noqa: S608 - names of our own
    "DELETE FROM history",
    "SELECT hour, model, outcome, length_class, requests, tokens, waited_s, sojourn_s FROM tally",
    "SELECT id, name, backend, place, model, host, measured_at, chosen_at, record FROM profiles",
    "SELECT profile, number, record FROM samples",
    "INSERT INTO states SELECT name, saved_at, state FROM states WHERE 1 ON CONFLICT (name) DO NOTHING",
    "SELECT only_row, salt FROM salt",
)
"""Statements on all tables: if SQLite accepts them, no table, column or trigger is missing."""

_TALLY_IS_DAMAGED = """
    SELECT EXISTS (
        SELECT 1 FROM tally
        WHERE typeof(hour) != 'integer' OR typeof(requests) != 'integer' OR typeof(tokens) != 'integer'
            OR typeof(waited_s) != 'real' OR typeof(sojourn_s) != 'real' OR typeof(model) != 'text'
            OR requests <= 0 OR requests > 1e12 OR abs(tokens / 2) > 1e17
    )
"""
_COUNT_AGAIN = """
    INSERT INTO tally
    SELECT CAST(finished_at / 3600 AS INTEGER), model, outcome, length_class, COUNT(*),
        SUM(CASE WHEN typeof(tokens) = 'integer' AND tokens BETWEEN 0 AND 1e12 THEN tokens ELSE 0 END),
        TOTAL(waited_s), TOTAL(sojourn_s)
    FROM history
    WHERE typeof(finished_at) = 'real' AND abs(finished_at) < 1e12 AND typeof(model) = 'text'
        AND abs(waited_s) < 1e12 AND abs(sojourn_s) < 1e12
    GROUP BY 1, 2, 3, 4
"""


def check_shape(connection: sqlite3.Connection) -> None:
    """Raise DamagedError if a table, column or trigger is missing."""
    try:
        for statement in _USES:
            connection.execute(f"EXPLAIN {statement}").close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # e.g. a read error of the disk
            raise
        raise DamagedError("its tables are incomplete") from error


def mend(connection: sqlite3.Connection) -> None:
    """Replace a lost salt, and recount a damaged tally."""
    if kept_salt(connection) is not None and not _is_damaged(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        lost = []
        if kept_salt(connection) is None:
            connection.execute("INSERT OR REPLACE INTO salt VALUES (1, ?)", (secrets.token_bytes(32),))
            lost.append("the key of the client hashes was lost: earlier requests have no known client")
        if _is_damaged(connection):
            connection.execute("DELETE FROM tally")
            connection.execute(_COUNT_AGAIN)
            lost.append("the hourly counts were damaged and have been recounted")
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    for line in lost:
        log.warning("history: %s", line)


def _is_damaged(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute(_TALLY_IS_DAMAGED).fetchone()[0])
