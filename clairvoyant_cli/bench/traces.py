"""Recorded arrivals: Azure's CSV, Mooncake's JSONL, and plain JSONL of one's own; each may be gzipped."""

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec
from msgspec import DecodeError

from clairvoyant_cli.errors import ClairvoyantError, ExitCode


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request of a trace: when it came, in seconds, and how many tokens answered it."""

    at_s: float
    tokens: int


def read_trace(path: Path, count: int) -> list[Recorded]:
    """Read the first `count` requests of a trace, in order of arrival.

    Known are Azure's LLM inference trace (TIMESTAMP, GeneratedTokens), Mooncake's (timestamp in ms,
    output_length) and JSONL lines {"at": seconds, "tokens": answer length}.
    """
    try:
        with _open(path) as file:
            reader = _csv_rows if path.name.removesuffix(".gz").endswith(".csv") else _json_rows
            recorded = sorted(islice(reader(file), count), key=lambda each: each.at_s)
    except OSError as error:
        raise ClairvoyantError(f"cannot read the trace {path}: {error}", ExitCode.USAGE) from None
    except (KeyError, ValueError, TypeError, EOFError, OverflowError, RecursionError, DecodeError) as error:
        raise ClairvoyantError(
            f'{path} is no trace that is known ({error}); JSONL lines {{"at": seconds, "tokens": n}} are',
            ExitCode.USAGE,
        ) from None
    if len(recorded) < 2:
        raise ClairvoyantError(f"{path} holds fewer than two requests", ExitCode.USAGE)
    return recorded


def span_s(recorded: list[Recorded]) -> float:
    """Return the seconds from the first arrival to the last; a microsecond at least."""
    return max(recorded[-1].at_s - recorded[0].at_s, 1e-6)


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast("TextIO", gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def _csv_rows(file: TextIO) -> Iterator[Recorded]:
    for row in csv.DictReader(file):
        # Azure writes seven decimals of a second; Python reads six.
        moment = datetime.fromisoformat(row["TIMESTAMP"][:26])
        yield Recorded(moment.timestamp(), int(row["GeneratedTokens"]))


def _json_rows(file: TextIO) -> Iterator[Recorded]:
    for line in file:
        if line.strip():
            row: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
            if "output_length" in row:
                yield Recorded(row["timestamp"] / 1000, int(row["output_length"]))
            else:
                yield Recorded(float(row["at"]), int(row["tokens"]))
