"""History queries agree with the rows; forgotten data is gone from the disk."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.database import ProfilesError, reading
from profiles.history import (
    Span,
    forget,
    newest,
)
from tests.fakes.remembered import keep, traffic

ROWS = list(traffic(3000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return keep(tmp_path / "c.db", ROWS)


def test_a_forgotten_client_is_gone(path: Path) -> None:
    others = [row for row in ROWS if row.client != "bob"]
    assert forget(path, Span(client="bob"), states=True).requests == len(ROWS) - len(others)
    with reading(path) as connection:
        assert newest(connection, Span(client="bob"), 10) == []
        found = newest(connection, Span(), len(ROWS))
    assert [row.request for row in found] == [row.request for row in others[::-1]]


def test_forgotten_prompts_are_overwritten_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    marker = "unmistakable-words"
    keep(path, [replace(row, body=f"{marker} {'x' * (n % 9000)}") for n, row in enumerate(ROWS[:300])])
    assert marker.encode() in path.read_bytes()
    assert forget(path, Span(), states=True).requests == 300
    for file in tmp_path.iterdir():
        assert marker.encode() not in file.read_bytes(), file


def test_forget_reports_a_reader_that_blocks_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiles.history.CHECKPOINT_TRIES", 1)
    monkeypatch.setattr("profiles.database.BUSY_TIMEOUT_S", 0.01)
    reader = sqlite3.connect(path)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM history").fetchone()
    try:
        with pytest.raises(ProfilesError, match="another process"):
            forget(path, Span(), states=True)
    finally:
        reader.close()
