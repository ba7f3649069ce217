"""The database file: permissions, versions, damage, foreign files."""

import errno
import logging
import os
import re
import sqlite3
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from profiles.database import (
    DamagedError,
    ProfilesError,
    open_database,
    reading,
    set_aside,
    writing,
)
from profiles.schema import SCHEMA_VERSION, product
from profiles.store import every, remove, save
from profiles.writer import Writer
from tests.fakes.remembered import FINISHED, PROFILE, four_at_once, keep, recorded

ROOT = Path(__file__).resolve().parents[2]


def save_much(path: Path) -> None:
    """Write a thousand profiles onto a disk that has no room for them."""
    with writing(path) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(1000):
            save(connection, PROFILE)


def save_and_stumble(path: Path) -> None:
    with writing(path) as connection:
        save(connection, PROFILE)
        remove(connection, "another")


@pytest.mark.posix
def test_database_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "data" / "c.db"
    with writing(path) as connection:
        save(connection, PROFILE)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert len(modes) == 3  # the file, its log and the log's index
    assert set(modes.values()) == {0o600}


def test_a_change_of_the_schema_changes_its_version(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "c.db")) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
        columns = [
            (table, *column[1:4])
            for table in tables
            for column in connection.execute(f"PRAGMA table_info({table})")
        ]
    assert (SCHEMA_VERSION, zlib.crc32(repr((tables, columns)).encode())) == (16, 1737443049)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has locks everywhere")
