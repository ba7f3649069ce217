"""Reads requests with answer lengths (JSON lines, plain or gzipped) or levels of urgency (also CSV)."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clairvoyant_lab.training.text_lines import lines_of
from predictor.errors import ModelError
from predictor.lexical.context import step_context
from predictor.record import PromptView

CHARACTERS_A_TOKEN = 4  # the papers' run-time approximation, for data that counts characters only

EXPECTED = "expected an object with `output_tokens` and `body`, `messages` or `prompt`"

ViewOf = Callable[[str], PromptView]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Requests and their answers. `tokens` has shape (requests, models), NaN where a model gave no answer."""

    name: str
    views: list[PromptView]
    models: list[str]
    tokens: npt.NDArray[np.float64]

    @property
    def prompts(self) -> list[str]:
        """The prompt of each request."""
        return [view.prompt for view in self.views]

    def typical_tokens(self) -> npt.NDArray[np.float64]:
        """Return the median over the models for each request, in tokens."""
        median: npt.NDArray[np.float64] = np.nanmedian(self.tokens, axis=1)
        return median

    def rows(self, rows: Sequence[int]) -> "Dataset":
        """Return the dataset of some of its requests."""
        return Dataset(self.name, [self.views[row] for row in rows], self.models, self.tokens[list(rows)])


def read_dataset(path: Path, view_of: ViewOf | None = None) -> Dataset:
    """Read lines with a request and either `output_tokens`, or `tokens` or `chars` by model's name.

    A request is `body` or `messages`, read from the line by `view_of`, or `prompt`. Lines whose `body` is
    null are skipped: it was not recorded. Raises ModelError with the line's number for any other line that
    cannot be used; `view_of` raises it without the number.
    """
    views: list[PromptView] = []
    answers: list[dict[str, float]] = []
    for number, line in numbered_lines(path):
        try:
            row = json.loads(line)
            lengths, view = _lengths(row), _view(row, line, view_of)
        except ModelError as error:
            raise ModelError(f"{path}, line {number}: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ModelError(f"{path}, line {number}: {EXPECTED}") from None
        if lengths and view is not None:
            views.append(view)
            answers.append(lengths)
    if not views:
        raise ModelError(
            f"{path} holds no requests with their text and `output_tokens`; "
            "to record the text: clairvoyant serve --record-prompts"
        )
    models = sorted({model for lengths in answers for model in lengths})
    tokens = np.array([[lengths.get(model, np.nan) for model in models] for lengths in answers])
    return Dataset(path.name.split(".")[0], views, models, tokens)


def join(datasets: list[Dataset]) -> Dataset:
    """Return the requests of several datasets as one, each with the median of its answers."""
    return Dataset(
        name=", ".join(data.name for data in datasets),
        views=[view for data in datasets for view in data.views],
        models=[""],
        tokens=np.concatenate([data.typical_tokens() for data in datasets])[:, None],
    )


def is_read_by_words(view: PromptView) -> bool:
    """Return whether the words of a request's prompt are used to predict its answer's length."""
    return view.chore is None and step_context(view) is None


def _view(row: dict[str, object], line: str, view_of: ViewOf | None) -> PromptView | None:
    if view_of is not None and (row.get("body") is not None or "messages" in row):
        return view_of(line)
    if "prompt" not in row and "body" in row and row["body"] is None:
        return None
    if not isinstance(row["prompt"], str):
        raise TypeError("not a text")
    return PromptView(row["prompt"])


def _lengths(row: dict[str, object]) -> dict[str, float]:
    if "output_tokens" in row:
        return {"": _tokens(row["output_tokens"])}
    chars, tokens = row.get("chars"), row.get("tokens")
    if isinstance(chars, dict) and chars:
        return {model: _tokens(count) // CHARACTERS_A_TOKEN for model, count in chars.items()}
    if isinstance(tokens, dict):
        return {model: _tokens(count) for model, count in tokens.items()}
    raise KeyError("output_tokens")


def _tokens(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise TypeError("not a count")
    return float(value)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that hold anything, with their numbers; ModelError if it cannot be read."""
    return ((number, line) for number, line in enumerate(lines_of(path), start=1) if line.strip())


# -- levels of urgency ------------------------------------------------------------------------------------

LEVELS = 5

CSV_CHARACTERS = 1 << 20  # of a field of a CSV file


@dataclass(frozen=True, slots=True)
class Case:
    """A text and its level. Cases of one `source` share a fold; `weight` counts in training."""

    text: str
    level: int
    source: str = ""
    weight: float = 1.0


def read_cases(path: Path) -> list[Case]:
    """Read a file of cases; ModelError with the line's number where one is none.

    A row holds `prompt` and either `urgency` (0, immediate, to 4) or `acuity` (1 to 5). In a CSV file without
    a `prompt` column, the first column is the text.
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
