"""The result of a check: level, topic, text and the command that fixes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from clairvoyant_cli.errors import ExitCode


class Level(IntEnum):
    """Severity; the worst finding decides the exit code."""

    OK = 0
    NOTE = 1
    WARNING = 2
    BROKEN = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `fix` is a command to run or a setting to change, or empty."""

    level: Level
    topic: str
    text: str
    fix: str = ""


def exit_code_of(findings: Sequence[Finding]) -> ExitCode:
    """Return the exit code of the doctor."""
    worst = max((finding.level for finding in findings), default=Level.OK)
    return {Level.BROKEN: ExitCode.FAILURE, Level.WARNING: ExitCode.WARNINGS}.get(worst, ExitCode.OK)


def ok(topic: str, text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(Level.OK, topic, text)


def note(topic: str, text: str, fix: str = "") -> Finding:
    """Return a finding for information."""
    return Finding(Level.NOTE, topic, text, fix)


def warning(topic: str, text: str, fix: str) -> Finding:
    """Return a finding about a disadvantage."""
    return Finding(Level.WARNING, topic, text, fix)


def broken(topic: str, text: str, fix: str) -> Finding:
    """Return a finding that keeps the proxy from working."""
    return Finding(Level.BROKEN, topic, text, fix)
