"""The tables as files. Prompt text never goes into one."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from tui.snapshot import FinishedRequest, QueuedRequest, RunningRequest, Snapshot

FORMATS = (
    ("queue", "the queue as CSV"),
    ("running", "what runs as CSV"),
    ("recent", "what has ended as CSV"),
    ("snapshot", "everything as JSON"),
)

WORDS = "words:"
"""How a feature of a prediction begins that quotes the prompt."""

PromptedT = TypeVar("PromptedT", QueuedRequest, RunningRequest)
RequestT = TypeVar("RequestT", QueuedRequest, RunningRequest, FinishedRequest)

_LEFT_OUT = ("prompt", "moves", "predicted")


def without_prompts(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot as it may be written down: no prompt, and no word of one among what drove a
    prediction.
    """
    return replace(
        snapshot,
        running=tuple(_without_prompt(request) for request in snapshot.running),
        queue=tuple(_without_prompt(request) for request in snapshot.queue),
        recent=tuple(_without_words(request) for request in snapshot.recent),
    )


def _without_prompt(request: PromptedT) -> PromptedT:
    request = _without_words(request)
    return request if request.prompt is None else replace(request, prompt=None)


def _without_words(request: RequestT) -> RequestT:
    features = request.predicted.features
    wordless = tuple(each for each in features if not each[0].startswith(WORDS))
    if len(wordless) == len(features):
        return request
    return replace(request, predicted=replace(request.predicted, features=wordless))


def export(snapshot: Snapshot, what: str, folder: Path) -> Path:
    """Write one of FORMATS into `folder` and return the file. OSError where that cannot be written."""
    stem = f"clairvoyant-{what}-{int(snapshot.taken_at)}"
    if what == "snapshot":
        path = folder / f"{stem}.json"
        path.write_text(json.dumps(asdict(without_prompts(snapshot)), indent=1), encoding="utf-8")
        return path
    path = folder / f"{stem}.csv"
    rows: Iterable[QueuedRequest | RunningRequest | FinishedRequest] = getattr(snapshot, what)
    _write(path, [_flat(row) for row in rows])
    return path


def _flat(request: QueuedRequest | RunningRequest | FinishedRequest) -> Mapping[str, object]:
    """Spread the prediction over columns of its own."""
    row = {name: value for name, value in asdict(request).items() if name not in _LEFT_OUT}
    told = asdict(request.predicted)
    row |= {f"predicted_{name}": value for name, value in told.items() if name != "features"}
    return {name: _inert(value) for name, value in row.items()}


def _inert(value: object) -> object:
    """A client may name itself `=HYPERLINK(...)`; a spreadsheet is to read that as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


def _write(path: Path, rows: list[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        if not rows:
            return
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
