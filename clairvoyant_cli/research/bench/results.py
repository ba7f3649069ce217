"""What a bench has measured: cells of answers, and the file that lets an interrupted bench go on."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import LARGE_BYTES, read_file
from clairvoyant_cli.research.bench.load import Call

JsonObject = dict[str, Any]


UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding a line of another file raises: the last two for no UTF-8, and for endless nesting."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question and how it went; seconds of the model's time (see `Settings.speedup`), no text.

    `kind` is the question's length class; `predicted_tokens` is None where no proxy predicted anything, the
    times are None where the call failed, which `error` tells.
    """

    kind: str
    tokens: int
    at_s: float
    sojourn_s: float | None
    ttft_s: float | None
    predicted_tokens: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, call: Call, at_s: float, speedup: float) -> "Answer":
        """Return the record of a call that has ended."""
        sojourn_s, ttft_s = call.sojourn_s, call.ttft_s
        return cls(
            kind=call.question.length_class.value,
            tokens=call.tokens,
            at_s=at_s,
            sojourn_s=None if sojourn_s is None else sojourn_s * speedup,
            ttft_s=None if ttft_s is None else ttft_s * speedup,
            predicted_tokens=call.predicted_tokens,
            error=call.error,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm's answers to one run of one load. `took_s` is wall-clock time.

    `cuts`, `resumes` and `recomputed_tokens` are None where the policy cuts nothing; `busy_s` is how long
    slots were held, in seconds of the model's time, None where the daemon is somebody else's.
    """

    load: str
    run: int
    arm: str
    took_s: float
    tau_firings: int
    answers: tuple[Answer, ...]
    cuts: int | None = None
    resumes: int | None = None
    recomputed_tokens: int | None = None
    busy_s: float | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it from the other cells."""
        return self.load, self.run, self.arm


class _Head(msgspec.Struct, tag_field="is", tag="clairvoyant bench"):
    settings: JsonObject


@dataclass(slots=True)
class Ledger:
    """The finished cells, kept in a file as they are finished, if there is one."""

    cells: dict[tuple[str, int, str], Cell]
    path: Path | None = None

    def add(self, cell: Cell) -> None:
        """Enter a cell."""
        self.cells[cell.key] = cell
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(cell) + b"\n")


def settings_in(path: Path | None) -> JsonObject:
    """Return the settings an unfinished bench in this file was begun with; none if there is none."""
    if path is None or not path.exists():
        return {}
    try:
        return msgspec.json.decode(_lines(path)[0], type=_Head).settings
    except (IndexError, *UNREADABLE):
        return {}


def open_ledger(path: Path | None, settings: Mapping[str, Any]) -> Ledger:
    """Return the ledger of a bench, with the cells an earlier one with the same settings has finished."""
    if path is None:
        return Ledger({})
    plain: JsonObject = msgspec.json.decode(msgspec.json.encode(settings))
    try:
        lines = _lines(path) if path.exists() else []
        if not lines:
            path.write_bytes(msgspec.json.encode(_Head(plain)) + b"\n")
            return Ledger({}, path)
        head = msgspec.json.decode(lines[0], type=_Head)
        cells = _cells(lines[1:])
        # Whatever was cut off goes, so that the next cell begins a line of its own.
        path.write_bytes(b"".join(line + b"\n" for line in lines[: 1 + len(cells)]))
    except OSError as error:
        raise ClairvoyantError(f"cannot keep the bench in {path}: {error.strerror}", ExitCode.USAGE) from None
    except UNREADABLE as error:
        raise ClairvoyantError(f"{path} is no unfinished bench: {error}", ExitCode.USAGE) from None
    for key in plain.keys() | head.settings.keys():
        if plain.get(key) != head.settings.get(key):
            raise ClairvoyantError(
                f"{path} holds a bench with {key} {head.settings.get(key)!r}, not {plain.get(key)!r}; "
                "give it another --resume file",
                ExitCode.USAGE,
            )
    return Ledger({cell.key: cell for cell in cells}, path)


def _lines(path: Path) -> list[bytes]:
    return read_file(path, "the unfinished bench", LARGE_BYTES).splitlines()


def _cells(lines: list[bytes]) -> list[Cell]:
    cells = []
    for number, line in enumerate(lines):
        try:
            cells.append(msgspec.json.decode(line, type=Cell))
        except UNREADABLE:
            # The last line may have been cut off with the bench that was writing it.
            if number != len(lines) - 1:
                raise
    return cells
