"""Requests of a killed daemon are in the history as lost; those of one that runs or has stopped are not."""

import asyncio
import json
import logging
import signal
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner

from clairvoyant_cli.main import cli
from clairvoyant_cli.proxy.access.programs import program_of
from profiles.database import reading, writing
from profiles.history import Span, each, forget
from profiles.records import Begun
from profiles.states import client_hash, salt
from profiles.writer import Writer
from tests.fakes.calibrating import replay
from tests.fakes.daemon_process import daemon_process
from tests.fakes.remembered import FINISHED, recorded

BEGUN = Begun("abc-1", 1000.0, "alice", "opencode", "gemma3:4b", "/api/chat")
DEADLINE_S = 30.0


def unfinished(path: Path) -> list[str]:
    with reading(path) as connection:
        return [name for (name,) in connection.execute("SELECT request FROM unfinished ORDER BY request")]


def until_unfinished(path: Path, requests: list[str] | int) -> None:
    """Wait until these requests, or this many, are in the table; TimeoutError if they never are."""
    ends_s = time.monotonic() + DEADLINE_S
    while (found := unfinished(path)) != requests and len(found) != requests:
        if time.monotonic() > ends_s:
            raise TimeoutError(unfinished(path))
        time.sleep(0.02)


@pytest.mark.parametrize("model", ["gemma3:4b", "a\udcff"])  # the latter cannot be stored
def test_only_an_ended_daemon_lost_its_requests(tmp_path: Path, model: str) -> None:
    path = tmp_path / "c.db"
    killed = Writer(path, started=lambda pid: 5.0)
    with closing(killed):
        killed.begin(BEGUN)
        killed.begin(BEGUN._replace(request="abc-2", program="", model=model))
        killed.save("learned", b"x", 0)
        until_unfinished(path, ["abc-1", "abc-2"] if model == BEGUN.model else ["abc-1"])
        Writer(path, started=lambda pid: 5.0).close()
        assert recorded(path) == []  # it runs
        following = Writer(path, started=lambda pid: 6.0)
        assert following.lost == ["opencode", ""][: 2 if model == BEGUN.model else 1]
        following.close()
        assert unfinished(path) == []
        with reading(path) as connection:
            row = next(row for row in each(connection, Span()) if row.request == "abc-1")
            assert row.client == client_hash(salt(connection), "alice").hex()[:12]
    assert (row.outcome, row.program, row.model) == ("lost", "opencode", "gemma3:4b")
    assert (row.tokens, row.body, row.status) == (None, None, 0)
    assert abs(row.finished_at - time.time()) < DEADLINE_S  # when it last wrote
    assert row.finished_at - row.sojourn_s == pytest.approx(BEGUN.began_at)
    assert row.waited_s == row.sojourn_s  # it counts for no time of a slot


def test_a_request_that_ended_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with closing(Writer(path)) as writer:
        writer.begin(BEGUN)
        writer.begin(BEGUN._replace(request="abc-2"))
        until_unfinished(path, ["abc-1", "abc-2"])
        writer.put(replace(FINISHED, request="abc-1"))
        until_unfinished(path, ["abc-2"])
    assert unfinished(path) == []  # it has stopped
    assert [row.outcome for row in recorded(path)] == ["completed"]


def test_a_request_that_was_taken_for_lost_and_ends_has_one_row(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with closing(Writer(path)) as writer:
        writer.begin(BEGUN)
        until_unfinished(path, ["abc-1"])
        Writer(path).close()
        assert [row.outcome for row in recorded(path)] == ["lost"]
        writer.put(replace(FINISHED, request="abc-1"))
    assert [row.outcome for row in recorded(path)] == ["completed"]


@pytest.mark.posix
async def test_the_daemon_after_a_killed_one_says_which_programs_lost_requests(tmp_path: Path) -> None:
    db, this = tmp_path / "c.db", program_of(psutil.Process().cmdline(), str(Path.cwd()))
    assert this is not None
    body = {"model": "replay", "messages": [{"role": "user", "content": "a long and secret story"}]}

    async def ask(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
            with pytest.raises(httpx.HTTPError):
                await http.post("/api/chat", json=body, headers={"User-Agent": "claude-cli/2.0"})

    async with replay(decode=5.0) as (_, url):
        for number in range(3):
            manager = daemon_process(url, "--db", str(db), home=tmp_path)
            daemon = await asyncio.to_thread(manager.__enter__)
            asked = []
            try:
                await asyncio.to_thread(daemon.await_line, "no matching profile")
                said = [line for line in daemon.lines if "lost" in line]
                if number == 0:
                    asked = [asyncio.create_task(ask(daemon.base_url)) for _ in range(3)]
                    await asyncio.to_thread(until_unfinished, db, 3)
                daemon.signal(signal.SIGTERM if number else signal.SIGKILL)
                await asyncio.gather(*asked)
                await asyncio.to_thread(daemon.wait)
            finally:
                await asyncio.to_thread(manager.__exit__, None, None, None)
            assert len(said) == (number == 1)
            if number == 1:
                assert (
                    f"3 requests lost when the last daemon was killed (3 from {this.name}); see:" in said[0]
                )
    shown = CliRunner().invoke(cli, ["history", "--json", "--db", str(db)], catch_exceptions=False).stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [(row["outcome"], row["program"]) for row in rows] == [("lost", this.name)] * 3
    assert "secret" not in shown
    for end in ("", "-wal"):
        file = db.with_name(f"{db.name}{end}")
        assert not file.exists() or b"secret" not in file.read_bytes()


@pytest.mark.parametrize(("span", "left"), [(Span(), 0), (Span(client="alice"), 0), (Span(client="bob"), 1)])
def test_erased_requests_do_not_come_back_as_lost(tmp_path: Path, span: Span, left: int) -> None:
    path = tmp_path / "c.db"
    with closing(Writer(path, started=lambda pid: 5.0)) as killed:
        killed.begin(BEGUN)
        until_unfinished(path, ["abc-1"])
        forget(path, span, states=False)
        following = Writer(path, started=lambda pid: 6.0)
        following.close()
        assert len(following.lost) == left
        assert len(recorded(path)) == left


def test_a_row_of_the_wrong_kind_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "c.db"
    Writer(path).close()
    damaged = ((1, "x", b"c", "p"), ("d 1", 2.0, b"c", b"p"), ("", 2.0, 1, "p"))
    with writing(path) as connection:
        connection.executemany(
            "INSERT INTO unfinished (daemon, began_at, client, program, request, model, endpoint) "
            "VALUES (?, ?, ?, ?, ?, '', '')",
            [(*values, str(number)) for number, values in enumerate(damaged)],
        )
    with caplog.at_level(logging.WARNING, "clairvoyant"):
        writer = Writer(path)
        writer.close()
    assert writer.lost == ["p"]
    assert unfinished(path) == []


def test_a_request_that_another_daemon_has_taken_over_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with closing(Writer(path, started=lambda pid: 5.0)) as writer:
        writer.begin(BEGUN)
        writer.flush(DEADLINE_S)
        assert unfinished(path) == ["abc-1"]
        writer.withdraw("abc-1")
        writer.flush(DEADLINE_S)
        assert unfinished(path) == []
