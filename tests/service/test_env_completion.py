"""Output of `clairvoyant env`, and shell completion."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.env import CLIENTS, model_of
from clairvoyant_cli.commands.env import command as env
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli, installed
from clairvoyant_cli.state.snapshot import EMPTY, BackendState, LoadedModel
from tests.fakes.remembered import FINISHED, START, keep

URL = "http://127.0.0.1:9999"


def printed(*words: str) -> str:
    done = CliRunner().invoke(env, ["--url", URL, *words])
    assert done.exit_code == 0
    return done.stdout


def test_no_variable_names_a_model_that_nobody_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIRVOYANT_DB", str(tmp_path / "none.db"))
    for name in CLIENTS:
        done = CliRunner().invoke(env, ["--url", URL, "--client", name])
        assert not [
            line for line in done.stdout.splitlines() if line.startswith("export") and "model" in line
        ]
        assert ("give one with --model" in done.stderr) == ("{model}" in str(CLIENTS[name]))
    text = printed("--client", "claude-code", "--client", "codex", "--model", "qwen3:8b")
    assert 'export ANTHROPIC_MODEL="qwen3:8b"' in text
    assert '#   model = "qwen3:8b"' in text
    assert isinstance(CliRunner().invoke(env, ["--model", '$(rm "b")']).exception, ClairvoyantError)


def test_the_last_model_of_the_history_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [replace(FINISHED, model=m, finished_at=START + at) for at, m in enumerate(("first", "second"))]
    monkeypatch.setenv("CLAIRVOYANT_DB", str(keep(tmp_path / "c.db", rows)))
    monkeypatch.setattr("clairvoyant_cli.state.client.DEFAULT_URL", URL)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done = CliRunner().invoke(env, ["--client", "aider"])
    assert 'export AIDER_MODEL="openai/second"' in done.output


def test_a_model_whose_name_is_unsafe_in_a_shell_is_named_and_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clairvoyant_cli.commands.env._model_in_use", lambda url: "a b\x1b[2J")
    done = CliRunner().invoke(env, ["--client", "claude-code"])
    assert r"'a b\x1b[2J', is not safe in every shell; set it by hand" in done.stderr
    assert "a b" not in done.stdout


def test_a_loaded_model_goes_before_the_one_used_last() -> None:
    server = BackendState("s", "ollama", URL, "up", 1, 0, models=(LoadedModel("a"), LoadedModel("b")))
    loaded = replace(EMPTY, backends=(server,))
    used: Any = tuple(SimpleNamespace(model=model, outcome="completed") for model in "bc")
    assert model_of(EMPTY) is None
    assert model_of(replace(EMPTY, recent=used)) == "c"
    assert model_of(loaded) == "a"
    assert model_of(replace(loaded, recent=used)) == "b"


def test_open_webui_in_a_container_gets_the_address_of_its_host() -> None:
    text = printed("--client", "open-webui")
    assert "http://host.docker.internal:9999/v1\n" in text
    assert "http://host.containers.internal:9999/v1\n" in text


def test_sh_output_replaces_a_real_key() -> None:
    script = printed() + 'echo "$OLLAMA_HOST $OPENAI_BASE_URL $OPENAI_API_KEY ${ANTHROPIC_BASE_URL:-none}"'
    done = subprocess.run(
        ["/bin/sh", "-euc", script],
        env={"OPENAI_API_KEY": "sk-a-real-one"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [URL, f"{URL}/v1", "clairvoyant", "none"]


def test_env_says_that_it_replaces_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-real-one")
    assert "# replaces your OPENAI_API_KEY in this shell" in printed()
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "replaces" not in printed()


def test_key_option_and_anthropic_on_request() -> None:
    assert f'export ANTHROPIC_BASE_URL="{URL}"' in printed("--client", "anthropic")
    text = printed("--client", "anthropic", "--client", "openai", "--client", "continue", "--key", "mine")
    assert text.count("mine") == 3
    refused = CliRunner().invoke(env, ["--key", "a; rm -r b"])
    assert isinstance(refused.exception, ClairvoyantError)


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("sh", 'export {}="{}"'),
        ("fish", "set -gx {} '{}'"),
        ("powershell", "$env:{} = '{}'"),
        ("cmd", 'set "{}={}"'),
    ],
)
def test_each_shell_gets_its_syntax_and_claude_code_keeps_its_prefix(shell: str, line: str) -> None:
    usual = printed("--shell", shell).splitlines()
    assert line.format("OLLAMA_HOST", URL) in usual
    assert shell != "cmd" or not [line for line in usual if line.startswith("#")]
    prefix = line.format("CLAUDE_CODE_ATTRIBUTION_HEADER", 0)
    assert prefix in printed("--client", "anthropic", "--shell", shell).splitlines()
    assert prefix not in usual


def test_key_of_reads_the_clients_file(tmp_path: Path) -> None:
    clients, keys = tmp_path / "clients.toml", tmp_path / "keys"
    clients.write_text('[clients.desk]\nkey = "key-of-the-desk"\n\n[clients.webui]\nkey = "key-of-webui"\n')
    keys.write_text("# ours\ndesk:key-of-the-desk\nwebui: key-of-webui\n")
    for file in (clients, keys):
        file.chmod(0o600)
        text = printed("--client", "open-webui", "--key-of", str(file), "webui")
        assert text.count("key-of-webui") == 3
        assert f"OPENAI_API_BASE_URL={URL}/v1" in text
        refused = CliRunner().invoke(env, ["--key-of", str(file), "ann"])
        assert f"{file} has no key of a client 'ann'" in str(refused.exception)


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_gets_the_address(name: str) -> None:
    text = printed("--client", name)
    assert ":9999" in text
    assert text.startswith("# ")


def test_files_of_agents_can_be_read() -> None:
    readers: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads}
    files = [
        (kind, body)
        for client in CLIENTS.values()
        for kind, body in re.findall(
            r"^In ~/\S+\.(\w+):\n((?:(?!Run:|Start:).*\n?)+)", client.get("text", ""), re.MULTILINE
        )
        if kind in readers
    ]
    assert len(files) == 7
    for kind, body in files:
        body = body.replace("{model}", "qwen3:8b")
        assert "{url}" in str(readers[kind](body)) or "contextWindowSize" in body


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_CLAIRVOYANT_COMPLETE" in done.output
    if shutil.which(shell):
        subprocess.run([shell, "-n", "-c", done.output], check=True)


def test_commands_complete() -> None:
    asked = {"COMP_WORDS": "clairvoyant ", "COMP_CWORD": "1", "_CLAIRVOYANT_COMPLETE": "bash_complete"}
    done = CliRunner().invoke(cli, prog_name="clairvoyant", env=asked)
    assert {line.rpartition(",")[2] for line in done.output.split()} == set(installed())
