"""Writes history and learned state to the database, on a thread of its own.

Rule 1: `put` and `save` never wait and never raise; errors occur in the thread.
Rule 2: records reach the disk within half a second, so a killed process loses no more.
Rule 3: while the disk refuses, a bounded number of records waits in memory; the oldest are dropped.
Rule 4: what another process has erased is not written again: neither state learned before, nor records put
before.
Rule 5: a record that cannot be written does not affect others.
Rule 6: a request that ends within its first batch is never written as begun.
"""

import logging
import os
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from profiles import unfinished
from profiles.database import (
    DAMAGED,
    DamagedError,
    ProfilesError,
    explained,
    explanation,
    open_database,
    remove_copy,
    set_aside,
)
from profiles.records import Begun, Comparison, Finished, Incident
from profiles.rescue import rescue
from profiles.schema import CLIENT, COLUMNS, INSERT, INSERT_INCIDENT, VALUES
from profiles.states import client_hash, forgetting, kept_salt, salt, save_state
from profiles.store import fingerprint

log = logging.getLogger("clairvoyant")

BATCH_S = 0.25  # records of this time share a transaction
FLUSH_S = 10.0
TIDY_EVERY_S = 3600.0
WAITING_ROWS = 20_000  # maximum records in memory while the disk refuses: about 10 MB
PRUNE_EVERY_ROWS = 1000
PRUNE_ROWS = 5000  # maximum old rows deleted at a time, so that no write takes long
LARGEST = 1e12  # bound of all numbers in a record: sums over a million rows stay within 64 bits
UNWRITABLE = (
    ArithmeticError,
    AttributeError,
    TypeError,
    ValueError,
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors of a single record; all others are errors of the database."""

UPDATE_COMPARED = (
    "UPDATE history SET saved_s = ?1, spared_tokens = ?2 WHERE finished_at = ?3 AND request = ?4"
)
USED_BYTES = (
    "SELECT (page_count - freelist_count) * page_size "
    "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
DELETE_EARLIER = "DELETE FROM history WHERE finished_at >= ?1 AND (request = ?2 OR request GLOB ?2 || '.*')"

SCHEMA_CHECKS = (
    f"INSERT INTO history ({', '.join(COLUMNS)}) SELECT {', '.join(COLUMNS)} FROM history",  # noqa: S608
    "DELETE FROM history",
    "SELECT id, name, backend, place, model, host, measured_at, record FROM profiles",
    "SELECT profile, number, record FROM samples",
    "INSERT INTO states SELECT name, saved_at, state FROM states WHERE 1 ON CONFLICT (name) DO NOTHING",
    "SELECT only_row, salt FROM salt",
    "SELECT request, daemon, began_at, client, program, model, endpoint FROM unfinished",
    "SELECT schema, product, at, converted_from FROM versions",
    f"SELECT {', '.join(Incident._fields)} FROM incidents",  # noqa: S608 - names of our own
)
"""Statements on all tables: if SQLite accepts them, no table or column is missing."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much history to keep."""

    days: float = 90.0
    rows: int = 1_000_000
    size_bytes: int = 4 << 30  # of the database: recorded prompts can reach it before the other bounds


class Writer:
    """Writes records and states in batches until `close`. `unwritable` counts records with invalid values,
    `stored_profiles` is the last known `fingerprint` of the profiles, `lost` has the programs of the requests
    that killed daemons did not finish, one for each.
    """

    def __init__(
        self, path: Path, bounds: Bounds | None = None, started: Callable[[int], float] = lambda pid: 0.0
    ) -> None:
        """Open the database, replacing a damaged one, and start the thread; may raise ProfilesError.

        `started` returns when a process started, 0 if it does not run.
        """
        self.path = path
        self.unwritable = 0
        self.lost: list[str] = []
        self._bounds = bounds or Bounds()
        self._started = started
        self._daemon = f"{os.getpid()} {started(os.getpid())}"
        self._begun: dict[str, Begun] = {}
        self._noted: set[str] = set()  # the requests in the table of unfinished ones
        self._tidied_s = -TIDY_EVERY_S
        self._open()
        self.known_generation = self.generation
        self._queue: SimpleQueue[Callable[[], object]] = (
            SimpleQueue()
        )  # what the thread takes up, by calling it
        self._flushing: list[threading.Event] = []
        self._rows: deque[tuple[Finished, float]] = deque(maxlen=WAITING_ROWS)  # and when they were put
        self._compared: deque[Comparison] = deque(maxlen=WAITING_ROWS)
        self._incidents: dict[tuple[str, float], Incident] = {}
        self._states: dict[str, tuple[bytes, int]] = {}  # by name, with their generations
        self._looking = False
        self._since_pruned = PRUNE_EVERY_ROWS
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        """Open the database; rename a damaged one and create one with what can be read of it."""
        found = None
        with suppress(OSError):
            found = self.path.stat()
        try:
            self._begin()
        except DamagedError:
            if found is None:
                raise
            if (aside := set_aside(self.path, found)) is not None:
                with closing(open_database(self.path)) as connection, explained(self.path):
                    kept = rescue(connection, aside)
                log.warning("%s is damaged: renamed to %s; kept of it: %s", self.path, aside, kept)
            self._begin()

    def _begin(self) -> None:
        self._connection = connection = open_database(self.path)
        self._file = self.path.stat()
        try:
            with explained(self.path):
                check_schema(connection)
                check_pages(connection, self.path)
                replace_lost_salt(connection)
                self.lost += unfinished.take_lost(connection, self._is_running)
                self._salt = salt(connection)
                self._forgetting = forgetting(connection)
                self.stored_profiles = fingerprint(connection)
        except BaseException:
            connection.close()
            raise

    def _is_running(self, daemon: str) -> bool:
        pid, _, started = daemon.partition(" ")
        return pid.isdecimal() and started == str(self._started(int(pid))) != "0.0"

    def _follow(self) -> None:
        """Open the database again if its file was deleted or replaced."""
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), self._file):
                return
        self._connection.close()
        self._noted.clear()
        self._open()
        log.warning("%s was deleted or replaced: opened again", self.path)

    def begin(self, begun: Begun) -> None:
        """Queue a request that has begun; returns at once. It must be `put` when it has ended, or given up
        by `withdraw` when another daemon has begun it.
        """
        if self._bounds.rows > 0:
            self._queue.put(partial(self._begun.__setitem__, begun.request, begun))

    def withdraw(self, request: str) -> None:
        """Forget a request that has begun; returns at once."""
        self._queue.put(partial(self._begun.pop, request, None))

    def put(self, finished: Finished) -> None:
        """Queue a finished request; returns at once."""
        if self._bounds.rows > 0:
            self._queue.put(partial(self._take, finished, time.time()))

    def _take(self, finished: Finished, put_at: float) -> None:
        self._begun.pop(finished.request, None)
        if self._failing:  # bodies are long
            finished = replace(finished, body=None)
        self._rows.append((finished, put_at))

    def compare(self, comparison: Comparison) -> None:
        """Queue a comparison of a request that was put before; returns at once."""
        if self._bounds.rows > 0:
            self._queue.put(partial(self._compared.append, comparison))

    def note(self, incident: Incident) -> None:
        """Queue an incident; it replaces one of the same server and beginning. Returns at once."""
        self._queue.put(partial(self._incidents.__setitem__, (incident.server, incident.began_at), incident))

    def save(self, name: str, state: bytes, generation: int | None = None) -> None:
        """Queue a state, learned in `generation` or else in the one that is known to the learner; dropped if
        states were erased since. Returns at once.
        """
        learned = state, self.known_generation if generation is None else generation
        self._queue.put(partial(self._states.__setitem__, name, learned))

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until what was queued has been written, or the disk has refused it."""
        written = threading.Event()
        self._queue.put(partial(self._flushing.append, written))
        written.wait(timeout_s)

    @property
    def generation(self) -> int:
        """The last known generation of learned states."""
        return self._forgetting.generation

    def look(self) -> None:
        """Update `generation` and `stored_profiles` soon; returns at once."""
        self._queue.put(partial(setattr, self, "_looking", True))

    def close(self, timeout_s: float = 10.0) -> None:
        """Write the rest and stop."""
        self._closing.set()
        self._queue.put(lambda: None)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._connection.close()
            if self.unwritable:
                log.warning("history: %d requests skipped because of invalid values", self.unwritable)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._gather()
            if stopping:
                self._begun.clear()
            try:
                if self._is_due() or self._looking:
                    self._write()
            except (sqlite3.Error, UnicodeDecodeError, ProfilesError) as error:
                self._failed(error)
            except Exception:
                log.exception("history: internal error; please report it")
                self._clear()
            for each in self._flushing:
                each.set()
            self._flushing.clear()

    def _gather(self) -> bool:
        """Wait for an item, then for the rest of the batch; return whether to stop."""
        self._queue.get()()
        # Sleep instead of waiting on the queue: else each record would wake this thread, and the event loop
        # would wait for the GIL.
        stopping = self._closing.wait(BATCH_S)
        with suppress(Empty):
            while True:
                self._queue.get_nowait()()
        return stopping

    def _is_due(self) -> bool:
        return (
            bool(self._rows or self._compared or self._incidents or self._states)
            or self._begun.keys() != self._noted
        )

    def _write(self) -> None:
        self._follow()
        connection = self._connection
        self._looking = False
        self.stored_profiles = fingerprint(connection)
        if time.monotonic() - self._tidied_s >= TIDY_EVERY_S:
            self._tidied_s = time.monotonic()
            with suppress(OSError, ProfilesError):
                remove_copy(connection, self.path)
        if not self._is_due():
            self._forgetting = forgetting(connection)
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            refused = self._write_batch()
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        self._clear()
        self._noted = set(self._begun)
        if self._failing:
            self._failing = False
            log.info("history is written to %s again", self.path)
        if refused and not self.unwritable:
            # Log the type of the error only: its text may quote the request.
            log.warning("history: a request with invalid values is skipped (%s); logged once", refused[0])
        self.unwritable += len(refused)

    def _clear(self) -> None:
        for queued in (self._rows, self._compared, self._incidents, self._states):
            queued.clear()

    def _write_batch(self) -> list[str]:
        """Write records and states; return the error type of each invalid record."""
        connection = self._connection
        # Drop what another process has erased.
        if (erased := forgetting(connection)) != self._forgetting:
            self._forgetting = erased
            self._rows = deque((row for row in self._rows if row[1] > erased.at), WAITING_ROWS)
        refused = [why for finished, _ in self._rows if (why := self._insert(finished))]
        connection.executemany(UPDATE_COMPARED, self._compared)
        incidents = [each for each in self._incidents.values() if each.ended_at > erased.at]
        connection.executemany(INSERT_INCIDENT, incidents)
        for name, (state, generation) in self._states.items():
            if generation == erased.generation:
                save_state(connection, name, state)
        self._note_begun()
        self._since_pruned += len(self._rows)
        if self._since_pruned >= PRUNE_EVERY_ROWS:
            prune(connection, self._bounds, time.time())
            self._since_pruned = 0
        return refused

    def _note_begun(self) -> None:
        """Make the table of unfinished requests have those of this daemon."""
        for request in self._noted - self._begun.keys():
            unfinished.drop(self._connection, request)
        for request in self._begun.keys() - self._noted:
            try:
                unfinished.note(self._connection, self._daemon, self._salt, self._begun[request])
            except UNWRITABLE:
                del self._begun[request]

    def _insert(self, finished: Finished) -> str:
        """Write a record; return the type of its error, "" for none."""
        try:
            values = list(VALUES(finished))
            values[CLIENT] = client_hash(self._salt, finished.client)
            if not all(abs(value) < LARGEST for value in values if isinstance(value, int | float)):
                raise OverflowError
            if "." in finished.request:  # its client left, and sent it again: one request
                earlier = (finished.finished_at - finished.sojourn_s, finished.request.partition(".")[0])
                self._connection.execute(DELETE_EARLIER, earlier)
            self._connection.execute(INSERT, values)
        except UNWRITABLE as error:
            return type(error).__name__
        return ""

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            why = error if isinstance(error, ProfilesError) else explanation(self.path, error)
            log.error("history waits in memory, at most %d requests: %s", WAITING_ROWS, why)
        self._failing = True


def prune(connection: sqlite3.Connection, bounds: Bounds, now: float) -> int:
    """Delete some rows beyond the bounds at epoch seconds `now`; return their number."""
    oldest = now - bounds.days * 86_400
    gone = connection.execute(
        "DELETE FROM history WHERE id IN "
        "(SELECT id FROM history WHERE finished_at < ? ORDER BY finished_at LIMIT ?)",
        (oldest, PRUNE_ROWS),
    ).rowcount
    connection.execute("DELETE FROM incidents WHERE began_at < ?", (oldest,))
    excess = connection.execute("SELECT COUNT(*) FROM history").fetchone()[0] - bounds.rows
    if connection.execute(USED_BYTES).fetchone()[0] > bounds.size_bytes:
        excess = max(excess, PRUNE_EVERY_ROWS)
    if excess > 0:
        gone += connection.execute(
            "DELETE FROM history WHERE id IN (SELECT id FROM history ORDER BY id LIMIT ?)",
            (min(PRUNE_ROWS, excess),),
        ).rowcount
    return gone


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Raise DamagedError if a page cannot be read; it takes some 3 s a gigabyte."""
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise DamagedError(DAMAGED.format(path))


def check_schema(connection: sqlite3.Connection) -> None:
    """Raise DamagedError if a table or column is missing."""
    try:
        for statement in SCHEMA_CHECKS:
            connection.execute(f"EXPLAIN {statement}").close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:  # e.g. a read error of the disk
            raise
        raise DamagedError("its tables are incomplete") from error


def replace_lost_salt(connection: sqlite3.Connection) -> None:
    """Create a new key of the client hashes if it is lost."""
    if kept_salt(connection) is None:
        connection.execute("INSERT OR REPLACE INTO salt VALUES (1, ?)", (secrets.token_bytes(32),))
        connection.commit()
        log.warning("history: the key of the client hashes was lost: earlier requests have no known client")
