"""A daemon's first look at its database: what is damaged in it and can be had anew is made anew.

Rule 1: what was recorded is neither changed nor erased, only what is derived from it, or a key that is lost.
Rule 2: it is said once in the log what was lost by it.
"""

import logging
import secrets
import sqlite3
from dataclasses import fields

from profiles.errors import DamagedError
from profiles.records import Finished
from profiles.states import kept_salt

log = logging.getLogger("clairvoyant")

_HISTORY = ", ".join(field.name for field in fields(Finished))
_USES = (
    f"INSERT INTO history ({_HISTORY}) SELECT {_HISTORY} FROM history",  # noqa: S608 - names of our own
    "UPDATE history SET finished_at = id",
    "DELETE FROM history",
    "SELECT hour, model, outcome, length_class, requests, tokens, waited_s, sojourn_s FROM tally",
    "SELECT id, name, backend, place, model, host, measured_at, chosen_at, record FROM profiles",
    "SELECT profile, number, record FROM samples",
    "INSERT INTO states SELECT name, saved_at, state FROM states WHERE 1 ON CONFLICT (name) DO NOTHING",
    "SELECT only_row, salt FROM salt",
    "SELECT first_row, boot, offset_s FROM clocks",
)
"""What the daemon does with the tables: whatever of these SQLite takes, with their triggers, is there."""

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
    """Raise DamagedError where a table, a column or a trigger is missing, as after damage to the schema."""
    try:
        for statement in _USES:
            connection.execute(f"EXPLAIN {statement}").close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # such as a disk that cannot be read
            raise
        raise DamagedError("its tables are not as they were made") from error


def mend(connection: sqlite3.Connection) -> None:
    """Make anew what is damaged: the key that clients are hashed with, and the counts by hour."""
    if kept_salt(connection) is not None and not _is_damaged(connection):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        lost = []
        if kept_salt(connection) is None:
            connection.execute("INSERT OR REPLACE INTO salt VALUES (1, ?)", (secrets.token_bytes(32),))
            lost.append(
                "the key of the clients' names was lost: what a client did before is not known as its"
            )
        if _is_damaged(connection):
            connection.execute("DELETE FROM tally")
            connection.execute(_COUNT_AGAIN)
            lost.append("its counts by hour were damaged: they have been counted again")
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    for line in lost:
        log.warning("history: %s", line)


def _is_damaged(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute(_TALLY_IS_DAMAGED).fetchone()[0])
