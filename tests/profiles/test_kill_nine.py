"""A killed daemon, and one without a usable database."""

import asyncio
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from profiles.database import open_database
from profiles.schema import SCHEMA_VERSION
from tests.fakes.calibrating import replay
from tests.fakes.daemon_process import daemon_process
from tests.fakes.remembered import recorded
from tests.perf.perf_soak import killed

pytestmark = pytest.mark.posix


async def test_history_survives_kill_nine() -> None:
    assert await killed(times=2, seed=359) == 0


async def test_daemon_serves_while_its_database_is_locked_and_records_afterwards(tmp_path: Path) -> None:
    db = tmp_path / "c.db"
    body = {"model": "replay", "messages": [{"role": "user", "content": "Hello"}]}
    async with replay() as (_, url):
        manager = daemon_process(url, "--db", str(db), home=tmp_path)
        with closing(sqlite3.connect(db, isolation_level=None)) as holder:
            holder.execute("BEGIN EXCLUSIVE")
            daemon = await asyncio.to_thread(manager.__enter__)
        try:
            assert any(f"{db} takes long to open" in line for line in daemon.lines)
            await asyncio.to_thread(daemon.await_line, "no matching profile")
            async with httpx.AsyncClient(base_url=daemon.base_url, timeout=60, trust_env=False) as http:
                assert (await http.post("/api/chat", json=body)).status_code == 200
            daemon.signal(signal.SIGTERM)
            await asyncio.to_thread(daemon.wait)
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)
    assert len(recorded(db)) == 1


def text_file(db: Path) -> None:
    db.write_bytes(b"not a database" * 1000)


def later_version(db: Path) -> None:
    with closing(open_database(db)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


@pytest.mark.parametrize(
    ("make", "why"), [(text_file, "not a database"), (later_version, "install that version again")]
)
async def test_daemon_serves_without_a_usable_database(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    db = tmp_path / "c.db"
    make(db)
    before = db.read_bytes()
    async with replay() as (_, url):
        manager = daemon_process(url, "--db", str(db), home=tmp_path)
        daemon = await asyncio.to_thread(manager.__enter__)
        try:
            async with httpx.AsyncClient(base_url=daemon.base_url, timeout=60, trust_env=False) as http:
                body = {"model": "replay", "messages": [{"role": "user", "content": "Hello"}]}
                assert (await http.post("/api/chat", json=body)).status_code == 200
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)
    assert any("no profiles and no history" in line and why in line for line in daemon.lines)
    assert db.read_bytes() == before
