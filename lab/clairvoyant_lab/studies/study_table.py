"""The result of a study: one table."""

from collections.abc import Callable
from dataclasses import dataclass

Cell = str | int | float | None
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StudyTable:
    """A study's result. Accuracies are shares of 1; a cell is None or NaN where there is nothing to count."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]
