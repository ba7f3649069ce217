"""One error for what a user can mend, and the exit codes scripts may rely on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says when it ends; part of the command-line interface."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNREACHABLE = 3
    WARNINGS = 4


def printable(text: str) -> str:
    """Return a text as one line that a terminal only shows: a dot stands for what cannot be printed."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "·" for c in text)


class ClairvoyantError(Exception):
    """Something a user can mend. The message is one line and says what to do."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
