"""The writer thread: batches, bounds, full and locked disks, invalid records."""

import logging
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from profiles.database import open_database, reading
from profiles.history import Span, forget, newest
from profiles.records import Finished
from profiles.states import client_hash, load_state, salt
from profiles.writer import PRUNE_EVERY_ROWS, Bounds, Writer, prune
from tests.fakes.remembered import FINISHED, START, record, recorded, traffic

ALL = Span()


def until(reached: object, path: Path) -> None:
    """Wait until the database has this number of rows; TimeoutError if it never has."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with reading(path) as connection:
            if connection.execute("SELECT COUNT(*) FROM history").fetchone()[0] == reached:
                return
    raise TimeoutError(reached)


def test_put_writes_within_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = Writer(path)
    try:
        writer.put(FINISHED)
        until(1, path)
    finally:
        writer.close()


def test_close_writes_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    rows = list(traffic(1200))
    writer = Writer(path)
    for row in rows:
        writer.put(row)
    writer.save("learned", b"state 1", 0)
    writer.save("learned", b"state 2", 0)
    writer.close()
    with reading(path) as connection:
        assert {row.request for row in newest(connection, ALL, 5000)} == {row.request for row in rows}
        assert load_state(connection, "learned") == b"state 2"


def test_a_request_that_was_sent_again_is_one(tmp_path: Path) -> None:
    """The attempts that its client gave up are replaced; a like one of another run is not."""
    path = tmp_path / "c.db"
    for request, at in (
        ("abc-1", -900.0),
        ("abc-1", 0.0),
        ("abc-10", 1.0),
        ("abc-1.2", 30.0),
        ("abc-1.3", 60.0),
    ):
        record(Writer(path), [replace(FINISHED, request=request, finished_at=START + at, sojourn_s=65.0)])
    with reading(path) as connection:
        assert [row.request for row in newest(connection, ALL, 9)] == ["abc-1.3", "abc-10", "abc-1"]


def test_clients_are_stored_as_salted_hashes(tmp_path: Path) -> None:
    hashes = set()
    for name in ("a.db", "b.db"):
        writer = Writer(tmp_path / name)
        writer.put(FINISHED)
        writer.close()
        assert b"alice" not in (tmp_path / name).read_bytes()
        with reading(tmp_path / name) as connection:
            (stored,) = connection.execute("SELECT client FROM history").fetchone()
            assert stored == client_hash(salt(connection), "alice")
        hashes.add(stored)
    assert len(hashes) == 2


def test_prune_by_age_and_count(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "c.db")) as connection:
        connection.close()
    record(Writer(tmp_path / "c.db", Bounds(days=1e6)), traffic(100, start=1000.0, every_s=10.0))
    with closing(open_database(tmp_path / "c.db")) as connection:
        assert prune(connection, Bounds(days=1, rows=10**6), now=1300.0 + 86_400) == 30
        assert prune(connection, Bounds(days=1e6, rows=20), now=5000.0) == 50
        left = newest(connection, ALL, 100)
        assert (len(left), left[-1].finished_at) == (20, 1800.0)
        assert prune(connection, Bounds(days=1e6, rows=20, size_bytes=1 << 20), now=5000.0) == 0
        assert prune(connection, Bounds(days=1e6, rows=20, size_bytes=1), now=5000.0) == 20


def test_the_bounds_hold_while_writing(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = Writer(path, Bounds(days=1e6, rows=500))
    for _ in range(3):
        for row in traffic(PRUNE_EVERY_ROWS):
            writer.put(row)
    writer.close()
    with reading(path) as connection:
        assert connection.execute("SELECT COUNT(*) FROM history").fetchone()[0] <= 500 + PRUNE_EVERY_ROWS


def test_records_wait_in_memory_while_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c.db"
    caplog.set_level(logging.INFO, "clairvoyant")
    writer = Writer(path)
    writer.put(FINISHED)
    until(1, path)
    pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
    writer._connection.execute(f"PRAGMA max_page_count = {pages}")
    # A body that no free page can hold.
    writer.put(replace(FINISHED, request="abc-2", body="x" * 100_000))
    deadline = time.monotonic() + 20
    while "waits in memory" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "waits in memory" in caplog.text
    writer._connection.execute("PRAGMA max_page_count = 1000000")
    writer.put(replace(FINISHED, request="abc-3", body="y" * 100))  # no body is kept meanwhile
    writer.close()
    assert {row.request: len(row.body or "") for row in recorded(path)} == {
        "abc-1": 0,
        "abc-2": 100_000,
        "abc-3": 0,
    }
    assert "again" in caplog.text


@pytest.mark.posix  # Windows deletes no file that is open
@pytest.mark.parametrize("replaced", [False, True])
def test_a_database_that_was_deleted_or_replaced_is_opened_again(replaced: bool, tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = Writer(path)
    writer.put(FINISHED)
    until(1, path)
    for each in tmp_path.glob("c.db*"):
        each.unlink()
    if replaced:
        record(Writer(path), (replace(FINISHED, request="other"),))
    writer.put(replace(FINISHED, request="after"))
    writer.close()
    assert {row.request for row in recorded(path)} == {"after"} | ({"other"} if replaced else set())


def test_put_does_not_wait_for_a_locked_database(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = Writer(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        for row in traffic(100):
            writer.put(row)
        took_s = time.monotonic() - begun
        other.execute("ROLLBACK")
    assert took_s < 5  # the lock would be waited for that long
    writer.close()
    assert len(recorded(path)) == 100


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 10**30},
        {"tokens": 2**63},
        {"tokens": 2**62},
        {"tokens": -(2**63) - 1},
        {"tokens": inf},
        {"prompt_tokens": 10**30},
        {"decode_s": inf},
        {"prefill_s": -inf},
        {"ttft_s": nan},
        {"p_long": nan},
        {"sojourn_s": 1e308},
        {"finished_at": inf},
        {"waited_s": None},
        {"tokens": [1]},
        {"model": "secret\ud800"},
        {"client": "secret\ud800"},
        {"client": None},
        {"body": "secret\ud800"},
    ],
    ids=str,
)
def test_an_invalid_record_does_not_affect_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, object]
) -> None:
    path = tmp_path / "c.db"
    caplog.set_level(logging.WARNING, "clairvoyant")
    writer = Writer(path)
    absurd: Finished = replace(FINISHED, **({"body": "secret"} | wrong))  # type: ignore[arg-type]
    for row in (FINISHED, absurd, FINISHED, absurd, FINISHED):
        writer.put(row)
    writer.save("learned", b"state", 0)
    writer.close()
    assert writer.unwritable == 2
    with reading(path) as connection:
        assert [row.tokens for row in newest(connection, ALL, 10)] == [60, 60, 60]
        assert load_state(connection, "learned") == b"state"
    told = [record.message for record in caplog.records]
    assert len(told) == 2
    assert "logged once" in told[0]
    assert "2 requests skipped" in told[1]
    assert "secret" not in caplog.text
    assert forget(path, ALL, states=True).requests == 3


def test_invalid_records_are_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = Writer(path)
    writer._connection.execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER full BEFORE INSERT ON states BEGIN SELECT RAISE(ABORT, 'disk'); END")
        writer.put(replace(FINISHED, tokens=10**30))
        writer.put(FINISHED)
        writer.save("learned", b"state", 0)
        deadline = time.monotonic() + 20
        while not writer._failing and time.monotonic() < deadline:
            pass
        other.execute("DROP TRIGGER full")
    writer.put(FINISHED)
    writer.close()
    assert writer.unwritable == 1
    assert len(recorded(path)) == 2
