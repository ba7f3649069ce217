"""`clairvoyant status`: what is printed of a daemon."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.status import command
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.state import client as state_client
from tests.fakes.raw_http import post
from tests.fakes.scripted_upstream import silent
from tests.fakes.serving import between, secret, until

CHAT = json.dumps({"model": "[/]", "messages": [{"role": "user", "content": "short"}]}).encode()


async def printed(rules: str, tmp_path: Path) -> str:
    """Return what is printed while a client called [/] has a request running."""
    file = secret(tmp_path / "clients.toml", rules)

    async with between(silent, clients=file) as (daemon, client):
        client.send(post("/v1/chat/completions", CHAT, "X-Api-Key: key-of-it"))
        await until(daemon, lambda s: len(s.running) == 1)
        token = secret(tmp_path / "token", daemon.access.run_token)
        args = ["--url", daemon.base_url, "--token-file", token]
        done = await asyncio.to_thread(CliRunner(env={"COLUMNS": "80"}).invoke, command, args)
    assert done.exception is None, done.output
    return done.output


async def test_clients_are_printed_once_any_has_rules(tmp_path: Path) -> None:
    text = await printed('[clients."[/]"]\nkey = "key-of-it"\nmax_running = 2\n', tmp_path)
    [row] = [line.split() for line in text.splitlines() if line.startswith("[/]")]
    assert row[:6] == ["[/]", "·", "1/2", "–", "1", "0"]
    assert row[-1] == "0..100"
    assert "max_running" not in text


async def test_clients_without_rules_are_not(tmp_path: Path) -> None:
    text = await printed("", tmp_path)
    assert "weight" not in text
    assert "1 running" in text
    assert max(map(len, text.splitlines())) <= 80


async def test_a_stopped_daemon_is_reported_first_as_late_and_then_as_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_client, "QUIET_S", 0.0)
    monkeypatch.setattr(state_client, "READ_TIMEOUT_S", 0.2)
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        left.set()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        done = await asyncio.to_thread(CliRunner().invoke, command, ["--url", url])
        await left.wait()
    assert isinstance(done.exception, ClairvoyantError)
    assert done.exception.exit_code is ExitCode.UNREACHABLE
    assert "has not answered" in str(done.exception)
    assert done.stderr == f"waiting for the daemon at {url} to answer\n"
