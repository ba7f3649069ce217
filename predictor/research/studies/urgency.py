"""Judge an urgency model on cases whose levels are known, beside what needs no model."""

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from predictor.research.training.urgency_data import Case
from predictor.urgency.model import LEVELS, UrgencyModel, buckets_of, least_cost, words_of

Levels = npt.NDArray[np.intp]

Embed = Callable[[str], npt.NDArray[np.float32]]

BAG_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """How levels were met. `confusion[true][said]` counts cases.

    `exact` and `within_one` are shares of all; `kappa` is Cohen's with quadratic weights. `under` is the
    share of the cases of level 0 and 1 that were called less urgent than they are, `missed` of those that
    were called 2 or more; `over` the share of all that were called more urgent. None where there is nothing
    to count.
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

    def figures(self, kind: str = "urgency") -> dict[str, float]:
        """Return the figures for a model card, which calls them by their kind."""
        values = {
            "exact": self.exact,
            "within_one": self.within_one,
            "kappa": self.kappa,
            "under": self.under,
            "missed": self.missed,
            "over": self.over,
        }
        return {f"{kind}_{name}": value for name, value in values.items() if value is not None}


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
    """Return how the model does with an encoder, where there is one, and by words alone; a bag of words that
    is fitted on the other cases of this very file; and the file's commonest level for all.
    """
    real = np.array([case.level for case in cases])
    verdicts = []
    if embed is not None and model.hears:
        said = least_cost(np.array([model.chances(case.text, embed(case.text)) for case in cases]))
        verdicts.append(judge(model.name, real, said))
    said = least_cost(np.array([model.chances(case.text) for case in cases]))
    verdicts.append(judge(f"{model.name}, by words alone", real, said))
    verdicts.append(judge("a bag of this file's words", real, bag_of_words(cases, real)))
    common = np.full(len(real), np.bincount(real, minlength=LEVELS).argmax())
    verdicts.append(judge("its commonest level", real, common))
    return verdicts


def bag_of_words(cases: list[Case], real: Levels) -> Levels:
    """Return the levels that naive Bayes says, each case by the words of four fifths of the others."""
    bags = [buckets_of(words_of(case.text)) for case in cases]
    folds = np.array([crc32(case.source.encode()) % BAG_FOLDS for case in cases])
    size = int(max(bag.max() for bag in bags)) + 1
    said = np.zeros(len(cases), np.intp)
    for fold in range(BAG_FOLDS):
        counts, prior = np.ones((size, LEVELS)), np.ones(LEVELS)
        for row in np.flatnonzero(folds != fold):
            counts[bags[row], real[row]] += 1.0
            prior[real[row]] += 1.0
        weights = np.log(counts / counts.sum(axis=0))
        for row in np.flatnonzero(folds == fold):
            said[row] = (np.log(prior) + weights[bags[row]].sum(axis=0)).argmax()
    return said
