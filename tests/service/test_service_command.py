"""`clairvoyant service` with a home of its own and a systemctl that only takes notes."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clairvoyant_cli.commands import service
from clairvoyant_cli.commands.service import command
from clairvoyant_cli.errors import ClairvoyantError
from tests.fakes.commands import FakeCommands


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCommands:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    commands = FakeCommands(tmp_path / "bin", monkeypatch)
    commands.add("systemctl", "journalctl", "launchctl", "tail")
    return commands


def run(*words: str, answer: str = "") -> Result:
    return CliRunner().invoke(command, words, input=answer)


def unit_file(tmp_path: Path) -> Path:
    return tmp_path / ".config/systemd/user/clairvoyant.service"


def test_a_dry_run_shows_everything_and_changes_nothing(system: FakeCommands, tmp_path: Path) -> None:
    done = run("install", "--dry-run", "--", "--backend", "ollama")
    assert done.exit_code == 0, done.output
    assert "serve --backend ollama" in done.output
    assert "$ systemctl --user enable clairvoyant.service" in done.output
    assert not unit_file(tmp_path).exists()
    assert not system.calls


def test_it_is_shown_before_it_is_written_and_no_means_no(system: FakeCommands, tmp_path: Path) -> None:
    done = run("install", answer="n\n")
    assert done.exit_code == 1
    assert "[Service]" in done.output
    assert not unit_file(tmp_path).exists()
    assert not system.calls


def test_installing_twice_is_installing_once(system: FakeCommands, tmp_path: Path) -> None:
    assert run("install", "--yes").exit_code == 0
    text, calls = unit_file(tmp_path).read_text(), list(system.calls)
    again = run("install", "--yes")
    assert "up to date" in again.output
    assert unit_file(tmp_path).read_text() == text
    assert system.calls == calls * 2


def test_other_flags_replace_the_file(system: FakeCommands, tmp_path: Path) -> None:
    run("install", "--yes")
    done = run("install", "--yes", "--", "--policy", "fcfs")
    assert "(replaced)" in done.output
    assert "--policy fcfs" in unit_file(tmp_path).read_text()


@pytest.mark.parametrize("flags", [("--polcy", "fcfs"), ("--tau", "soon"), ("--tau", "-1"), ("--help",)])
def test_flags_that_serve_would_refuse_are_refused_now(
    system: FakeCommands, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    done = run("install", "--yes", "--", *flags)
    assert isinstance(done.exception, ClairvoyantError)
    assert not unit_file(tmp_path).exists()


def test_start_stop_status_and_logs_ask_the_system(system: FakeCommands) -> None:
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


def test_what_is_not_installed_cannot_be_started_and_need_not_be_removed(system: FakeCommands) -> None:
    assert isinstance(run("start").exception, ClairvoyantError)
    assert run("uninstall").exit_code == 0
    assert not system.calls


def test_uninstalling_stops_it_and_removes_the_file(system: FakeCommands, tmp_path: Path) -> None:
    run("install", "--yes")
    assert "rm" in run("uninstall", "--dry-run").output
    assert unit_file(tmp_path).exists()
    assert run("uninstall").exit_code == 0
    assert not unit_file(tmp_path).exists()
    assert system.calls[-2:] == [
        "systemctl --user disable --now clairvoyant.service",
        "systemctl --user daemon-reload",
    ]


def test_a_command_that_fails_says_which(system: FakeCommands) -> None:
    system.add("systemctl", fails_on="enable")
    done = run("install", "--yes")
    assert isinstance(done.exception, ClairvoyantError)
    assert "enable clairvoyant.service" in str(done.exception)


def test_on_macos_an_agent_is_written_and_an_old_one_taken_out_first(
    system: FakeCommands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        "_program": ("clairvoyant.exe",),
    }.items():
        monkeypatch.setattr(service, name, lambda value=value: value)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    system.add("schtasks", "clairvoyant.exe")
    return system


def test_on_windows_a_task_is_written_and_what_ran_is_ended_first(
    windows: FakeCommands, tmp_path: Path
) -> None:
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


def test_the_log_that_serve_keeps_is_printed_from_its_end(windows: FakeCommands, tmp_path: Path) -> None:
    run("install", "--yes")
    assert "has it started?" in str(run("logs").exception)
    log = tmp_path / "state/clairvoyant/Logs/clairvoyant.log"
    log.write_text("".join(f"line {i}\n" for i in range(250)), encoding="utf-8")
    assert run("logs").output.splitlines() == [f"line {i}" for i in range(150, 250)]


def test_a_service_that_keeps_its_log_takes_no_other(windows: FakeCommands) -> None:
    done = run("install", "--yes", "--", "--log-file", "mine.log")
    assert "remove --log-file" in str(done.exception)
    assert not windows.calls
