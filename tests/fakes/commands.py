"""Our commands, run in this process; and those of the system, replaced by scripts that note their calls."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    """Run a command that must succeed."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: object) -> str:
    """Run a command that must be refused with one line; return it."""
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert isinstance(result.exception, ClairvoyantError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


class FakeCommands:
    """A directory in front of PATH; `calls` lists the command lines, in order."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.log = directory / "calls.log"
        directory.mkdir()
        monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")

    def add(self, *names: str, fails_on: str = "", prints: str = "") -> None:
        """Add commands; one whose arguments contain `fails_on` exits with 3."""
        for name in names:
            script = self.directory / name
            fails = f'case "$*" in *{fails_on}*) exit 3;; esac\n' if fails_on else ""
            script.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.log}\nprintf "%s" "{prints}"\n{fails}')
            script.chmod(0o755)

    @property
    def calls(self) -> Sequence[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []
