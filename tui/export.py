"""Writes the tables to files, without prompt text."""

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from clairvoyant_cli.state.encoding import without_prompts
from clairvoyant_cli.state.snapshot import FinishedRequest, QueuedRequest, RunningRequest, Snapshot

FORMATS = (
    ("queue", "the queue as CSV"),
    ("running", "running requests as CSV"),
    ("recent", "ended requests as CSV"),
    ("snapshot", "everything as JSON"),
)

_LEFT_OUT = ("prompt", "moves", "predicted")


def export(snapshot: Snapshot, what: str, folder: Path) -> Path:
    """Write one of FORMATS into `folder` and return the file. OSError where that cannot be written."""
    stem = f"clairvoyant-{what}-{int(snapshot.taken_at)}"
    if what == "snapshot":
        path = folder / f"{stem}.json"
        path.write_text(json.dumps(asdict(without_prompts(snapshot)), indent=1), encoding="utf-8")
        return path
    path = folder / f"{stem}.csv"
    rows: list[Mapping[str, object]] = [_flat(row) for row in getattr(snapshot, what)]
    with path.open("w", encoding="utf-8", newline="") as file:
        if rows:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
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
