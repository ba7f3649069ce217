"""`clairvoyant service` with a fake home and service manager."""

import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from click.testing import CliRunner, Result

from clairvoyant_cli.commands import service
from clairvoyant_cli.commands.service import command
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.client import RunningDaemon
from clairvoyant_cli.takeover.journal import Takeover, write
from tests.fakes.commands import FakeCommands

COMES_UP = service.comes_up


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    commands = FakeCommands(tmp_path / "bin", monkeypatch)
    commands.add("systemctl", "journalctl", "launchctl", "tail")
    monkeypatch.setattr(service, "comes_up", lambda url: True)
    return commands


def run(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(command, words, input=answer)


def unit_file(tmp_path: Path) -> Path:
    return tmp_path / ".config/systemd/user/clairvoyant.service"


def test_dry_run_changes_nothing(system: FakeCommands, tmp_path: Path) -> None:
    done = run("install", "--dry-run", "--", "--backend", "ollama")
    assert done.exit_code == 0, done.output
    assert "serve --replace --backend ollama" in done.output
    assert "$ systemctl --user enable clairvoyant.service" in done.output
    assert not unit_file(tmp_path).exists()
    assert not system.calls


def test_install_asks_before_writing(system: FakeCommands, tmp_path: Path) -> None:
    done = run("install", answer="n\n")
    assert done.exit_code == 1
    assert "[Service]" in done.output
    assert not unit_file(tmp_path).exists()
    assert not system.calls


def test_install_is_idempotent(system: FakeCommands, tmp_path: Path) -> None:
    assert run("install", "--yes").exit_code == 0
    text, calls = unit_file(tmp_path).read_text(), list(system.calls)
    again = run("install", "--yes")
    assert "up to date" in again.output
    assert unit_file(tmp_path).read_text() == text
    assert system.calls == calls * 2


def test_install_with_other_flags_replaces_the_file(system: FakeCommands, tmp_path: Path) -> None:
    run("install", "--yes")
    done = run("install", "--yes", "--", "--policy", "fcfs")
    assert "(replaced)" in done.output
    assert "--policy fcfs" in unit_file(tmp_path).read_text()


@pytest.mark.parametrize(
    "flags", [("--polcy", "fcfs"), ("--tau", "soon"), ("--tau", "-1"), ("--help",), ("--clients", "/no/file")]
)
def test_install_checks_the_flags_of_serve(
    system: FakeCommands, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    done = run("install", "--yes", "--", *flags)
    assert isinstance(done.exception, ClairvoyantError)
    assert not unit_file(tmp_path).exists()


def test_a_service_means_what_was_typed_here(
    system: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "a folder").mkdir()
    monkeypatch.chdir(folder)
    Path("key").write_text("secret")
    Path("mine").mkdir()
    Path("config.toml").write_text('[[backends]]\nname = "x"\nurl = "http://10.0.0.1:1"\nkey_file = "key"\n')
    for name, value in {"SERVE_LISTEN": "127.0.0.1:7719", "DB": "mine.db", "SERVE_NO_SELF_TEST": "1"}.items():
        monkeypatch.setenv(f"CLAIRVOYANT_{name}", value)
    command = "X=1 sh -c 'exec x'"
    done = run(
        "install", "--dry-run", "--", "--config", "config.toml", "--urgency", "mine", "--start", command
    )
    (line,) = [each for each in done.output.splitlines() if each.startswith("ExecStart=")]
    words = shlex.split(line)[3:]
    assert words[:2] == ["--config", str(folder / "config.toml")]
    assert words[2:7] == ["--db", str(folder / "mine.db"), "--listen", "127.0.0.1:7719", "--no-self-test"]
    assert words[7:] == ["--urgency", str(folder / "mine"), "--start", f"X=1 'PWD={folder}' sh -c 'exec x'"]
    assert f'Environment="PATH={os.environ["PATH"]}"\n' in done.output
    monkeypatch.chdir(tmp_path)
    config = service.check_serve_flags(words, keeps_log=False)
    assert (config.listen, config.no_self_test) == ("127.0.0.1:7719", True)
    assert config.backends[0].key_file == str(folder / "key")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("FREEZE", "0", "--freeze has no opposite; set freeze = false in the configuration file"),
        ("START", "PWD=/none server", "no such folder"),
        ("START", "run 'it", "start must be a command"),
    ],
)
def test_install_refuses_variables_that_it_cannot_keep(
    system: FakeCommands, name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"CLAIRVOYANT_SERVE_{name}", value)
    assert why in str(run("install", "--yes").exception)
    assert not system.calls


