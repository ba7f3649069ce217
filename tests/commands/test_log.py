"""The log file of `serve`: its owner's alone, rotated, and never a reason to lose a line."""

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from clairvoyant_cli import __version__
from clairvoyant_cli.commands.log import OLD_LOGS, LogFile, log_of
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError
from tests.fakes.daemon_process import daemon_process
from tests.fakes.llamacpp_server import free_port


def write(handler: LogFile, *lines: str) -> None:
    for line in lines:
        handler.handle(logging.LogRecord("clairvoyant", logging.INFO, "", 0, line, None, None))


def test_it_is_rotated_and_every_file_is_its_owners_alone(tmp_path: Path) -> None:
    handler = LogFile(tmp_path / "log", max_bytes=20)
    write(handler, *(f"größer als {i}" for i in range(9)))
    handler.close()
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["log", *(f"log.{i}" for i in range(1, OLD_LOGS + 1))]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert (tmp_path / "log").read_text(encoding="utf-8") == "größer als 8\n"


def test_where_a_file_cannot_be_set_aside_the_lines_go_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = LogFile(tmp_path / "log", max_bytes=20)
    tries: list[str] = []

    def refuse(source: str, dest: str) -> None:
        tries.append(source)
        raise PermissionError(32, "in use")

    with monkeypatch.context() as windows:
        windows.setattr(handler, "rotate", refuse)
        write(handler, *(f"line number {i}" for i in range(6)))
    assert (tmp_path / "log").read_text().splitlines() == [f"line number {i}" for i in range(6)]
    assert len(tries) < 6, "it is tried again only after another so many bytes"
    write(handler, "x" * 200)
    handler.close()
    assert (tmp_path / "log").read_text() == "x" * 200 + "\n"


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = ServeConfig(log_file=str(tmp_path / "file" / "log"))
    with pytest.raises(ClairvoyantError, match="cannot write the log"), log_of(config):
        raise AssertionError("not reached")


def test_a_log_on_a_full_disk_loses_its_lines_and_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    handler = LogFile(tmp_path / "log")
    write(handler, "one", "two", "three")
    with suppress(OSError):
        handler.close()
    [said] = capsys.readouterr().err.splitlines()
    assert said == f"clairvoyant: cannot write the log {tmp_path / 'log'}: No space left on device"


def test_a_log_is_not_written_into_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    with (
        pytest.raises(ClairvoyantError, match="is a pipe"),
        log_of(ServeConfig(log_file=str(tmp_path / "log"))),
    ):
        raise AssertionError("not reached")


def test_a_daemon_that_is_asked_to_end_says_all_of_it_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    backend = f"http://127.0.0.1:{free_port()}"
    with daemon_process(backend, "--log-file", str(log), home=tmp_path) as daemon:
        command = [sys.executable, "-m", "clairvoyant_cli", "service", "end", "--log-file", str(log)]
        ending = subprocess.Popen(command)
        assert daemon.wait() == 0
        assert ending.wait(30) == 0
    text = log.read_text(encoding="utf-8")
    assert f" I clairvoyant {__version__}: {daemon.base_url} -> " in text
    assert text.endswith(" I stopped\n")
    assert not [line for line in daemon.lines if "stopped" in line]


def test_what_kept_a_daemon_from_starting_is_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ["--predictor", str(tmp_path / "none"), "--log-file", str(log)]
    done = subprocess.run(
        [sys.executable, "-m", "clairvoyant_cli", "serve", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.partition(": ")[2].strip() in log.read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_daemon_starts_with_standard_error_on_a_full_disk(tmp_path: Path) -> None:
    log = tmp_path / "log"
    servers = ["--backend", f"http://127.0.0.1:{free_port()}", "--listen", "127.0.0.1:0", "--no-self-test"]
    files = ["--db", str(tmp_path / "db"), "--log-file", str(log)]
    command = [sys.executable, "-m", "clairvoyant_cli", "serve", *servers, *files]
    with Path("/dev/full").open("w") as full, subprocess.Popen(command, stderr=full) as daemon:
        while daemon.poll() is None and not (log.exists() and " -> " in log.read_text(encoding="utf-8")):
            continue
        daemon.terminate()
    assert daemon.returncode == 0
