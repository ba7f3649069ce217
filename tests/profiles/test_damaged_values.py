"""A database that SQLite can read and that holds values of the wrong kind: no command and no daemon ends in a
traceback for it, and what is good of it stays in use.
"""

import json
import logging
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli
from profiles.database import reading
from profiles.history import Span, each, forget
from profiles.ledger import Ledger
from profiles.states import UNKNOWN, forgetting, note_forgetting, salt
from profiles.writer import Writer
from tests.fakes.remembered import FINISHED, PROFILE, keep

ROWS = 120
NOT_JSON = "the profile's record is no JSON"
DAMAGE = {
    "forgetting not UTF-8": "INSERT OR REPLACE INTO states VALUES ('forgetting', 0, x'ff00')",
    "forgetting as text": "INSERT OR REPLACE INTO states VALUES ('forgetting', 0, 'abc')",
    "forgetting no number": "INSERT OR REPLACE INTO states VALUES ('forgetting', 0, CAST('1 b x' AS BLOB))",
    "forgetting as number": "INSERT OR REPLACE INTO states VALUES ('forgetting', 0, 1000000000000)",
    "no salt": "DELETE FROM salt",
    "a salt too long": "UPDATE salt SET salt = randomblob(200)",
    "no salt at all": "UPDATE salt SET salt = x''",
    "a salt of text": "UPDATE salt SET salt = 'abc'",
    "learned state not JSON": "UPDATE states SET state = x'00ff' WHERE name LIKE 'learned%'",
    "learned state as text": "UPDATE states SET state = 'abc' WHERE name LIKE 'learned%'",
    "learned state as number": "UPDATE states SET state = 1000000000000 WHERE name LIKE 'learned%'",
    "text in numbers": "UPDATE history SET sojourn_s = 'abc', finished_at = 'x', tokens = 'y' WHERE id = 5",
    "text in a duration": "UPDATE history SET sojourn_s = 'abc', p_long = 'x' WHERE id = 5",
    "a client of text": "UPDATE history SET client = 'text' WHERE id = 5",
    "infinite time": "UPDATE history SET finished_at = 9e999 WHERE id = 5",
    "minus infinite time": "UPDATE history SET finished_at = -9e999 WHERE id = 5",
    "infinite duration": "UPDATE history SET sojourn_s = 9e999, tokens = 9e999 WHERE id = 5",
    "a late time": "UPDATE history SET finished_at = 1e300 WHERE id = 5",
    "negative": "UPDATE history SET finished_at = -1e11, sojourn_s = -5 WHERE id = 5",
    "a session of bytes": "UPDATE history SET session = x'ff', read_tokens = 9e999 WHERE id = 5",
    "text in prompt tokens": "UPDATE history SET read_tokens = 'x', cached_tokens = 'y' WHERE id = 5",
    "a model of bytes": "UPDATE history SET model = x'ff' WHERE id = 5",
    NOT_JSON: "UPDATE profiles SET record = '{'",
    "profile of bytes": "UPDATE profiles SET record = x'ff', chosen_at = 'x'",
    "profile too many slots": "UPDATE profiles SET record = json_set(record, '$.slots', 1000000000)",
    "sample not JSON": "UPDATE samples SET record = '{'",
    "sample of bytes": "UPDATE samples SET record = x'ff'",
}
SALTLESS = {name for name in DAMAGE if "salt" in name}
COMMANDS = (
    ("history",),
    ("history", "--json"),
    ("history", "--trace"),
    ("history", "--client", "c1"),
    ("history", "--report"),
    ("profiles", "list"),
    ("profiles", "show", PROFILE.name),
    ("profiles", "show", PROFILE.name, "--json"),
)


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Hear the daemon's warnings, whatever level other tests have left its log at."""
    caplog.set_level(logging.WARNING, "clairvoyant")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from profiles.database import writing
    from profiles.records import Sample
    from profiles.store import save

    now = time.time()
    traffic = [
        replace(
            FINISHED,
            finished_at=now - ROWS + n,
            request=f"r-{n}",
            client=f"c{n % 3}",
            model=f"m{n % 2}",
            session=f"r-s{n % 4}",
            read_tokens=5,
        )
        for n in range(ROWS)
    ]
    path = keep(tmp_path_factory.mktemp("sound") / "c.db", traffic)
    with writing(path) as connection:
        save(connection, PROFILE, [Sample("service", "q", 1, 1, 0.0, 0.0, 1.0)])
    writer = Writer(path)
    writer.save("learned ollama x", b'{"models":{}}', writer.generation)
    writer.close()
    return path