def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path = tmp_path / "c.db"
    # SQLite says the same of a lock that it cannot get and of one that it cannot ask for.
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("fcntl.lockf", refuse)
        monkeypatch.setattr("profiles.database.BUSY_TIMEOUT_S", 0.05)
        with pytest.raises(ProfilesError, match=r"file system without locks; choose another path with --db"):
            open_database(path)


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.parametrize("copy", ["", f"c.db.{SCHEMA_VERSION}"])
def test_a_database_of_a_later_version_is_an_error_and_unchanged(
    tmp_path: Path, mode: str, copy: str
) -> None:
    path, later = keep(tmp_path / "c.db", (FINISHED,), PROFILE), SCHEMA_VERSION + 1
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO versions VALUES (?, '9.1.0', 1.0, 14, ?)", (later, copy))
        connection.execute(f"PRAGMA user_version = {later}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
    if copy:
        (tmp_path / copy).touch()
    before, names = path.read_bytes(), sorted(each.name for each in tmp_path.iterdir())
    back = (
        f"the copy from before the upgrade, with --db {tmp_path / copy}" if copy else "another file with --db"
    )
    for use in (open_database, Writer, recorded, lambda path: keep(path, (), PROFILE)):
        with pytest.raises(ProfilesError) as caught:
            use(path)
        assert str(caught.value) == (
            f"{path} was written by clairvoyant 9.1.0 (schema {later}), and this is {product()} (schema "
            f"{SCHEMA_VERSION}); install that version again, or choose {back}"
        )
    assert path.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == names


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_version_that_never_was_is_damage(tmp_path: Path, version: int) -> None:
    path = keep(tmp_path / "c.db", (FINISHED,), PROFILE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(DamagedError, match="is damaged; start clairvoyant serve, which renames it"):
        recorded(path)
    Writer(path).close()
    assert (tmp_path / "c.db.damaged-1").exists()


@pytest.mark.parametrize("data", [bytes(8192), b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_reported_and_unchanged(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="damaged"):
        open_database(path)
    assert path.read_bytes() == data


def damaged_schemas(path: Path) -> Iterator[bytes]:
    """Yield a database with one bit of the schema flipped, in one of its names or words after another."""
    data = keep(path, (FINISHED,), PROFILE).read_bytes()
    for table in re.finditer(rb"CREATE (TABLE|INDEX|TRIGGER) (?!.?_sqlite)", data):
        for place in (table.end() + 1, table.end() + 30):
            yield data[:place] + bytes((data[place] ^ 0x80,)) + data[place + 1 :]


def test_daemon_renames_a_damaged_database(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="clairvoyant")
    path, aside = tmp_path / "c.db", tmp_path / "c.db.damaged-1"
    renamed = 0
    for data in damaged_schemas(tmp_path / "whole.db"):
        path.write_bytes(data)
        caplog.clear()
        Writer(path).close()
        if aside.exists():
            assert aside.read_bytes() == data
            (said,) = [line for line in caplog.messages if "damaged" in line]
            assert said.startswith(f"{path} is damaged: renamed to {aside}; kept of it: ")
            assert len(recorded(path)) == ("requests 1," in said)
            aside.unlink()
            renamed += 1
        else:  # a bit that nothing depends on, as in an index's name
            assert len(recorded(path)) == 1
    assert renamed > 10


def test_reading_a_damaged_schema_changes_nothing(tmp_path: Path) -> None:
    path, said = tmp_path / "c.db", set()
    for data in damaged_schemas(tmp_path / "whole.db"):
        path.write_bytes(data)
        try:
            recorded(path)
        except ProfilesError as error:
            said.add(str(error))
        assert path.read_bytes() == data
    assert said == {
        f"{path} is damaged; start clairvoyant serve, which renames it and keeps what can be read of it"
    }


def test_set_aside_renames_the_log_too(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    ends = ("", "-wal", "-shm")
    for end in ends:
        Path(f"{path}{end}").write_text(f"the file {end}")
    aside = set_aside(path, path.stat())
    assert [Path(f"{aside}{end}").read_text() for end in ends] == [f"the file {end}" for end in ends]
    assert len(list(tmp_path.iterdir())) == len(ends)


def test_set_aside_numbers_its_names(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    for _ in range(2):
        path.write_bytes(bytes(8192))
        Writer(path).close()
    assert {each.name for each in tmp_path.glob("*.damaged-*")} == {"c.db.damaged-1", "c.db.damaged-2"}


def test_set_aside_renames_only_the_examined_file(tmp_path: Path) -> None:
    path, other = tmp_path / "c.db", tmp_path / "other.db"
    other.write_bytes(bytes(8192))
    keep(path, (FINISHED,))
    assert set_aside(path, other.stat()) is None
    assert len(recorded(path)) == 1


def test_an_intact_database_is_not_renamed(tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", (FINISHED,), PROFILE)
    Writer(path).close()
    assert [each.name for each in tmp_path.iterdir()] == ["c.db"]


def foreign_database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in (
            "CREATE TABLE history (id, url)",
            "INSERT INTO history VALUES (1, 'x')",
            *statements,
        ):
            connection.execute(statement)
            connection.commit()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a database": foreign_database,
    "of our version": lambda path: foreign_database(path, f"PRAGMA user_version = {SCHEMA_VERSION}"),
    "of a later version": lambda path: foreign_database(path, "PRAGMA user_version = 99"),
    "in WAL mode": lambda path: foreign_database(path, "PRAGMA journal_mode = WAL"),
    "with migrations": lambda path: foreign_database(
        path, "CREATE TABLE _sqlite_migrations (migration_set, name)"
    ),
    "a text": lambda path: path.write_bytes(b"this is no database" * 100),
    "a byte": lambda path: path.write_bytes(b"S"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_database_is_an_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c.db"
    FOREIGN[kind](path)
    before = path.read_bytes()
    for use in (open_database, Writer, recorded, lambda path: keep(path, (), PROFILE)):
        with pytest.raises(ProfilesError, match="not a database of clairvoyant"):
            use(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["c.db"]


@pytest.mark.posix
def test_a_special_file_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path / "fifo", Path("/dev/zero"), tmp_path):
        for use in (open_database, recorded):
            with pytest.raises(ProfilesError, match="not a regular file"):
                use(place)
    with pytest.raises(ProfilesError, match="too long"):
        open_database(tmp_path / ("n" * 300))


def test_other_processes_keep_the_log(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = Writer(path)
    assert recorded(path) == []
    look = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM history'); c.close()"
    )
    subprocess.run([sys.executable, "-c", look, str(path)], check=True)
    assert Path(f"{path}-wal").exists()
    writer.close()


def test_an_empty_file_has_no_requests(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.touch()
    with pytest.raises(ProfilesError, match="nothing is recorded yet"):
        recorded(path)
    assert path.read_bytes() == b""


def test_damage_found_while_reading_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with writing(path) as connection:
        for _ in range(50):
            save(connection, PROFILE)
    data = bytearray(path.read_bytes())
    data[8192:] = b"\x5a" * (len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(ProfilesError, match="damaged"), reading(path) as connection:
        every(connection)


def test_an_unwritable_path_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ProfilesError, match="--db"):
        open_database(blocked / "c.db")


def test_a_full_disk_rolls_back(tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", (), PROFILE)
    with pytest.raises(ProfilesError, match="full"):
        save_much(path)
    with reading(path) as connection:
        assert len(every(connection)) == 1


def test_a_failed_write_rolls_back(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with pytest.raises(ProfilesError, match="no profile 'another'"):
        save_and_stumble(path)
    with reading(path) as connection:
        assert every(connection) == []


@pytest.mark.posix
@pytest.mark.parametrize("attempt", range(10))
def test_concurrent_processes_create_one_database(tmp_path: Path, attempt: int) -> None:
    path = tmp_path / "c.db"
    four_at_once(lambda: keep(path, (), PROFILE))
    with reading(path) as connection:
        assert len({kept.name for kept in every(connection)}) == 4
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
