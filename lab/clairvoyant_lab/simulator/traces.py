"""Reads recorded requests as workloads: your own history, the Azure and the Mooncake traces.

A file is CSV with a header, or JSON lines, and may be gzipped. Columns may have any of the names below.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import LARGE_BYTES, opened
from clairvoyant_lab.simulator.workload import LONG, MEDIUM, SHORT, Predictions, Workload
from clairvoyant_lab.training.text_lines import lines_of
from predictor.errors import ModelError
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS

ARRIVAL = ("arrival_s", "at", "timestamp_ms", "timestamp", "TIMESTAMP")
TOKENS = ("output_tokens", "tokens", "completion_tokens", "output_length", "GeneratedTokens")
PROMPT_TOKENS = ("prompt_tokens", "input_length", "ContextTokens")
MILLISECONDS = {"timestamp_ms", "timestamp"}
"""Columns in milliseconds; `timestamp` is Mooncake's."""


@dataclass(frozen=True, slots=True)
class History:
    workload: Workload
    predictions: Predictions | None = None


Row = Mapping[str, object]


def read_history(
    path: Path, *, prefill_rate: float = 1000.0, decode_rate: float = 40.0, limit: int | None = None
) -> History:
    """Read a file of recorded requests; ClairvoyantError if it cannot be read or lacks a required column.

    The answer's tokens or `service_s` are required. The rates are those of the backend in tokens per second,
    for files without `service_s`. Without arrival times all requests arrive at once. `client`, `urgency`,
    `p_long` and `predicted_tokens` are optional.
    """
    rows = list(rows_of(path, limit))
    if not rows:
        raise ClairvoyantError(f"{path} holds no requests", ExitCode.USAGE)
    try:
        return _history(rows, prefill_rate, decode_rate)
    except KeyError as error:
        raise ClairvoyantError(
            f"cannot use {path}: a request lacks {error.args[0]}", ExitCode.USAGE
        ) from error
    except (TypeError, ValueError) as error:
        raise ClairvoyantError(f"cannot use {path}: {error}", ExitCode.USAGE) from error


def rows_of(path: Path, limit: int | None) -> Iterator[Row]:
    """Yield the rows of CSV or JSON Lines; ClairvoyantError if the file cannot be read."""
    with opened(path, "the requests", LARGE_BYTES):
        lines = lines_of(path)
    rows: Iterator[Row]
    if ".json" in path.name:
        rows = (json.loads(line) for line in lines if line.strip())
    else:
        rows = csv.DictReader(lines)
    try:
        yield from islice(rows, limit)
    except ModelError as error:
        raise ClairvoyantError(str(error), ExitCode.USAGE) from error
    except (ValueError, csv.Error, RecursionError) as error:
        raise ClairvoyantError(f"{path} is neither CSV nor JSON lines: {error}", ExitCode.USAGE) from error


def _history(rows: list[Row], prefill_rate: float, decode_rate: float) -> History:
    first = rows[0]
    arrival_s = _arrivals(rows)
    prompt_tokens = _column(rows, _known(first, PROMPT_TOKENS), 0.0)
    named = _known(first, TOKENS)
    if named is None and "service_s" not in first:
        raise KeyError(f"service_s or one of {', '.join(TOKENS)}")
    tokens = _column(rows, named, 0.0)
    if "service_s" in first:
        service_s = _column(rows, "service_s", 0.0)
        tokens = tokens if named else service_s * decode_rate
    else:
        service_s = prompt_tokens / prefill_rate + tokens / decode_rate
    order = np.argsort(arrival_s, kind="stable")
    kind = np.where(tokens < SHORT_BELOW_TOKENS, SHORT, np.where(tokens >= LONG_FROM_TOKENS, LONG, MEDIUM))
    clients: dict[str, int] = {}
    client = np.array([clients.setdefault(str(row.get("client", "")), len(clients)) for row in rows])
    urgency = _column(rows, "urgency" if "urgency" in first else None, 2.0).astype(np.int64)
    workload = Workload(
        arrival_s[order] - arrival_s[order[0]],
        np.maximum(service_s, 1e-3)[order],
        kind.astype(np.int64)[order],
        tokens[order],
        prompt_tokens[order],
        client[order],
        urgency=urgency[order],
    )
    return History(workload, _recorded_forecast(rows, workload, order.tolist()))


def _recorded_forecast(rows: list[Row], workload: Workload, order: list[int]) -> Predictions | None:
    first = rows[0]
    if "predicted_tokens" not in first:
        return None
    tokens = _column(rows, "predicted_tokens", 0.0)[order]
    seconds_per_token = float(workload.service_s.sum() / max(float(workload.tokens.sum()), 1.0))
    p_long = (
        _column(rows, "p_long", 0.5)[order] if "p_long" in first else tokens / max(float(tokens.max()), 1.0)
    )
    cost_s = tokens * seconds_per_token
    return Predictions(p_long, cost_s, cost_s, tokens)


def _arrivals(rows: list[Row]) -> np.ndarray:
    named = _known(rows[0], ARRIVAL)
    if named is None or not str(rows[0][named])[:1].isdigit():
        return np.zeros(len(rows))
    if named == "TIMESTAMP":
        return np.array([_moment(str(row[named])) for row in rows])
    seconds = _column(rows, named, 0.0)
    return seconds / 1000.0 if named in MILLISECONDS else seconds


def _moment(text: str) -> float:
    """Return the seconds of an Azure time stamp, which has seven decimals."""
    whole, _, fraction = text.partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()
    return moment + (float(f"0.{fraction}") if fraction else 0.0)


def _known(row: Row, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in row), None)


def _column(rows: list[Row], name: str | None, missing: float) -> np.ndarray:
    if name is None:
        return np.full(len(rows), missing)
    column = np.array([float(str(row[name])) for row in rows])
    if not np.isfinite(column).all():
        raise ValueError(f"{name} is not a number everywhere")
    return column


def mean_by_class(workload: Workload) -> tuple[float, float]:
    """Return the mean service times of short requests and of all others, in seconds.

    The median stands in for an empty class.
    """
    short = workload.kind == SHORT
    middle = float(np.median(workload.service_s))
    short_s = float(workload.service_s[short].mean()) if short.any() else middle
    long_s = float(workload.service_s[~short].mean()) if not short.all() else middle
    return short_s, max(long_s, short_s)