def damaged(sound: Path, tmp_path: Path, sql: str) -> Path:
    path = tmp_path / "c.db"
    shutil.copy(sound, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(sql).rowcount > 0
    return path


def rows(path: Path, where: str = "1") -> int:
    with reading(path) as connection:
        return int(connection.execute(f"SELECT COUNT(*) FROM history WHERE {where}").fetchone()[0])  # noqa: S608


@pytest.mark.parametrize("name", DAMAGE)
def test_commands_report_damage_in_one_line(name: str, sound: Path, tmp_path: Path) -> None:
    path = damaged(sound, tmp_path, DAMAGE[name])
    for command in COMMANDS:
        result = CliRunner().invoke(cli, [*command, "--db", str(path)])
        if result.exception is not None:
            assert isinstance(result.exception, ClairvoyantError), (command, result.exception)
            assert "\n" not in str(result.exception)
    for command in (("--client", "c1"), ("--all",)):
        result = CliRunner().invoke(cli, ["history", "--forget", *command, "--yes", "--db", str(path)])
        if name not in SALTLESS or command == ("--all",):
            assert result.exception is None, (command, result.exception)
            assert rows(path, "client = x'00'") == 0
    assert rows(path) == 0


@pytest.mark.parametrize("name", DAMAGE)
def test_daemon_starts_and_records_despite_damage(
    name: str, sound: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged(sound, tmp_path, DAMAGE[name])
    ledger = Ledger(path)
    ledger.profiles("ollama", "http://127.0.0.1:11434")
    ledger.load("learned ollama x")
    ledger.save("learned ollama x", b'{"models":{"m":{}}}')
    ledger.put(replace(FINISHED, finished_at=time.time(), request="new", client="c1"))
    ledger.close()
    assert rows(path) >= ROWS  # what seems years old may go, as ever
    assert rows(path, f"finished_at BETWEEN {time.time() - 1000} AND {time.time() + 10}") >= ROWS
    again = Ledger(path)
    assert again.load("learned ollama x") == b'{"models":{"m":{}}}'
    again.close()
    with reading(path) as connection:
        counted = len(list(each(connection, Span())))
        mine = [row.request for row in each(connection, Span(client="c1"))]
    assert ROWS - 1 <= counted <= ROWS + 1
    assert mine[-1] == "new"
    assert not [record for record in caplog.records if record.exc_info]  # no traceback in the log


def test_a_lost_salt_is_logged_once(sound: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = damaged(sound, tmp_path, "DELETE FROM salt")
    with caplog.at_level(logging.WARNING, "clairvoyant"):
        Writer(path).close()
        assert "key of the client hashes was lost" in caplog.text
        caplog.clear()
        Writer(path).close()
        assert not caplog.records
    with reading(path) as connection:
        assert len(salt(connection)) == 32


def test_daemon_notices_an_erasure_after_an_unreadable_record(sound: Path, tmp_path: Path) -> None:
    """Or it would write what was learned before once more."""
    path = damaged(sound, tmp_path, DAMAGE["forgetting as text"])
    ledger = Ledger(path)
    try:
        assert ledger.generation == UNKNOWN
        forget(path, Span(), states=True)
        with reading(path) as connection:
            erased = forgetting(connection)
        assert erased.generation > 10**6  # nobody has had it
        ledger.save("learned ollama x", b"{}")
    finally:
        ledger.close()
    with reading(path) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM states")]
    assert names == ["forgetting"]


def test_erasure_keeps_the_generation_of_learned_state(sound: Path, tmp_path: Path) -> None:
    path = damaged(
        sound, tmp_path, "INSERT OR REPLACE INTO states VALUES ('forgetting', 0, CAST('3' AS BLOB))"
    )
    with closing(sqlite3.connect(path)) as connection:
        note_forgetting(connection, states=False)
        assert forgetting(connection).generation == 3


def test_an_unreadable_profile_is_skipped(
    sound: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from profiles.database import writing
    from profiles.store import every, save

    path = damaged(sound, tmp_path, DAMAGE[NOT_JSON])
    with writing(path) as connection:
        save(connection, replace(PROFILE, name="good", measured_at=1.0))
    with reading(path) as connection:
        assert [kept.name for kept in every(connection)] == ["good"]
    assert f"the stored profile {PROFILE.name!r} is unreadable" in caplog.text


def test_a_damaged_row_is_skipped_and_counted(
    sound: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = damaged(sound, tmp_path, DAMAGE["a client of text"])
    result = CliRunner().invoke(cli, ["history", "--json", "--db", str(path)], catch_exceptions=False)
    lines = [json.loads(line)["request"] for line in result.stdout.splitlines()]
    assert lines == [f"r-{n}" for n in range(ROWS) if n != 4]
    assert "skipped 1 damaged rows" in caplog.text


def test_names_that_are_not_utf8_are_errors(sound: Path) -> None:
    for command in (("history", "--model"), ("history", "--client"), ("profiles", "show")):
        result = CliRunner().invoke(cli, [*command, "a\udcff", "--db", str(sound)])
        assert isinstance(result.exception, ClairvoyantError), result.exception
        assert "is not UTF-8 text" in str(result.exception)
