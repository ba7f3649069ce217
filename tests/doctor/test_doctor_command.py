"""`clairvoyant doctor` against a simulated backend and a real daemon."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from clairvoyant_lab.asgi_server import serve_app
from click.testing import CliRunner

from clairvoyant_cli.commands.doctor import command
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ExitCode
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.takeover.journal import Takeover, write
from predictor import load
from tests.fakes.llamacpp_server import free_port
from tests.fakes.replay_backend import Replay
from tests.fakes.serving import serving


@pytest.fixture(autouse=True)
def no_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OLLAMA_HOST", "OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def examine(*words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run it; return the exit code and the worst finding by topic."""
    done = CliRunner().invoke(command, ["--json", *words])
    said = json.loads(done.output)
    assert said["exit_code"] == done.exit_code
    order = ("ok", "note", "warning", "broken")
    findings = sorted(said["findings"], key=lambda finding: order.index(finding["level"]))
    return done.exit_code, {finding["topic"]: finding for finding in findings}


async def test_a_complete_setup_is_ok(tmp_path: Path) -> None:
    async with serve_app(Replay().app) as backend_url:
        config = ServeConfig(backend=backend_url, listen="127.0.0.1:0")
        async with running_daemon(config, load()) as daemon:
            port = daemon.base_url.rpartition(":")[2]
            file = tmp_path / "config.toml"
            file.write_text(f'[serve]\nbackend = "{backend_url}"\nlisten = "127.0.0.1:{port}"\n')
            code, found = await asyncio.to_thread(examine, "--config", str(file), "--url", daemon.base_url)
    assert {topic: f["level"] for topic, f in found.items() if f["level"] in ("warning", "broken")} == {}
    assert code == ExitCode.OK
    assert {"version", "backend", "models", "daemon", "predictor", "files"} <= found.keys()


async def test_servers_default_to_those_of_the_running_daemon() -> None:
    async with serve_app(Replay().app) as backend_url:
        config = ServeConfig(backend=backend_url, listen="127.0.0.1:0")
        async with serving(backend_url, announced=True):
            _, ours = await asyncio.to_thread(examine)
        async with running_daemon(config, load()) as daemon:  # which left no word: it may be anybody's
            _, others = await asyncio.to_thread(examine, "--url", daemon.base_url)
    assert ours["backend"]["level"] == "ok"
    assert backend_url in ours["backend"]["text"]
    assert backend_url not in others["backend"]["text"]


async def test_a_proxy_behind_a_proxy_is_found() -> None:
    async with serve_app(Replay().app) as backend_url:
        config = ServeConfig(backend=backend_url, listen="127.0.0.1:0")
        async with running_daemon(config, load()) as daemon:
            code, found = await asyncio.to_thread(
                examine, "--backend", daemon.base_url, "--url", daemon.base_url
            )
    assert code == ExitCode.FAILURE
    assert "clairvoyant already" in found["backend"]["text"]
    assert found["backend"]["fix"]


def test_missing_backend_and_daemon_have_fixes() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    code, found = examine("--backend", nowhere, "--url", nowhere)
    assert code == ExitCode.FAILURE
    assert (found["backend"]["level"], found["daemon"]["level"]) == ("broken", "warning")
    assert "clairvoyant serv" in found["daemon"]["fix"]


def test_an_unreadable_configuration_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[serve]\npolcy = 'fcfs'\n")
    _, found = examine("--config", str(file), "--backend", f"http://127.0.0.1:{free_port()}")
    assert "polcy" in found["configuration"]["text"]
    human = CliRunner().invoke(command, ["--config", str(file)])
    assert "→" in human.output


@pytest.mark.parametrize(("step", "level"), [("done", "ok"), ("server", "broken")])
def test_a_takeover_is_shown_and_an_interrupted_one_can_be_undone(step: str, level: str) -> None:
    write(Takeover("ollama", "127.0.0.1:11434", 11435, (), service=False), step)
    nowhere = f"http://127.0.0.1:{free_port()}"
    _, found = examine("--backend", nowhere, "--url", nowhere)
    assert found["clients"]["level"] == level
    assert "ollama at 127.0.0.1:11434" in found["clients"]["text"]
    assert (found["clients"]["fix"] == "clairvoyant takeover --undo") == (level == "broken")