def test_install_refuses_beside_a_daemon_at_its_address(
    system: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = RunningDaemon("http://127.0.0.1:7117", 4711)
    monkeypatch.setattr(service, "running_daemons", lambda: [daemon])
    refused = run("install", "--yes")
    assert "runs already at http://127.0.0.1:7117; end it: kill 4711" in str(refused.exception)
    assert not unit_file(tmp_path).exists()
    assert run("install", "--yes", "--", "--listen", "127.0.0.1:7118").exit_code == 0


def test_install_looks_whether_the_service_came_up(
    system: FakeCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "comes_up", COMES_UP)
    monkeypatch.setattr(service, "LOOK_EVERY_S", service.COMES_UP_S / 2)
    found: list[list[RunningDaemon]] = [[], [], []]
    monkeypatch.setattr(service, "running_daemons", lambda: found.pop(0))
    monkeypatch.setattr("time.sleep", lambda _: None)
    failed = run("install", "--yes", "--", "--listen", "127.0.0.1:7118")
    assert "does not answer at http://127.0.0.1:7118; see: clairvoyant service logs" in str(failed.exception)
    found += [[RunningDaemon("http://127.0.0.1:7117", 1)], [RunningDaemon("http://127.0.0.1:7118", 2)]]
    assert (
        "It answers at http://127.0.0.1:7118"
        in run("install", "--yes", "--", "--listen", "127.0.0.1:7118").output
    )


def test_start_stop_status_and_logs_run_systemctl(system: FakeCommands) -> None:
    run("install", "--yes")
    before = len(system.calls)
    for word in ("start", "stop", "status", "logs"):
        assert run(word).exit_code == 0
    assert list(system.calls[before:]) == [
        "systemctl --user start clairvoyant.service",
        "systemctl --user stop clairvoyant.service",
        "systemctl --user status --no-pager clairvoyant.service",
        "journalctl --user --unit clairvoyant.service --lines 100 --no-pager",
    ]


def test_commands_without_an_installed_service(system: FakeCommands) -> None:
    assert isinstance(run("start").exception, ClairvoyantError)
    assert run("uninstall").exit_code == 0
    assert not system.calls


def test_uninstall_stops_and_removes(system: FakeCommands, tmp_path: Path) -> None:
    run("install", "--yes")
    assert "rm" in run("uninstall", "--dry-run").output
    assert unit_file(tmp_path).exists()
    assert run("uninstall").exit_code == 0
    assert not unit_file(tmp_path).exists()
    assert system.calls[-2:] == [
        "systemctl --user disable --now clairvoyant.service",
        "systemctl --user daemon-reload",
    ]


def test_failed_commands_are_named(system: FakeCommands) -> None:
    system.add("systemctl", fails_on="enable")
    done = run("install", "--yes")
    assert isinstance(done.exception, ClairvoyantError)
    assert "enable clairvoyant.service" in str(done.exception)


def test_install_on_macos(system: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    system.add("launchctl", fails_on="bootout")  # nothing was loaded yet
    done = run("install", "--yes", "--", "--backend", "ollama")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "Library/LaunchAgents/io.github.clairvoyant.plist").exists()
    assert (tmp_path / "Library/Logs/clairvoyant").is_dir()
    assert [call.split()[1] for call in system.calls] == ["bootout", "enable", "bootstrap"]


@pytest.fixture
def windows(system: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    """Add the Task Scheduler to the system, and our own program, which would have a daemon end."""
    monkeypatch.setenv("USERNAME", "ann")
    for name, value in {
        "service_manager": "schtasks",
        "account": "S-1-5-21-1-2-3-1001",
        "own_program": ("clairvoyant.exe",),
    }.items():
        monkeypatch.setattr(service, name, lambda value=value: value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    system.add("schtasks", "clairvoyant.exe")
    return system


def test_install_on_windows(windows: FakeCommands, tmp_path: Path) -> None:
    done = run("install", "--yes", "--", "--backend", "ollama")
    assert done.exit_code == 0, done.output
    path = tmp_path / "state/clairvoyant/clairvoyant-task.xml"
    assert path.read_bytes().startswith(b"\xff\xfe")
    log = tmp_path / "state/clairvoyant/Logs/clairvoyant.log"
    assert list(windows.calls) == [
        f"schtasks /Create /TN clairvoyant-ann /XML {path} /F",
        f"clairvoyant.exe service end --log-file {log}",
        "schtasks /Run /TN clairvoyant-ann",
    ]
    assert "up to date" in run("install", "--yes", "--", "--backend", "ollama").output
    assert run("uninstall").exit_code == 0
    assert not path.exists()
    assert [call.split()[1] for call in windows.calls[-2:]] == ["/Delete", "service"]


def test_logs_prints_the_end_of_the_log_file(windows: FakeCommands, tmp_path: Path) -> None:
    run("install", "--yes")
    assert "has it started?" in str(run("logs").exception)
    log = tmp_path / "state/clairvoyant/Logs/clairvoyant.log"
    log.write_text("".join(f"line {i}\n" for i in range(250)), encoding="utf-8")
    assert run("logs").output.splitlines() == [f"line {i}" for i in range(150, 250)]


def test_install_rejects_log_file_flag(windows: FakeCommands) -> None:
    done = run("install", "--yes", "--", "--log-file", "mine.log")
    assert "remove --log-file" in str(done.exception)
    assert not windows.calls


def test_the_service_stays_while_it_is_in_a_servers_place(
    system: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run("install", "--yes")
    write(Takeover("ollama", "127.0.0.1:11434", 11435, (), service=True), "done")
    for words in (("install", "--yes"), ("uninstall",)):
        error = run(*words).exception
        assert isinstance(error, ClairvoyantError)
        assert "first run: clairvoyant takeover --undo" in str(error)
    assert unit_file(tmp_path).exists()


@pytest.mark.parametrize("manager", ["system", "windows"])
def test_restart_finds_the_daemon_that_runs_as_installed(
    manager: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request.getfixturevalue(manager)
    run("install", "--yes", "--", "--backend", "ollama")
    unit = service.unit_of(())
    log = () if unit.log_file is None else ("--log-file", str(unit.log_file))
    words = ["python", "clairvoyant", "serve", "--replace", "--backend", "ollama", *log]
    for ran, found in ((words, True), ([*words, "--replace"], False), (["python"], False)):
        monkeypatch.setattr(psutil, "Process", lambda pid, ran=ran: SimpleNamespace(cmdline=lambda: ran))
        assert service._is_service(unit, 1) is found
    assert "run: clairvoyant service install" in str(run("restart").exception)
