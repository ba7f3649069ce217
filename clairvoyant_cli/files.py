"""Files that somebody names: read only where they are regular files whose size fits, and without waiting.

A FIFO without a writer would keep the program waiting, and a device may never end.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.system import open_without_waiting

SMALL_BYTES = 4 << 20
"""Settings, keys and clients: some 30,000 clients, for which nobody is served for a second."""

LARGE_BYTES = 256 << 20
"""Prompts, traces and profiles."""


@contextmanager
def opened(path: Path, what: str, most_bytes: int | None = SMALL_BYTES) -> Iterator[BinaryIO]:
    """Open a file for reading, which errors call by `what`; ClairvoyantError if it cannot be read.

    It must be a regular file of at most `most_bytes`, any size for None.
    """
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ClairvoyantError(
                    f"{what} {path} is not a regular file; copy it into one", ExitCode.USAGE
                )
            if most_bytes is not None and found.st_size > most_bytes:
                raise _too_large(path, what, most_bytes)
            yield file
    except OSError as error:
        raise ClairvoyantError(
            f"cannot read {what} {path}: {error.strerror or error}", ExitCode.USAGE
        ) from None


def read_file(path: Path, what: str, most_bytes: int = SMALL_BYTES) -> bytes:
    """Return what a file holds; ClairvoyantError as for `opened`."""
    with opened(path, what, most_bytes) as file:
        return read_all(file, path, what, most_bytes)


def read_all(file: BinaryIO, path: Path, what: str, most_bytes: int = SMALL_BYTES) -> bytes:
    """Return what is left in a file that may grow, or not tell its size; ClairvoyantError if it is more."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_large(path, what, most_bytes)
    return data


def text_of(data: bytes, path: Path, what: str) -> str:
    """Return the text of a file; ClairvoyantError with the line's number where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ClairvoyantError(
            f"{what} {path}, line {line}, is not UTF-8 text; write it as such", ExitCode.USAGE
        ) from None


def refuse_pipe(path: Path) -> None:
    """Raise ClairvoyantError if a file to be written is a pipe, but for those that are open already, such as
    /dev/stdout: nobody may ever read it. OSError where its place cannot be looked at.
    """
    if path.exists() and stat.S_ISFIFO(path.stat().st_mode) and path.parts[1:2] not in (("dev",), ("proc",)):
        raise ClairvoyantError(f"{path} is a pipe; name a regular file to write", ExitCode.USAGE)


def _too_large(path: Path, what: str, most_bytes: int) -> ClairvoyantError:
    return ClairvoyantError(
        f"{what} {path} is larger than {most_bytes >> 20} MiB; is it the right one?", ExitCode.USAGE
    )
