"""The results of a bench: cells of answers, and the file from which an interrupted bench resumes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import LARGE_BYTES, read_file
from clairvoyant_cli.research.bench.client import Call

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, in seconds of the model's time (see `Settings.speedup`); it contains no text.

    `kind` is the question's length class. Times are None if the call failed; `error` says why.
    """

    kind: str
    tokens: int
    at_s: float
    sojourn_s: float | None
    ttft_s: float | None
    predicted_tokens: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, call: Call, speedup: float) -> "Answer":
        """Return the record of a call that has ended."""
        sojourn_s, ttft_s = (
            None if time_s is None else time_s * speedup for time_s in (call.sojourn_s, call.ttft_s)
        )
        kind = call.question.length_class.value
        return cls(kind, call.tokens, call.at_s, sojourn_s, ttft_s, call.predicted_tokens, call.error)


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm's answers to one run of one load. `took_s` is wall-clock time.

    `counts` are what the daemon counted: "tau firings", "busy" (seconds that slots were held), and where the
    policy cuts answers "cuts", "resumes" and "tokens read again".
    """

    load: str
    run: int
    arm: str
    took_s: float
    answers: tuple[Answer, ...]
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str]:
        """The key of the cell."""
        return self.load, self.run, self.arm


class _Head(msgspec.Struct, tag_field="is", tag="clairvoyant bench"):
    settings: JsonObject


class Ledger:
    """The finished cells of a bench, appended to a file as JSON lines, if there is one.

    ClairvoyantError if the file cannot be used, or is that of a bench with other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings: JsonObject = msgspec.json.decode(msgspec.json.encode(settings))
        self.cells: dict[tuple[str, int, str], Cell] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        lines = read_file(path, "the unfinished bench", LARGE_BYTES).splitlines()
        if not lines:
            return
        try:
            head = msgspec.json.decode(lines[0], type=_Head).settings
            for number, line in enumerate(lines[1:], 2):
                try:
                    cell = msgspec.json.decode(line, type=Cell)
                except (msgspec.DecodeError, ValueError):
                    if number != len(lines):  # an interrupted bench may have cut its last line
                        raise
                else:
                    self.cells[cell.key] = cell
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ClairvoyantError(f"{path} is no unfinished bench: {error}", ExitCode.USAGE) from None
        for key, value in self.settings.items():
            if head.get(key) != value:
                raise ClairvoyantError(
                    f"{path} holds a bench with {key} {head.get(key)!r}, not {value!r}; "
                    "give it another --resume file",
                    ExitCode.USAGE,
                )
        self.settings = head

    def begin(self, **measured: float) -> None:
        """Write the settings, with what was measured first, and the cells read so far."""
        self.settings |= measured
        if self.path is not None:
            lines = (_Head(self.settings), *self.cells.values())
            try:
                self.path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            except OSError as error:
                message = f"cannot keep the bench in {self.path}: {error.strerror}"
                raise ClairvoyantError(message, ExitCode.USAGE) from None

    def add(self, cell: Cell) -> None:
        """Add a cell."""
        self.cells[cell.key] = cell
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(cell) + b"\n")
