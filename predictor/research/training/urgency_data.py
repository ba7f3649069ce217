"""Texts and their levels of urgency from files: JSON lines, plain or gzipped, or CSV."""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from predictor.errors import ModelError
from predictor.research.training.dataset import numbered_lines
from predictor.text_lines import lines_of

LEVELS = 5

CSV_CHARACTERS = 1 << 20
"""Of a field of a CSV file."""


@dataclass(frozen=True, slots=True)
class Case:
    """A text and its level. Cases of one `source` are alike, and judged together or not at all; `weight` is
    what one counts for in training.
    """

    text: str
    level: int
    source: str = ""
    weight: float = 1.0


def read_cases(path: Path) -> list[Case]:
    """Read a file of cases; ModelError with the line's number where one is none.

    A JSON line holds `prompt` and either `urgency`, 0 (immediate) to 4, or `acuity`, 1 to 5 as triage scales
    count. A CSV file names its columns in the first line; where there is no `prompt`, the first is the text.
    """
    rows = _csv(path) if path.suffix == ".csv" else _json(path)
    cases = []
    for number, row in rows:
        text, level = _text(row), _level(row)
        if text is None or level is None:
            raise ModelError(
                f"{path}, line {number}: expected a `prompt` and `urgency` (0 to 4) or `acuity` (1 to 5)"
            )
        cases.append(Case(text, level, str(row.get("source") or text)))
    if not cases:
        raise ModelError(f"{path} holds no cases")
    return cases


def _json(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in numbered_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        yield number, row if isinstance(row, dict) else {}


def _csv(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    csv.field_size_limit(CSV_CHARACTERS)
    try:
        reader = csv.DictReader(lines_of(path))
        for row in reader:
            first = (reader.fieldnames or ("",))[0]
            yield reader.line_num, row if "prompt" in row else {**row, "prompt": row[first]}
    except csv.Error as error:
        raise ModelError(f"{path} cannot be read: {error}") from None


def _text(row: Mapping[str, object]) -> str | None:
    text = row.get("prompt")
    return text if isinstance(text, str) and text.strip() else None


def _level(row: Mapping[str, object]) -> int | None:
    for name, first in (("urgency", 0), ("acuity", 1)):
        try:
            level = float(str(row[name])) - first
        except (KeyError, ValueError):
            continue
        return int(level) if level in range(LEVELS) else None
    return None
