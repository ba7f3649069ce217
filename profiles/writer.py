"""The one thread that writes what a running daemon remembers.

Rule 1: `put` and `save` never wait and never raise; all that can go wrong goes wrong in the thread.
Rule 2: what was put more than half a second ago is on its way to the disk; a killed process loses no more.
Rule 3: while the disk refuses, a bounded number of records waits in memory, and the oldest give way.
Rule 4: what another process has erased is not written again: neither states learned before, nor records of
requests that had ended by then (of others too: those of the batch's quarter of a second).
Rule 5: what cannot be written of one record costs that record and no other.
Rule 6: when the wall clock is set, times written before follow it; see `stamps`.
"""

import logging
import sqlite3
import threading
from collections import deque
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue

from profiles.clock_repair import JUMP_S, age_clock_s, is_settled, settle
from profiles.clocks import Clocks, Moment, system_clocks
from profiles.database import explained, explanation, open_database, set_aside
from profiles.database_repair import check_shape, mend
from profiles.errors import DamagedError
from profiles.records import Finished
from profiles.states import Forgetting, client_hash, forgetting, salt, save_state
from profiles.store import fingerprint

log = logging.getLogger("clairvoyant")

BATCH_S = 0.25
"""How long a record may wait for others to share its transaction."""

WAITING_ROWS = 20_000
"""How many records wait in memory while the disk refuses: about 10 MB."""

PRUNE_EVERY_ROWS = 1000
PRUNE_ROWS = 5000
"""At most so many old rows go at a time, so that no write takes long."""

LARGEST = 1e12
"""No number of a request is so large, no time so late: a million rows of less add up within 64 bits."""

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
"""What is wrong with a record; any other error is one of the database."""

COLUMNS = tuple(field.name for field in fields(Finished))
CLIENT, FINISHED_AT = COLUMNS.index("client"), COLUMNS.index("finished_at")
INSERT = f"INSERT INTO history ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much history is kept."""

    days: float = 90.0
    rows: int = 1_000_000


@dataclass(frozen=True, slots=True)
class _Record:
    finished: Finished
    put: Moment


@dataclass(frozen=True, slots=True)
class _State:
    name: str
    state: bytes
    generation: int


class _Look:
    pass


class _Stop:
    pass


