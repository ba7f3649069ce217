"""`history --forget` erases, also what a running daemon holds in memory."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from click.testing import CliRunner

import predictor
from clairvoyant_cli.main import cli
from clairvoyant_cli.proxy.learning.tau_learning import Learned, state_name
from profiles.database import reading
from profiles.history import Erased, Span, forget
from profiles.ledger import Ledger
from profiles.states import FORGETTING
from profiles.writer import Bounds, Writer
from tests.fakes.calibrating import replay
from tests.fakes.daemon_process import DaemonProcess, daemon_process
from tests.fakes.remembered import FINISHED, record, recorded

ROOT = Path(__file__).resolve().parents[2]
MODEL = "replay:latest"


def states(path: Path) -> dict[str, bytes]:
    """Return all that is kept under a name, but for the word of the forgetting itself."""
    with reading(path) as connection:
        rows = connection.execute("SELECT name, state FROM states WHERE name != ?", (FORGETTING,))
        return {name: bytes(state) for name, state in rows}


def requests(path: Path) -> list[str]:
    return [row.request for row in recorded(path)]


def test_queued_records_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    writer = Writer(path)
    writer.save("learned", b"before", writer.generation)
    writer.put(replace(FINISHED, request="before", finished_at=time.time() - 1.0))
    forget(path, Span(), states=True)
    writer.put(replace(FINISHED, request="after", finished_at=time.time() + 1.0))
    writer.save("learned", b"of before, too", 0)
    writer.save("learned afresh", b"after", 1)
    writer.close()
    assert requests(path) == ["after"]
    assert states(path) == {"learned afresh": b"after"}


def test_damaged_databases_that_were_set_aside_go_with_all_requests(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    record(Writer(path), (FINISHED,))
    asides = [tmp_path / f"c.db.damaged-{end}" for end in ("1", "1-wal", "12")]
    other = tmp_path / "c.db.damaged-by-me"
    for each in (*asides, other):
        each.write_bytes(b"a text")
    words = ["history", "--db", str(path), "--forget", "--yes"]
    done = CliRunner().invoke(cli, [*words, "--client", "ada"])
    assert f"not erased: requests in damaged databases, which --all removes: {asides[0]}" in done.stderr
    assert all(each.exists() for each in asides)
    assert "damaged" not in CliRunner().invoke(cli, [*words, "--all"]).output
    assert sorted(tmp_path.glob("c.db.damaged-*")) == [other]


def test_a_span_goes_by_recorded_times(tmp_path: Path) -> None:
    times = {"1969": -3600.0, "old": 1000.0, "new": 2000.0, "future": 9e9}
    rows = [replace(FINISHED, request=name, finished_at=at) for name, at in times.items()]
    path = tmp_path / "c.db"
    record(Writer(path, Bounds(days=1e6)), rows)
    assert forget(path, Span(since=1000.0, until=2000.0), states=True) == Erased(1, 1000.0, 1000.0)
    assert forget(path, Span(since=1500.0), states=True) == Erased(2, 2000.0, 9e9)
    assert forget(path, Span(), states=True).requests == 1
    assert requests(path) == []


def test_forget_can_keep_learned_state(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    ledger = Ledger(path)
    ledger.save("learned", b"state")
    forget(path, Span(client="bob"), states=False)
    assert not ledger.forgotten()
    ledger.close()
    assert states(path) == {"learned": b"state"}


async def ask(daemon: DaemonProcess, *prompts: str) -> None:
    async with httpx.AsyncClient(base_url=daemon.base_url, timeout=60, trust_env=False) as http:
        body = {"model": MODEL, "stream": False, "options": {"num_predict": 400}}
        answers = await asyncio.gather(
            *(http.post("/api/generate", json=body | {"prompt": prompt}) for prompt in prompts)
        )
    assert {answer.status_code for answer in answers} == {200}


async def until(holds: Callable[[], bool]) -> None:
    """Return once something holds that another process does; TimeoutError if it never does."""
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(holds):
            pass


async def erase(path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "clairvoyant_cli",
        "history",
        "--forget",
        "--all",
        "--yes",
        "--db",
        str(path),
    ]
    await asyncio.to_thread(subprocess.run, command, cwd=ROOT, check=True, capture_output=True)


@pytest.mark.posix
@pytest.mark.parametrize("stopped_at_once", [True, False], ids=["stopped at once", "serving on"])
async def test_a_running_daemon_forgets(tmp_path: Path, stopped_at_once: bool) -> None:
    path = tmp_path / "c.db"
    async with replay(decode=10_000.0) as (_, url):
        manager = daemon_process(url, "--db", str(path), home=tmp_path)
        daemon = await asyncio.to_thread(manager.__enter__)
        try:
            await ask(daemon, *(f"Name colour {number}." for number in range(30)))
            await until(lambda: len(requests(path)) == 30)
            await erase(path)
            if not stopped_at_once:
                await asyncio.to_thread(daemon.await_line, "learning starts again")
                await ask(daemon, "Name a bird.")
            daemon.signal(signal.SIGTERM)
            await asyncio.to_thread(daemon.wait)
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)
    kept = states(path)
    if stopped_at_once:
        assert kept == {}
        assert requests(path) == []
        return
    assert len(requests(path)) == 1
    learned = msgspec.json.decode(kept.pop(state_name("ollama", url)), type=Learned)
    assert all(model.queued == 0 and model.mu_short_s == 0.0 for model in learned.models.values())
    # What the predictor knows is what one answer taught it, not thirty-one.
    ((_, weights),) = kept.items()
    fresh = predictor.load()
    fresh.import_state(weights)
    assert fresh._heads.of(0).correction.learnt == 1  # type: ignore[attr-defined]
