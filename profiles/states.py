"""States that outlive a process, such as what a predictor has learned; and how clients are hashed."""

import hashlib
import secrets
import sqlite3
import time
from dataclasses import dataclass

from profiles.clocks import Moment
from profiles.errors import ProfilesError

FORGETTING = "forgetting"
"""The one state that is never erased: that something was, and when."""

UNKNOWN = -1
"""The generation where the file does not tell."""

SALT_BYTES = range(16, hashlib.blake2b.MAX_KEY_SIZE + 1)


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
    """Return the state kept under a name, None if there is none that can be read."""
    row = connection.execute("SELECT state FROM states WHERE name = ?", (name,)).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else None


def drop_state(connection: sqlite3.Connection, name: str) -> None:
    """Erase the state of a name; nothing if there is none."""
    connection.execute("DELETE FROM states WHERE name = ?", (name,))


def drop_states(connection: sqlite3.Connection) -> int:
    """Erase all states; return how many there were."""
    return connection.execute("DELETE FROM states WHERE name != ?", (FORGETTING,)).rowcount


def forgetting(connection: sqlite3.Connection) -> Forgetting:
    """Return what has been erased so far; of generation `UNKNOWN` where that cannot be read."""
    row = connection.execute("SELECT state FROM states WHERE name = ?", (FORGETTING,)).fetchone()
    if row is None:
        return Forgetting()
    try:
        generation, *when = row[0].decode().split()
        if len(when) != 2:  # as it was written before there was a steady clock
            return Forgetting(int(generation))
        boot, steady_s = when
        return Forgetting(int(generation), boot, float(steady_s))
    except (AttributeError, ValueError):
        return Forgetting(UNKNOWN)


def note_forgetting(connection: sqlite3.Connection, now: Moment, *, states: bool) -> None:
    """Leave word, in the transaction that erases, to whoever still holds in memory what is erased."""
    before = forgetting(connection).generation
    # Where the last is not known, one that nobody has: a running daemon must see that it is another.
    generation = secrets.randbits(48) if before == UNKNOWN else before + states
    save_state(connection, FORGETTING, f"{generation} {now.boot} {now.steady_s!r}".encode())


def salt(connection: sqlite3.Connection) -> bytes:
    """Return the key under which this database hashes its clients; ProfilesError if it is lost."""
    if (kept := kept_salt(connection)) is None:
        raise ProfilesError(
            "the database has lost the key of its clients' names, so none can be looked up; "
            "clairvoyant serve makes a new one for those to come"
        )
    return kept


def kept_salt(connection: sqlite3.Connection) -> bytes | None:
    """Return that key, None if it is lost."""
    row = connection.execute("SELECT salt FROM salt").fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) not in SALT_BYTES:
        return None
    return row[0]


def client_hash(salt: bytes, client: str) -> bytes:
    """Return the 16 bytes a client is known by: without the salt they lead back to nobody."""
    return hashlib.blake2b(client.encode(), key=salt, digest_size=16).digest()
