"""One error for what a user can mend, and the exit codes scripts may rely on."""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """What the process says when it ends; part of the command-line interface. `about` says when."""

    about: str

    def __new__(cls, code: int, about: str) -> Self:
        """Make a code of what it means."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.about = about
        return made

    OK = 0, "It is done; `doctor` found nothing."
    FAILURE = 1, "It could not be done, and one line says why; `doctor` found something broken; Ctrl-C."
    USAGE = 2, "A flag, a setting or a file that was named cannot be what was meant: nothing was begun."
    UNREACHABLE = 3, "Nothing answers at the address of the daemon or of the LLM server."
    WARNINGS = 4, "`doctor` found warnings, and nothing broken."


def printable(text: str) -> str:
    """Return a text as one line that a terminal only shows: a dot stands for what cannot be printed."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "·" for c in text)


class ClairvoyantError(Exception):
    """Something a user can mend. The message is one line and says what to do."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
