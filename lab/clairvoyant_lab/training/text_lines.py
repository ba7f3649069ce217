"""Reads the lines of a text file, plain or gzipped, within bounds."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from predictor.errors import ModelError

LONGEST_LINE = 16 << 20
MOST_CHARACTERS = 256 << 20
MOST_LINES = 2_000_000  # a gzipped file may be a thousand times as large as on disk


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file with their ends; ModelError if it cannot be read, or is too large."""
    lines, left = 0, MOST_CHARACTERS
    try:
        with _open(path) as file:
            while line := file.readline(LONGEST_LINE):
                lines, left = lines + 1, left - len(line)
                if len(line) == LONGEST_LINE or left < 0 or lines > MOST_LINES:
                    raise ModelError(
                        f"{path} has more than {MOST_LINES:,} lines or {MOST_CHARACTERS >> 20} MiB, "
                        f"or a line of more than {LONGEST_LINE >> 20} MiB; take a part of it"
                    )
                yield line
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelError(f"{path} cannot be read: {why}") from None


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")
