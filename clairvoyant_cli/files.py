"""Reads files that the user names: only regular files of limited size, never a pipe or device."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.system import open_without_waiting

SMALL_BYTES = 4 << 20  # limit of settings, keys and clients: some 30,000 clients, parsed within a second
LARGE_BYTES = 256 << 20  # limit of prompts, traces and profiles


@contextmanager
def opened(path: Path, what: str, most_bytes: int = SMALL_BYTES) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most_bytes`; ClairvoyantError names it `what`."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise InputError(f"{what} {path} is not a regular file; copy it into one")
            if found.st_size > most_bytes:
                raise _too_large(path, what, most_bytes)
            yield file
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror or error}") from None


def read_file(path: Path, what: str, most_bytes: int = SMALL_BYTES) -> bytes:
    """Return the content of a file; ClairvoyantError as in `opened`."""
    with opened(path, what, most_bytes) as file:
        return read_all(file, path, what, most_bytes)


def read_all(file: BinaryIO, path: Path, what: str, most_bytes: int = SMALL_BYTES) -> bytes:
    """Read a stream of unknown size; ClairvoyantError if it exceeds `most_bytes`."""
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_large(path, what, most_bytes)
    return data


def text_of(data: bytes, path: Path, what: str) -> str:
    """Decode UTF-8; ClairvoyantError with the line number if it is invalid."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{what} {path}, line {line}, is not UTF-8; convert it") from None


def refuse_pipe(path: Path) -> None:
    """Raise ClairvoyantError if an output file is a pipe, except open ones such as /dev/stdout."""
    if path.exists() and stat.S_ISFIFO(path.stat().st_mode) and path.parts[1:2] not in (("dev",), ("proc",)):
        raise InputError(f"{path} is a pipe; name a regular file")


def _too_large(path: Path, what: str, most_bytes: int) -> ClairvoyantError:
    return InputError(f"{what} {path} is larger than {most_bytes >> 20} MiB; is it the right one?")
