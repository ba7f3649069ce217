"""States that outlive a process, such as what a predictor has learned; and how clients are hashed."""

import hashlib
import sqlite3
import time
from dataclasses import dataclass

from profiles.clocks import Moment

FORGETTING = "forgetting"
"""The one state that is never erased: that something was, and when."""


@dataclass(frozen=True, slots=True)
class Forgetting:
    """How often learned states have been erased, and when anything was last, by the steady clock of `boot`.

    Who holds in memory what was learned under another `generation` must not write it any more.
    """

    generation: int = 0
    boot: str = ""
    steady_s: float = 0.0

    def is_before(self, moment: Moment) -> bool:
        """Whether something came after what was last erased; where nothing tells, it did not."""
        return moment.boot == self.boot and moment.steady_s > self.steady_s


def save_state(connection: sqlite3.Connection, name: str, state: bytes) -> None:
    """Keep a state under its name, in place of the one before."""
    connection.execute(
        "INSERT INTO states VALUES (?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state",
        (name, time.time(), state),
    )


def load_state(connection: sqlite3.Connection, name: str) -> bytes | None:
    """Return the state kept under a name, None if there is none."""
    row = connection.execute("SELECT state FROM states WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0])


def drop_states(connection: sqlite3.Connection) -> int:
    """Erase all states; return how many there were."""
    return connection.execute("DELETE FROM states WHERE name != ?", (FORGETTING,)).rowcount


def forgetting(connection: sqlite3.Connection) -> Forgetting:
    """Return what has been erased so far."""
    told = load_state(connection, FORGETTING)
    if told is None:
        return Forgetting()
    generation, *when = told.decode().split()
    if len(when) != 2:  # as it was written before there was a steady clock
        return Forgetting(int(generation))
    boot, steady_s = when
    return Forgetting(int(generation), boot, float(steady_s))


def note_forgetting(connection: sqlite3.Connection, now: Moment, *, states: bool) -> None:
    """Leave word, in the transaction that erases, to whoever still holds in memory what is erased."""
    generation = forgetting(connection).generation + states
    save_state(connection, FORGETTING, f"{generation} {now.boot} {now.steady_s!r}".encode())


def salt(connection: sqlite3.Connection) -> bytes:
    """Return the key under which this database hashes its clients."""
    row = connection.execute("SELECT salt FROM salt").fetchone()
    return bytes(row[0])


def client_hash(salt: bytes, client: str) -> bytes:
    """Return the 16 bytes a client is known by: without the salt they lead back to nobody."""
    return hashlib.blake2b(client.encode(), key=salt, digest_size=16).digest()
