"""Where clients have keys and nobody gave an admin token, the daemon makes one for its own account."""

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.status import command
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.client import DEFAULT_URL, ControlClient, daemon_url, state_dir
from clairvoyant_cli.state.source import DaemonSource
from clairvoyant_cli.system import process_start
from tests.fakes.raw_http import get, post, raw_client
from tests.fakes.serving import serving

MADE = {"token": "made"}
NOWHERE = "http://127.0.0.1:9"
KEY = "key-of-ann-that-is-long"
PAUSE = "/_clairvoyant/actions/pause"


def secret(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@asynccontextmanager
async def keyed(tmp_path: Path, **settings: Any) -> AsyncIterator[Daemon]:
    keys = secret(tmp_path / "keys", f"ann:{KEY}\n")
    async with serving(NOWHERE, announced=True, api_key_file=keys, **settings) as daemon:
        yield daemon


def word_of(daemon: Daemon) -> tuple[Path, dict[str, Any]]:
    path = state_dir() / f"daemon-{daemon.base_url.rpartition(':')[2]}.json"
    return path, json.loads(path.read_bytes())


async def status(*flags: str) -> tuple[int, str]:
    done = await asyncio.to_thread(CliRunner().invoke, command, list(flags))
    return done.exit_code, done.output + str(done.exception or "")


# -- what the daemon asks for --------------------------------------------------------------------------


@pytest.mark.parametrize("credential", ["X-Nothing: x", f"Authorization: Bearer {KEY}", f"X-Api-Key: {KEY}"])
async def test_where_clients_have_keys_nobody_steers_or_looks_without_a_token(
    tmp_path: Path, credential: str
) -> None:
    async with keyed(tmp_path) as daemon, raw_client(daemon.base_url) as client:
        for path in ("/_clairvoyant/state", "/_clairvoyant/events", "/_clairvoyant/metrics"):
            assert (await client.ask(get(path, credential, host="localhost"))).status == 401
        refused = await client.ask(post(PAUSE, b"{}", credential, host="localhost"))
        assert refused.status == 401
        assert b"only the account that runs this daemon may" in refused.body
        assert (await client.ask(get("/_clairvoyant/health", host="localhost"))).status == 200
        assert daemon.snapshot().mode == "serving"
        token = f"Authorization: Bearer {daemon.access.run_token}"
        assert (await client.ask(post(PAUSE, b"{}", token, host="localhost"))).status == 200
        assert daemon.snapshot().mode == "paused"


async def test_the_token_is_asked_for_as_long_as_there_are_keys(tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    async with (
        serving(NOWHERE, announced=True, clients=secret(file, "[clients.ann]\n")) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        state = get("/_clairvoyant/state", host="localhost")
        assert (await client.ask(state)).status == 200
        secret(file, f'[clients.ann]\nkey = "{KEY}"\n')
        await daemon.reload()
        assert (await client.ask(state)).status == 401
        assert (await status("--url", daemon.base_url))[0] == 0, "the word was left before there were keys"


async def test_a_token_that_was_given_is_the_only_one(tmp_path: Path) -> None:
    given = secret(tmp_path / "token", "given")
    async with keyed(tmp_path, admin_token_file=given) as daemon, raw_client(daemon.base_url) as client:
        made = f"Authorization: Bearer {daemon.access.run_token}"
        assert (await client.ask(get("/_clairvoyant/state", made, host="localhost"))).status == 401
        assert "token" not in {key for key, value in word_of(daemon)[1].items() if value is not None}
        assert (await status())[0] != 0
        assert (await status("--token-file", given))[0] == 0


# -- how the operator's own commands find it -----------------------------------------------------------


@pytest.mark.posix
async def test_the_word_is_for_its_owner_alone_and_goes_with_the_daemon(tmp_path: Path) -> None:
    async with keyed(tmp_path) as daemon:
        path, word = word_of(daemon)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert word.pop("started") == process_start(os.getpid())
        assert word == {"url": daemon.base_url, "pid": os.getpid(), "token": daemon.access.run_token}
    assert not path.exists()


async def test_the_operators_commands_notice_nothing(tmp_path: Path) -> None:
    async with keyed(tmp_path) as daemon:
        port = daemon.base_url.rpartition(":")[2]
        for flags in ([], *(["--url", each] for each in (daemon.base_url, f"localhost:{port}"))):
            code, said = await status(*flags)
            assert (code, "serving" in said) == (0, True), said
        assert not await DaemonSource(daemon.base_url).act(Action(Verb.PAUSE))
        assert daemon.snapshot().mode == "paused"


async def test_another_account_is_told_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with keyed(tmp_path) as daemon:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        code, said = await status("--url", daemon.base_url)
    assert code != 0
    assert "only the account that runs this daemon may" in said


async def test_a_dashboard_outlives_a_restart(tmp_path: Path) -> None:
    async with keyed(tmp_path) as daemon:
        source = DaemonSource(daemon.base_url)
        assert not await source.act(Action(Verb.PAUSE))
    async with keyed(tmp_path, listen=daemon.base_url.removeprefix("http://")):
        assert not await source.act(Action(Verb.PAUSE))


@pytest.mark.posix
async def test_a_home_that_cannot_be_written_is_said_where_it_costs_the_control_api(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "clairvoyant")
    monkeypatch.setenv("XDG_STATE_HOME", secret(tmp_path / "a-file", ""))
    async with serving(NOWHERE, announced=True):
        pass
    assert "cannot be controlled" not in caplog.text
    async with keyed(tmp_path):
        assert "cannot be controlled" in caplog.text


def left(url: str, **word: object) -> None:
    state_dir().mkdir(parents=True, exist_ok=True)
    path = state_dir() / f"daemon-{url.rpartition(':')[2]}.json"
    path.write_text(json.dumps({"url": url, **word}))


def asked(url: str, token: str | None = None) -> tuple[str, str | None]:
    client = ControlClient(url, token)
    return client.url, client.token


def test_the_token_goes_to_the_daemon_that_made_it_and_nowhere_else() -> None:
    left("http://127.0.0.1:8080", pid=os.getpid(), **MADE)
    assert asked("http://127.0.0.1:8080/") == ("http://127.0.0.1:8080", "made")
    assert asked("http://localhost:8080") == ("http://127.0.0.1:8080", "made")
    assert asked("http://127.0.0.1:8080", "given") == ("http://127.0.0.1:8080", "given")
    assert asked("http://localhost:8080", "given") == ("http://localhost:8080", "given")
    for other in (
        "http://127.0.0.1:8081",
        "http://127.0.0.2:8080",
        "http://[::1]:8080",
        "http://box:8080",
        "http://127.0.0.1.evil.example:8080",
        "http://127.0.0.1:8080@evil.example",
        "https://127.0.0.1:8080",
        "http://127.0.0.1:8080/elsewhere",
        "http://127.0.0.1",
    ):
        assert asked(other) == (other, None)


@pytest.mark.posix
def test_what_a_dead_daemon_left_counts_for_nothing() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left("http://127.0.0.1:8080", pid=ended.pid, **MADE)
    left("http://127.0.0.1:8081", pid=10**30, **MADE)
    left("http://127.0.0.1:8082", **MADE)
    left("http://127.0.0.1:8083", pid=os.getpid(), started=1.0, **MADE)  # its number is another's by now
    (state_dir() / "daemon-torn.json").write_bytes(b'{"url": "\xff')
    for port in (8080, 8083):
        assert asked(f"http://127.0.0.1:{port}") == (f"http://127.0.0.1:{port}", None)
    assert daemon_url(None) == DEFAULT_URL
    left("http://127.0.0.1:8085", pid=os.getpid())
    assert daemon_url(None) == "http://127.0.0.1:8085", "as daemons of before left it"
    assert asked("http://127.0.0.1:8085") == ("http://127.0.0.1:8085", None)
