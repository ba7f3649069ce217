"""`clairvoyant calibrate` as its users run it, and the daemon that then needs no flags."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.calibrate import with_earlier_proof
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli
from profiles.database import reading
from profiles.records import Continuation
from profiles.store import every, samples_of
from tests.fakes.daemon_process import child, daemon_process
from tests.fakes.remembered import PROFILE

ROOT = Path(__file__).resolve().parents[2]
PROOF = Continuation("raw", 24, 24, 0.012, fingerprint="template:a")


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with child("-m", "tests.fakes.replay_process", "--decode", 20_000, "--prefill", 400_000) as url:
        yield url


def calibrate(*arguments: object, db: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "clairvoyant_cli", "calibrate", "--db", str(db), *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HOME": str(db.parent)},
    )


def test_calibrate_then_serve_needs_no_flag(backend: str, tmp_path: Path) -> None:
    db = tmp_path / "c.db"
    out, err = calibrate("--backend", backend, "--quick", "--json", "--name", "mine", db=db).communicate()
    profile = json.loads(out)
    assert profile["tau_s"] == pytest.approx(3 * profile["mu_short_s"]["mean"])
    assert err == ""
    with reading(db) as connection:
        assert every(connection)[0].name == "mine"
        assert {sample.phase for sample in samples_of(connection, "mine")} == {"service", "load"}
    with daemon_process(backend, "--db", str(db), home=tmp_path) as daemon:
        daemon.await_line("using profile mine")  # a database that opens late is read while it serves
        tau = httpx.get(f"{daemon.base_url}/_clairvoyant/state", trust_env=False).json()["tau"]
    assert (tau["tau_s"], tau["source"]) == (pytest.approx(profile["tau_s"]), "profile mine")


def test_serve_switches_cutting_on_by_itself_and_keeps_the_proof(backend: str, tmp_path: Path) -> None:
    db, chat = tmp_path / "c.db", {"model": "replay", "messages": [{"role": "user", "content": "Hello"}]}
    with daemon_process(backend, "--db", str(db), home=tmp_path, self_test=True) as daemon:
        httpx.post(
            f"{daemon.base_url}/api/chat", json=chat | {"options": {"num_predict": 5}}, trust_env=False
        )
        daemon.await_line(
            "preemption enabled for replay:latest: 24 of 24 continuations matched", timeout_s=120
        )
    with reading(db) as connection:
        [kept] = every(connection)
        assert kept.continuation is not None
        assert connection.execute("SELECT COUNT(*) FROM history").fetchone() == (1,)
    with daemon_process(backend, "--db", str(db), home=tmp_path) as daemon:
        started = next(line for line in daemon.lines if line.startswith("clairvoyant "))
    assert "policy boost" in started


@pytest.mark.parametrize(
    ("tried", "taken"),
    [
        ((), True),
        ((replace(PROOF, trials=6, exact=6),), True),
        ((replace(PROOF, trials=6, exact=5),), False),
        ((replace(PROOF, trials=6, exact=6, fingerprint="template:b"),), False),
        ((replace(PROOF, trials=12, exact=12),), False),
    ],
)
def test_a_run_too_short_for_a_proof_keeps_an_earlier_one(
    tried: tuple[Continuation, ...], taken: bool
) -> None:
    short = replace(PROFILE, name="short", continuations=tried)
    moved = replace(PROFILE, served=replace(PROFILE.served, url="http://127.0.0.1:11435"))
    kept = with_earlier_proof(short, [PROFILE, replace(moved, continuations=(PROOF,))])
    assert kept == replace(short, continuations=(PROOF,) if taken else tried)
    other = replace(PROFILE, served=replace(PROFILE.served, digest="new"), continuations=(PROOF,))
    assert with_earlier_proof(short, [other]) == short


def test_interrupt_is_reported_in_one_line(backend: str, tmp_path: Path) -> None:
    db = tmp_path / "c.db"
    running = calibrate("--backend", backend, "--quick", db=db)
    assert running.stderr is not None
    for line in running.stderr:
        if "a prompt of 400" in line:
            break
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate()
    assert running.returncode == 1
    assert err.splitlines()[-1] == "clairvoyant: interrupted; nothing was kept"
    with reading(db) as connection:
        assert every(connection) == []


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("--backend", "http://127.0.0.1:9"), "does not answer", 3),
        (("--backend", "nonsense"), "no backend 'nonsense'", 2),
        (("--quick", "--full"), "--quick and --full exclude each other", 2),
        (("--backend-key-file", "/nowhere"), "cannot read the backend key file", 2),
        (("--backend", "BACKEND", "--model", "gpt-9"), "it has replay:latest", 2),
        (("--backend", "BACKEND", "--db", "/dev/null/c.db"), "--db", 1),
    ],
)
def test_what_cannot_be_measured_is_one_line_before_anything_is(
    arguments: tuple[str, ...], words: str, code: int, backend: str, tmp_path: Path
) -> None:
    given = (backend if each == "BACKEND" else each for each in arguments)
    result = CliRunner().invoke(cli, ["calibrate", "--db", str(tmp_path / "c.db"), *given])
    assert isinstance(result.exception, ClairvoyantError), result.output
    assert result.exception.exit_code == code
    assert words in str(result.exception)
    assert "\n" not in str(result.exception)
    assert "measuring" not in result.output
