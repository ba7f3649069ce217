"""One error for what a user can mend, and the exit codes scripts may rely on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says when it ends; part of the command-line interface."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNREACHABLE = 3
    WARNINGS = 4


class ClairvoyantError(Exception):
    """Something a user can mend. The message is one line and says what to do."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
