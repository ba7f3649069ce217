"""States that outlive a process, such as what a predictor has learned; and how clients are hashed."""

import hashlib
import sqlite3
import time


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
    return connection.execute("DELETE FROM states").rowcount


def salt(connection: sqlite3.Connection) -> bytes:
    """Return the key under which this database hashes its clients."""
    row = connection.execute("SELECT salt FROM salt").fetchone()
    return bytes(row[0])


def client_hash(salt: bytes, client: str) -> bytes:
    """Return the 16 bytes a client is known by: without the salt they lead back to nobody."""
    return hashlib.blake2b(client.encode(), key=salt, digest_size=16).digest()
