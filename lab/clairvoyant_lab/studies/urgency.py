"""Judges an urgency model on cases whose levels are known."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clairvoyant_lab.studies.study_table import Cell, StudyTable
from clairvoyant_lab.training.dataset import Case
from predictor.urgency.model import LEVELS, UrgencyModel, least_cost

Levels = npt.NDArray[np.intp]
Embed = Callable[[str], npt.NDArray[np.float32]]

FIGURES = ("exact", "within_one", "kappa", "under", "missed", "over")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How well levels were predicted. `confusion[true][said]` counts cases.

    `kappa` is Cohen's with quadratic weights. `under` is the share of the cases of level 0 and 1 that were
    called less urgent, `missed` of those called 2 or more; `over` that of all called more urgent.
    """

    name: str
    n: int
    exact: float
    within_one: float
    kappa: float | None
    under: float | None
    missed: float | None
    over: float
    confusion: tuple[tuple[int, ...], ...]

    def figures(self, prefix: str) -> dict[str, float]:
        """Return the figures for a model card, their names prefixed."""
        values = {name: getattr(self, name) for name in FIGURES}
        return {f"{prefix}_{name}": value for name, value in values.items() if value is not None}


def judge(name: str, real: Levels, said: Levels) -> Verdict:
    """Compare the levels that were said with the real ones, both (n,)."""
    confusion = np.zeros((LEVELS, LEVELS), np.int64)
    np.add.at(confusion, (real, said), 1)
    urgent = real <= 1
    return Verdict(
        name,
        len(real),
        float((said == real).mean()),
        float((np.abs(said - real) <= 1).mean()),
        quadratic_kappa(confusion),
        float((said[urgent] > real[urgent]).mean()) if urgent.any() else None,
        float((said[urgent] >= 2).mean()) if urgent.any() else None,
        float((said < real).mean()),
        tuple(tuple(row) for row in confusion.tolist()),
    )


def quadratic_kappa(confusion: npt.NDArray[np.int64]) -> float | None:
    """Return Cohen's kappa with quadratic weights (Cohen, 1968) of counts [real][said]; None of one level."""
    levels = np.arange(len(confusion))
    weights = (levels[:, None] - levels[None, :]) ** 2
    by_chance = np.outer(confusion.sum(axis=1), confusion.sum(axis=0)) / confusion.sum()
    expected = float((weights * by_chance).sum())
    return 1.0 - float((weights * confusion).sum()) / expected if expected else None


def evaluate_urgency(model: UrgencyModel, cases: list[Case], embed: Embed | None) -> list[Verdict]:
    """Judge a model with its encoder, if it has one, and by words alone, beside the commonest level."""
    real = np.array([case.level for case in cases])
    verdicts = []
    if embed is not None and model.hears:
        said = least_cost(np.array([model.chances(case.text, embed(case.text)) for case in cases]))
        verdicts.append(judge(model.name, real, said))
    said = least_cost(np.array([model.chances(case.text) for case in cases]))
    verdicts.append(judge(f"{model.name}, by words alone", real, said))
    common = np.full(len(real), np.bincount(real, minlength=LEVELS).argmax())
    return [*verdicts, judge("its commonest level", real, common)]


def table(verdicts: list[Verdict], title: str = "") -> StudyTable:
    """Return a row for each verdict."""
    rows: list[list[Cell]] = [
        [each.name, each.n, *(getattr(each, name) for name in FIGURES)] for each in verdicts
    ]
    return StudyTable(title, ["", "n", "exact", "within 1", "kappa", "under 0,1", "missed", "over"], rows)


def confusion_table(verdict: Verdict) -> StudyTable:
    """Return the counts of each predicted level, a row for each real level."""
    rows: list[list[Cell]] = [[str(level), *row] for level, row in enumerate(verdict.confusion)]
    title = f"{verdict.name}: predicted level (columns) by real level (rows)"
    return StudyTable(title, ["", *map(str, range(LEVELS))], rows)
