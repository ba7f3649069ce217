"""The result of a check: level, topic, text and the command that fixes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from clairvoyant_cli.errors import ExitCode


class Level(IntEnum):
    """Severity; the worst finding decides the exit code."""

    OK, NOTE, WARNING, BROKEN = range(4)


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `fix` is a command to run or a setting to change, or empty."""

    level: Level
    topic: str
    text: str
    fix: str = ""


def exit_code_of(findings: Sequence[Finding]) -> ExitCode:
    worst = max((finding.level for finding in findings), default=Level.OK)
    return {Level.BROKEN: ExitCode.FAILURE, Level.WARNING: ExitCode.WARNINGS}.get(worst, ExitCode.OK)


ok = partial(Finding, Level.OK)
note = partial(Finding, Level.NOTE)
warning = partial(Finding, Level.WARNING)
broken = partial(Finding, Level.BROKEN)
