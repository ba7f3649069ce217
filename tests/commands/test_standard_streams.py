"""Output that is closed, full or read by nobody; and an account without a home directory."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from clairvoyant_cli import main as program
from clairvoyant_cli.errors import ExitCode

COMMAND = f"{sys.executable} -m clairvoyant_cli"


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("words", ["--help", "predict x", "predict x --json"])
def test_full_output_is_one_line(words: str) -> None:
    done = subprocess.run(f"{COMMAND} {words} >/dev/full", shell=True, capture_output=True, text=True)  # noqa: S602
    assert done.returncode == ExitCode.FAILURE
    assert done.stderr == "clairvoyant: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["--help", "predict x --json"])
def test_closed_output_is_no_error(words: str, closed: str) -> None:
    done = subprocess.run(f"{COMMAND} {words} {closed}", shell=True, capture_output=True, text=True)  # noqa: S602
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    script = f"({COMMAND} predict x; echo $? >{tmp_path / 'rc'}) | exec 0<&-"
    done = subprocess.run(script, shell=True, capture_output=True, text=True)  # noqa: S602
    assert done.stderr == ""
    assert (tmp_path / "rc").read_text() in ("0\n", "1\n")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            RuntimeError("could not determine the home directory for '~'"),
            "this account has no home directory; give --db",
        ),
        (
            FileNotFoundError(errno.ENOENT, "none"),
            "the current folder no longer exists; change to another one",
        ),
    ],
)
def test_a_folder_that_is_missing_is_one_line(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cli(**options: bool) -> None:
        raise error

    monkeypatch.setattr(program, "cli", cli)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == ExitCode.FAILURE
    told = capsys.readouterr().err
    assert told.startswith(f"clairvoyant: {line}")
    assert told.count("\n") == 1
