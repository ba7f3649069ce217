"""Databases of earlier versions, made by their code (`make_databases.py`), are converted, or stay whole."""

import logging
import os
import re
import signal
import sqlite3
import stat
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

import pytest

from clairvoyant_cli.proxy.learning.tau_learning import learned_of
from profiles import rescue
from profiles.database import COPY_KEPT_S, ProfilesError, open_database, reading
from profiles.history import Span, forget, newest
from profiles.schema import SCHEMA_VERSION
from profiles.states import load_state
from profiles.store import every, samples_of
from profiles.writer import Writer
from tests.fakes.remembered import FINISHED, four_at_once, recorded

MADE = sorted((Path(__file__).parent / "databases").glob("*.sql"))
PROMPTS_FROM, COMPARED_FROM = 13, 12  # the schemas since which bodies are recorded, and gains
REQUESTS = 3
MISSED = 1000  # numbers without a row that are looked up, one after the other


def made(sql: Path, folder: Path) -> Path:
    """Return the database that an earlier version left, in WAL mode as its daemon did."""
    path = folder / "c.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql.read_text(encoding="utf-8"))
        connection.execute("PRAGMA journal_mode = WAL")
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return made(next(each for each in MADE if each.name.startswith("13-")), tmp_path)


def version_of(path: Path) -> int:
    """Return the schema of a file that must be whole, whichever version wrote it."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert connection.execute("SELECT COUNT(*) FROM history").fetchone()[0] == REQUESTS
        assert connection.execute("SELECT COUNT(*) FROM profiles").fetchone()[0] == 1
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def tables(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    return {
        name: sorted(column[1:4] for column in connection.execute(f"PRAGMA table_info({name})"))
        for name in names
        if not name.startswith("sqlite_")
    }


@pytest.mark.parametrize("sql", MADE, ids=lambda sql: sql.stem)
def test_what_an_earlier_version_stored_is_there(
    sql: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "clairvoyant")
    path, schema = made(sql, tmp_path), int(sql.name[:2])
    with reading(path) as connection, closing(open_database(tmp_path / "fresh.db")) as fresh:
        assert tables(connection) == tables(fresh)
        (kept,) = every(connection)
        rows = newest(connection, Span(), 10)
        name = next(
            name for (name,) in connection.execute("SELECT name FROM states WHERE name LIKE 'learned%'")
        )
        learned = learned_of(load_state(connection, name))
        assert len(samples_of(connection, "gemma@ollama")) == 1
    assert kept.tau_s == 120.0
    assert kept.mu_short_s is not None
    assert kept.mu_short_s.mean == 40.0
    assert kept.decode_tokens_per_s == 30.0
    assert [(row.outcome, row.model, bool(row.tokens)) for row in rows] == [
        ("completed", "replay", True)
    ] * REQUESTS
    assert all((row.body is not None) == (schema >= PROMPTS_FROM) for row in rows)
    assert all((row.saved_s is not None) == (schema >= COMPARED_FROM) for row in rows)
    assert "replay" in learned.models
    copy = tmp_path / f"c.db.{schema}"
    said = [f"converted {path} from schema {schema} to {SCHEMA_VERSION}; the copy {copy} is kept for a day"]
    if schema < PROMPTS_FROM:
        said.insert(0, f"history: dropped {REQUESTS} recorded prompts, which only earlier versions read")
    assert caplog.messages == said
    assert version_of(copy) == schema
    if sys.platform != "win32":
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_a_profile_that_was_chosen_is_named(old: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("UPDATE profiles SET chosen_at = 1.7e9")
        connection.commit()
    for _ in range(2):
        open_database(old).close()
    (said,) = (each for each in caplog.messages if "gemma@ollama" in each)
    assert "`profiles use` was removed" in said


@pytest.mark.posix
def test_one_of_several_processes_converts(old: Path) -> None:
    four_at_once(lambda: open_database(old).close())
    assert version_of(old) == SCHEMA_VERSION
    assert version_of(old.with_name("c.db.13")) == 13


def in_a_process(run: Callable[[], object]) -> int | None:
    """Return the exit status of a process that runs a function, negative if a signal ended it."""
    process = get_context("fork").Process(target=run)
    process.start()
    process.join(60)
    return process.exitcode


STEPS = re.compile("execute|backup|commit|open|fsync|rename|replace|unlink|close")


def convert(path: Path, killed_at: int, steps: Path) -> None:
    """Open a database; die before a step, counted from 1. Write down how many there were."""
    done = 0

    def count(frame: FrameType, event: str, called: object) -> None:
        nonlocal done
        if event == "c_call" and STEPS.fullmatch(getattr(called, "__name__", "")):
            done += 1
            if done == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    open_database(path).close()
    sys.setprofile(None)
    steps.write_text(str(done))


@pytest.mark.posix
@pytest.mark.parametrize("moment", range(1, 11))
def test_kill_nine_leaves_the_file_whole(old: Path, moment: int) -> None:
    steps = old.with_name("steps")
    whole = Path(f"{old}-whole")
    whole.write_bytes(old.read_bytes())
    assert in_a_process(lambda: convert(whole, 0, steps)) == 0
    killed_at = int(steps.read_text()) * moment // 11
    assert in_a_process(lambda: convert(old, killed_at, steps)) == -signal.SIGKILL
    assert version_of(old) in (13, SCHEMA_VERSION)
    assert not old.with_name("c.db.13").exists() or version_of(old.with_name("c.db.13")) == 13
    assert len(recorded(old)) == REQUESTS
    assert version_of(old) == SCHEMA_VERSION
    assert version_of(old.with_name("c.db.13")) == 13
    assert not list(old.parent.glob("*.part*"))


def open_on_a_full_disk(path: Path, room_bytes: int, said: Path) -> None:
    import resource

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, unlimited[1]))
    try:
        open_database(path).close()
    except ProfilesError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        said.write_text(str(error))


@pytest.mark.posix
@pytest.mark.parametrize("room_bytes", [1, 8192, 20_000, 40_000])
def test_a_full_disk_leaves_the_file_whole(old: Path, room_bytes: int) -> None:
    said = old.with_name("said")
    assert in_a_process(lambda: open_on_a_full_disk(old, room_bytes, said)) == 0
    assert version_of(old) == 13
    assert said.read_text() == (
        f"cannot use {old} (disk I/O error); choose another path with --db or CLAIRVOYANT_DB"
    )
    assert not list(old.parent.glob("*.part*"))
    assert len(recorded(old)) == REQUESTS


def test_a_read_only_folder_is_an_error_that_says_what_to_do(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old.read_bytes()
    monkeypatch.setattr(os, "access", lambda *_: False)
    for use in (recorded, Writer):
        with pytest.raises(ProfilesError) as caught:
            use(old)
        assert str(caught.value) == (
            f"{old} has the schema of an earlier version and is read-only; "
            "copy it to a folder that can be written, and choose the copy with --db"
        )
    assert old.read_bytes() == before
    assert not old.with_name("c.db.13").exists()


@pytest.mark.parametrize("used", [False, True])
def test_the_copy_goes_after_a_day_unless_it_is_used(old: Path, used: bool) -> None:
    Writer(old).close()
    copy, own = old.with_name("c.db.13"), old.with_name("c.db.5")
    own.touch()
    long_ago = time.time() - COPY_KEPT_S - 1.0
    with closing(sqlite3.connect(old)) as connection, connection:
        connection.execute("UPDATE versions SET at = ?", (long_ago,))
    if not used:
        os.utime(copy, (long_ago - 1.0, long_ago - 1.0))
    os.utime(own, (long_ago - 1.0, long_ago - 1.0))
    writer = Writer(old)
    writer.look()
    writer.close()
    assert copy.exists() == used
    assert own.exists()  # no conversion made it


def test_a_copy_takes_the_name_of_no_other_file(old: Path) -> None:
    mine = old.with_name("c.db.13")
    mine.write_text("my notes")
    assert len(recorded(old)) == REQUESTS
    assert mine.read_text() == "my notes"
    assert version_of(old.with_name("c.db.13-1")) == 13
    forget(old, Span(), states=False)
    assert mine.exists()
    assert not old.with_name("c.db.13-1").exists()


def test_a_copy_that_was_used_is_named_and_not_erased(old: Path) -> None:
    Writer(old).close()
    copy = old.with_name("c.db.13")
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("INSERT INTO states VALUES ('x', 1.0, x'00')")
    assert forget(old, Span(), states=False).copy == copy
    assert version_of(copy) == 13


@pytest.mark.parametrize("noise", [bytes(4096), b"\xa5" * 4096], ids=["zeros", "noise"])
def test_a_daemon_keeps_what_can_be_read_around_a_damaged_page(
    tmp_path: Path, noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "MOST_MISSED", MISSED)
    path, count = tmp_path / "c.db", 600
    writer = Writer(path)
    for number in range(count):
        writer.put(replace(FINISHED, request=f"abc-{number}"))
    writer.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    data = path.read_bytes()
    leaf = data.index(b"abc-300") // 4096 * 4096
    path.write_bytes(data[:leaf] + noise + data[leaf + 4096 :])
    Writer(path).close()
    with reading(path) as connection:
        kept = {row.request for row in newest(connection, Span(), count)}
    assert count - 60 < len(kept) < count
    assert {"abc-0", f"abc-{count - 1}"} < kept
    assert path.with_name("c.db.damaged-1").exists()


def begin_and_die(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA cache_size = 1")  # so that it writes pages before it commits
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE history SET model = zeroblob(9000)")
    connection.execute("UPDATE history SET model = zeroblob(90000)")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.posix
def test_what_a_killed_process_had_not_finished_is_taken_back(old: Path) -> None:
    recorded(old)
    assert in_a_process(lambda: begin_and_die(old)) == -signal.SIGKILL
    assert Path(f"{old}-journal").exists()
    assert len(recorded(old)) == REQUESTS


def test_erasing_requests_removes_the_copy(old: Path) -> None:
    recorded(old)
    assert old.with_name("c.db.13").exists()
    forget(old, Span(client="nobody"), states=False)
    assert not old.with_name("c.db.13").exists()
    assert len(recorded(old)) == REQUESTS


def test_a_copy_that_cannot_be_erased_is_named(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    assert len(recorded(old)) == REQUESTS
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(
        ProfilesError, match=r"cannot erase .*c\.db\.13: Permission denied; remove it yourself"
    ):
        forget(old, Span(), states=True)


def drop_history(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE history")


def overwrite_history(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'history'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\x5a" * size)


@pytest.mark.parametrize("damage", [drop_history, overwrite_history])
def test_what_cannot_be_converted_is_dropped_alone(
    old: Path,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rescue, "MOST_MISSED", MISSED)
    damage(old)
    with caplog.at_level(logging.WARNING, "clairvoyant"):
        Writer(old).close()
    aside = old.with_name("c.db.damaged-1")
    assert caplog.messages == [
        f"{old} is damaged: renamed to {aside}; kept of it: profiles 1, requests 0, learned states 2"
    ]
    with reading(old) as connection:
        assert [each.tau_s for each in every(connection)] == [120.0]
        assert len(samples_of(connection, "gemma@ollama")) == 1
