"""What a check says: how bad, about what, in words, and the command that fixes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from clairvoyant_cli.errors import ExitCode


class Level(IntEnum):
    """How bad a finding is; the worst one decides the exit code."""

    OK = 0
    NOTE = 1
    WARNING = 2
    BROKEN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's. `fix` is a command to run or a setting to change; it may be empty."""

    level: Level
    topic: str
    text: str
    fix: str = ""


def exit_code_of(findings: Sequence[Finding]) -> ExitCode:
    """Return what the process says in the end."""
    worst = max((finding.level for finding in findings), default=Level.OK)
    if worst is Level.BROKEN:
        return ExitCode.FAILURE
    return ExitCode.WARNINGS if worst is Level.WARNING else ExitCode.OK


def ok(topic: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(Level.OK, topic, text)


def note(topic: str, text: str, fix: str = "") -> Finding:
    """Return a finding worth knowing."""
    return Finding(Level.NOTE, topic, text, fix)


def warning(topic: str, text: str, fix: str) -> Finding:
    """Return a finding that costs something."""
    return Finding(Level.WARNING, topic, text, fix)


def broken(topic: str, text: str, fix: str) -> Finding:
    """Return a finding that keeps the proxy from working."""
    return Finding(Level.BROKEN, topic, text, fix)
