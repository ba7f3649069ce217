"""Stores learned state that outlives a process, the record of erasures, and the salt of client hashes."""

import hashlib
import secrets
import sqlite3
import time
from dataclasses import dataclass

from profiles.database import ProfilesError

FORGETTING = "forgetting"  # name of the state that records erasures; never erased itself
UNKNOWN = -1  # generation if the record of erasures is unreadable
SALT_BYTES = range(16, hashlib.blake2b.MAX_KEY_SIZE + 1)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The last erasure: `generation` counts erasures of learned state, `at` is epoch seconds. State learned
    in an earlier generation must not be written any more, nor requests that ended before `at`.
    """

    generation: int = 0
    at: float = 0.0


def save_state(connection: sqlite3.Connection, name: str, state: bytes) -> None:
    connection.execute(
        "INSERT INTO states VALUES (?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state",
        (name, time.time(), state),
    )


def load_state(connection: sqlite3.Connection, name: str) -> bytes | None:
    row = connection.execute("SELECT state FROM states WHERE name = ?", (name,)).fetchone()
    return row[0] if row is not None and isinstance(row[0], bytes) else None


def drop_states(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM states WHERE name != ?", (FORGETTING,))


def forgetting(connection: sqlite3.Connection) -> Forgetting:
    """Return the last erasure, with generation `UNKNOWN` if it is unreadable."""
    row = connection.execute("SELECT state FROM states WHERE name = ?", (FORGETTING,)).fetchone()
    if row is None:
        return Forgetting()
    try:
        generation, *rest = row[0].decode().split()
        return Forgetting(int(generation), float(rest[-1]) if rest else 0.0)
    except (AttributeError, ValueError):
        return Forgetting(UNKNOWN)


def note_forgetting(connection: sqlite3.Connection, *, states: bool) -> None:
    """Record an erasure, in its transaction, for a running daemon. `states`: learned state went too."""
    before = forgetting(connection).generation
    # If the last generation is unreadable, use one that no daemon can have seen.
    generation = secrets.randbits(48) if before == UNKNOWN else before + states
    save_state(connection, FORGETTING, f"{generation} {time.time()!r}".encode())


def salt(connection: sqlite3.Connection) -> bytes:
    """Return the key of the client hashes; ProfilesError if it is lost."""
    if (kept := kept_salt(connection)) is None:
        raise ProfilesError(
            "the database has lost the key of its client hashes, so no client can be looked up; "
            "clairvoyant serve creates a new key for future requests"
        )
    return kept


def kept_salt(connection: sqlite3.Connection) -> bytes | None:
    """Return the key of the client hashes; None if it is lost."""
    row = connection.execute("SELECT salt FROM salt").fetchone()
    is_sound = row is not None and isinstance(row[0], bytes) and len(row[0]) in SALT_BYTES
    return row[0] if is_sound else None


def client_hash(salt: bytes, client: str) -> bytes:
    """Return the 16-byte hash that stands for a client; irreversible without the salt."""
    return hashlib.blake2b(client.encode(), key=salt, digest_size=16).digest()
