"""The error class for users, and the exit codes."""

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """Exit codes, part of the command-line interface. `about` describes them."""

    about: str

    def __new__(cls, code: int, about: str) -> Self:
        """Create a code with its description."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.about = about
        return made

    OK = 0, "Success; `doctor` found no problem."
    FAILURE = 1, "Failure, with one line on stderr; `doctor` found something broken; Ctrl-C."
    USAGE = 2, "Invalid flag, setting or input file; nothing was done."
    UNREACHABLE = 3, "The daemon or the LLM server does not answer."
    WARNINGS = 4, "`doctor` found warnings only."
    NOT_FOUND = 127, "`run`: there is no such command. Otherwise it exits as the command did."


def printable(text: str, replacement: str = "·") -> str:
    """Return a text as one safe line for a terminal, with a replacement for each unprintable character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else replacement for c in text)


class ClairvoyantError(Exception):
    """An error that the user can fix. The message is one line and says how."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class InputError(ClairvoyantError):
    """An invalid flag, setting or input file; nothing was done."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.USAGE)
