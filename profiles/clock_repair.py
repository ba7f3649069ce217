"""Keeps the times of a history true to the wall clock of now, however often that is set.

A row bears the wall clock's time of when it was written. `clocks` says by which setting of the clock: from a
row on, until the next such row. Rows are in order of writing, so a handful of entries answer for all.

Rule 1: when the clock has been set, what was written since the machine started is dated anew by as much: the
steady clock says how long ago it was. What was written before is left alone: nothing tells how far off it is.
A virtual machine whose steady clock stood still with it looks as if it had been set forward: what it wrote
counts as younger than it is, never as older.
Rule 2: a bounded number of rows moves at a time, together with the entry that says so: whoever is killed
leaves the rest to the next, in whatever process.
"""

import sqlite3

from profiles.clocks import Moment

JUMP_S = 1.0
"""A clock that is off by less is let be: recorded times are as exact as this, and no more."""

MOVED_ROWS = 5000
"""At most so many rows are dated anew at a time, so that no write takes long."""

SAME_S = 0.001

FARTHEST_S = 1e12
"""No machine starts farther from 1970, in seconds, whatever its clock says."""

_ADJACENT = """
    SELECT earlier.first_row, later.first_row, later.offset_s - earlier.offset_s
    FROM clocks AS earlier JOIN clocks AS later
        ON later.first_row = (SELECT MIN(first_row) FROM clocks WHERE first_row > earlier.first_row)
    WHERE earlier.boot = later.boot ORDER BY later.first_row DESC LIMIT 1
"""


def is_settled(connection: sqlite3.Connection, now: Moment) -> bool:
    """Say whether all that can be dated by the clock of now is."""
    last = connection.execute("SELECT boot FROM clocks ORDER BY first_row DESC LIMIT 1").fetchone()
    is_current = last is None or last[0] != now.boot or _is_by(connection, now)
    return is_current and connection.execute(_ADJACENT).fetchone() is None


def settle(connection: sqlite3.Connection, now: Moment) -> bool:
    """Date by the clock of now what was dated by others, some of it at a time; say whether all is.

    To be called in a transaction. What is written in it afterwards counts as dated by `now`.
    """
    # An entry that is no number would move rows to nowhere; without it they stay as they are dated.
    connection.execute(
        "DELETE FROM clocks WHERE typeof(offset_s) != 'real' OR abs(offset_s) > ?", (FARTHEST_S,)
    )
    _begin(connection, now)
    left = MOVED_ROWS
    while left > 0 and (adjacent := connection.execute(_ADJACENT).fetchone()):
        earlier, later, shift_s = adjacent
        left -= _join(connection, earlier, later, shift_s, left)
    if connection.execute(_ADJACENT).fetchone():
        return False
    connection.execute("DELETE FROM clocks WHERE first_row < (SELECT MAX(first_row) FROM clocks)")
    return True


def first_since_start(connection: sqlite3.Connection, now: Moment) -> int:
    """Return the first row that was written since the machine started, the one to come if none was."""
    (row,) = connection.execute(
        "SELECT COALESCE((SELECT MIN(first_row) FROM clocks WHERE boot = ?), MAX(id) + 1, 1) FROM history",
        (now.boot,),
    ).fetchone()
    return int(row)


def age_clock_s(connection: sqlite3.Connection, now: Moment) -> float:
    """Return the epoch seconds by which settled rows may be called too old: not later than they can be.

    A clock that is years ahead must not cost a history. What was written since the machine started is dated
    right; the rest is at least as old as the machine has been up since the last of it. The time for which
    the machine was off in between is not believed until it has started once more.
    """
    last = connection.execute(
        "SELECT finished_at + 0.0 FROM history WHERE id < ? ORDER BY id DESC LIMIT 1",
        (first_since_start(connection, now),),
    ).fetchone()
    return now.wall_s if last is None else min(now.wall_s, float(last[0]) + now.steady_s)


def _begin(connection: sqlite3.Connection, now: Moment) -> None:
    """Enter the clock of now from the next row on, if it is another than that of the row before."""
    (next_row,) = connection.execute("SELECT COALESCE(MAX(id), 0) + 1 FROM history").fetchone()
    # The newest rows may have been erased, and their numbers are given anew.
    connection.execute("DELETE FROM clocks WHERE first_row > ?", (next_row,))
    if not _is_by(connection, now):
        connection.execute(
            "INSERT OR REPLACE INTO clocks VALUES (?, ?, ?)", (next_row, now.boot, now.offset_s)
        )


def _is_by(connection: sqlite3.Connection, now: Moment) -> bool:
    last = connection.execute("SELECT boot, offset_s FROM clocks ORDER BY first_row DESC LIMIT 1").fetchone()
    if last is None or last[0] != now.boot or not isinstance(last[1], float):
        return False
    return abs(last[1] - now.offset_s) <= JUMP_S


def _join(connection: sqlite3.Connection, earlier: int, later: int, shift_s: float, at_most: int) -> int:
    """Give the later of two clocks the last rows of the earlier, dated anew; return how many had to be."""
    moved, first = 0, earlier
    if abs(shift_s) > SAME_S:
        moved, last_of_them = connection.execute(
            "SELECT COUNT(*), MIN(id) FROM "
            "(SELECT id FROM history WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT ?)",
            (earlier, later, at_most),
        ).fetchone()
        first = last_of_them if moved == at_most else earlier
        connection.execute(
            "UPDATE history SET finished_at = finished_at + ? WHERE id >= ? AND id < ?",
            (shift_s, first, later),
        )
    if first == earlier:
        connection.execute("DELETE FROM clocks WHERE first_row = ?", (earlier,))
    connection.execute("UPDATE clocks SET first_row = ? WHERE first_row = ?", (first, later))
    return int(moved)