class Writer:
    """Writes records and states in batches, on a thread of its own, until `close`.

    `unwritable` counts the records that could not be written for what was in them.
    """

    def __init__(self, path: Path, bounds: Bounds | None = None, clocks: Clocks | None = None) -> None:
        """Open the database, or an empty one in place of a damaged one, and start the thread; ProfilesError
        where that cannot be.
        """
        self.path = path
        self.unwritable = 0
        self._bounds = bounds or Bounds()
        self._clocks = clocks or system_clocks()
        self._open()
        self._queue: SimpleQueue[_Record | _State | _Look | _Stop] = SimpleQueue()
        self._rows: deque[_Record] = deque(maxlen=WAITING_ROWS)
        self._states: dict[str, _State] = {}
        self._looking = False
        self._is_settled = True
        self._since_pruned = PRUNE_EVERY_ROWS
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        """Open the database; a damaged one is set aside, and an empty one begun in its place."""
        found = None
        with suppress(OSError):
            found = self.path.stat()
        try:
            self._begin()
        except DamagedError:
            if found is None:
                raise
            if (aside := set_aside(self.path, found)) is not None:
                log.warning("%s is damaged: it is now %s, and an empty one is begun", self.path, aside)
            self._begin()

    def _begin(self) -> None:
        self._connection = connection = open_database(self.path)
        try:
            with explained(self.path):
                check_shape(connection)
                mend(connection)
                self._salt = salt(connection)
                self._forgetting = forgetting(connection)
                self._profiles = fingerprint(connection)
        except BaseException:
            connection.close()
            raise

    def put(self, finished: Finished) -> None:
        """Have a finished request written, which bears the wall clock's time; returns at once."""
        self._queue.put(_Record(finished, self._clocks.now()))

    def save(self, name: str, state: bytes, generation: int) -> None:
        """Have a state written in place of the one before, unless states have been erased since the
        generation in which it was learned; returns at once.
        """
        self._queue.put(_State(name, state, generation))

    @property
    def generation(self) -> int:
        """The generation of learned states, as last seen in the database."""
        return self._forgetting.generation

    @property
    def profiles(self) -> tuple[object, ...]:
        """The `fingerprint` of the profiles, as last seen in the database."""
        return self._profiles

    def look(self) -> None:
        """Have `generation` and `profiles` brought up to date soon, and times if the clock was set; returns
        at once.
        """
        self._queue.put(_Look())

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is left and stop."""
        self._closing.set()
        self._queue.put(_Stop())
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._connection.close()
            if self.unwritable:
                log.warning("history: left out, because they could not be written: %d", self.unwritable)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._gather()
            if not (self._rows or self._states or self._looking) and self._is_settled:
                continue
            try:
                self._write()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self._failed(error)
            except Exception:
                log.exception("history: internal error; please report it")
                self._rows.clear()
                self._states.clear()

    def _gather(self) -> bool:
        """Wait for something to write, then for what else comes in a batch's time; return whether to stop."""
        stopping = self._is_settled and self._take(self._queue.get())
        # Asleep, not waiting at the queue: or each record would wake this thread, and the event loop would
        # wait for the interpreter lock.
        self._closing.wait(BATCH_S)
        with suppress(Empty):
            while True:
                stopping = self._take(self._queue.get_nowait()) or stopping
        return stopping

    def _take(self, item: _Record | _State | _Look | _Stop) -> bool:
        if isinstance(item, _Record):
            self._rows.append(item)
        elif isinstance(item, _State):
            self._states[item.name] = item
        elif isinstance(item, _Look):
            self._looking = True
        return isinstance(item, _Stop)

    def _write(self) -> None:
        connection = self._connection
        self._looking = False
        # Should this fail, it is tried again when the next comes, rather than without end.
        self._is_settled = True
        self._profiles = fingerprint(connection)
        if not (self._rows or self._states) and is_settled(connection, self._clocks.now()):
            self._forgetting = forgetting(connection)
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            refused, self._is_settled = self._write_batch()
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        self._rows.clear()
        self._states.clear()
        self._tell(refused)

    def _write_batch(self) -> tuple[list[str], bool]:
        """Return what is wrong with each record that cannot be written, and whether all times are settled."""
        connection, now = self._connection, self._clocks.now()
        self._forget_with(forgetting(connection))
        settled = settle(connection, now)
        refused = [why for record in self._rows if (why := self._insert(record, now))]
        for name, state in self._states.items():
            save_state(connection, name, state.state)
        self._since_pruned += len(self._rows)
        if self._since_pruned >= PRUNE_EVERY_ROWS:
            prune(connection, self._bounds, age_clock_s(connection, now) if settled else -inf)
            self._since_pruned = 0
        return refused, settled

    def _insert(self, record: _Record, now: Moment) -> str:
        """Write a record; return what kind of error prevents it, "" for none."""
        try:
            self._connection.execute(INSERT, self._values(record, now))
        except UNWRITABLE as error:
            return type(error).__name__
        return ""

    def _forget_with(self, erased: Forgetting) -> None:
        """Let go of what must not be written any more."""
        if erased != self._forgetting:
            self._forgetting = erased
            self._rows = deque((row for row in self._rows if erased.is_before(row.put)), WAITING_ROWS)
        self._states = {
            name: state for name, state in self._states.items() if state.generation == erased.generation
        }

    def _values(self, record: _Record, now: Moment) -> list[object]:
        values = list(astuple(record.finished))
        values[CLIENT] = client_hash(self._salt, record.finished.client)
        shift_s = now.offset_s - record.put.offset_s
        if abs(shift_s) > JUMP_S:
            values[FINISHED_AT] = record.finished.finished_at + shift_s
        if not all(abs(value) < LARGEST for value in values if isinstance(value, int | float)):
            raise OverflowError
        return values

    def _tell(self, refused: list[str]) -> None:
        if self._failing:
            self._failing = False
            log.info("history is written to %s again", self.path)
        if refused and not self.unwritable:
            # The kind of the error alone: its words may quote what the request held.
            log.warning("history: a request that cannot be written is left out (%s); said once", refused[0])
        self.unwritable += len(refused)

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            why = explanation(self.path, error)
            log.error("history waits in memory, at most %d requests of it: %s", WAITING_ROWS, why)
        self._failing = True


def prune(connection: sqlite3.Connection, bounds: Bounds, now: float) -> int:
    """Erase some of what is too old by epoch seconds `now`, or too much; return how many rows went."""
    oldest = now - bounds.days * 86_400
    gone = connection.execute(
        "DELETE FROM history WHERE id IN "
        "(SELECT id FROM history WHERE finished_at < ? ORDER BY finished_at LIMIT ?)",
        (oldest, PRUNE_ROWS),
    ).rowcount
    count = connection.execute("SELECT CAST(TOTAL(requests) AS INTEGER) FROM tally").fetchone()[0]
    if count > bounds.rows:
        gone += connection.execute(
            "DELETE FROM history WHERE id IN (SELECT id FROM history ORDER BY id LIMIT ?)",
            (min(PRUNE_ROWS, count - bounds.rows),),
        ).rowcount
    return gone
