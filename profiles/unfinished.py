"""Which requests a daemon is working on, so that the next one can tell which of them were lost.

Rule 1: a row is deleted when its request ends or its daemon stops, so only a killed daemon leaves rows.
Rule 2: a row has no text of the request, and its client as a hash.
"""

import sqlite3
import time
from collections.abc import Callable
from typing import Any

from profiles.records import Begun, Finished
from profiles.schema import INSERT, VALUES
from profiles.states import client_hash

LOST = "lost"  # the outcome
REMARK = "the daemon was killed, or the machine lost power"
UNKNOWN_NAMES = ("backend", "predicted_class", "source", "length_class", "policy", "dispatched_by")
UNKNOWN_FIGURES = ("p_long", "expected_tokens", "q90_tokens", "waited_s")
NAMES = ", ".join(Begun._fields)
LAST_SEEN = (
    "SELECT MAX((SELECT COALESCE(MAX(saved_at), 0) FROM states WHERE saved_at <= ?1), "
    "(SELECT COALESCE(MAX(finished_at), 0) FROM history WHERE finished_at <= ?1))"
)
"""When anything was written last. Learned state is saved every 20 seconds."""


def note(connection: sqlite3.Connection, daemon: str, salt: bytes, begun: Begun) -> None:
    """Store a request that a daemon has begun."""
    hashed = begun._replace(client=client_hash(salt, begun.client))  # type: ignore[arg-type]
    marks = ", ".join("?" * len(hashed))
    connection.execute(
        f"INSERT OR REPLACE INTO unfinished (daemon, {NAMES}) VALUES (?, {marks})",  # noqa: S608
        (daemon, *hashed),
    )


def drop(connection: sqlite3.Connection, request: str) -> None:
    """Delete the row of a request that has ended; if another daemon took it for lost, that record."""
    if not connection.execute("DELETE FROM unfinished WHERE request = ?", (request,)).rowcount:
        connection.execute("DELETE FROM history WHERE outcome = ? AND request = ?", (LOST, request))


def take_lost(connection: sqlite3.Connection, is_running: Callable[[str], bool]) -> list[str]:
    """Move the requests of daemons that were killed into the history; return the program of each.

    `is_running` tells whether a daemon runs, as it was given to `note`.
    """
    if not connection.execute("SELECT EXISTS (SELECT 1 FROM unfinished)").fetchone()[0]:
        return []
    connection.execute("BEGIN IMMEDIATE")
    try:
        daemons = connection.execute("SELECT DISTINCT daemon FROM unfinished").fetchall()
        lost = [
            Begun(*row)
            for daemon in daemons
            if not is_running(str(daemon[0]))
            for row in connection.execute(
                f"DELETE FROM unfinished WHERE daemon = ? RETURNING {NAMES}",  # noqa: S608
                daemon,
            ).fetchall()
            if isinstance(row[1], float) and isinstance(row[3], str)
        ]
        seen_at = connection.execute(LAST_SEEN, (time.time(),)).fetchone()[0]
        seen_at = max([seen_at, *(each.began_at for each in lost)])
        connection.executemany(INSERT, [_history_values(each, seen_at) for each in lost])
    except BaseException:
        connection.rollback()
        raise
    connection.commit()
    return [each.program for each in lost]


def _history_values(begun: Begun, seen_at: float) -> tuple[object, ...]:
    known: dict[str, Any] = begun._asdict()
    known |= dict.fromkeys(UNKNOWN_NAMES, "")
    known |= dict.fromkeys(UNKNOWN_FIGURES, 0.0)
    known |= dict.fromkeys(("tokens", "prompt_tokens"))
    # When it got a slot is unknown, so that it counts for no time of one.
    known["sojourn_s"] = known["waited_s"] = seen_at - known.pop("began_at")
    values: tuple[object, ...] = VALUES(
        Finished(**known, finished_at=seen_at, outcome=LOST, status=0, remark=REMARK)
    )
    return values
