"""Ranks files by models trained on other families of files only, and by the answers of other models.

Files that draw on the same prompts are one family and are held out together.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clairvoyant_lab.ranking import kendall_tau_b, pair_ranking, ranking_accuracy
from clairvoyant_lab.studies.study_table import Cell, Progress, StudyTable
from clairvoyant_lab.training import paper
from clairvoyant_lab.training.dataset import Dataset
from clairvoyant_lab.training.fitting import Fitted, calibrate_evenly, fit, out_of_fold
from clairvoyant_lab.training.material import (
    Labels,
    Material,
    Numbers,
    Rows,
    label,
    prepare,
    single_answers,
)
from predictor.card import Calibration
from predictor.errors import ModelError

if TYPE_CHECKING:
    import xgboost

PARTS = 5
MIN_TRAINED = 100

MIN_OF_EACH = 5  # Short and Long answers that a model must have given before it counts
MIN_TOGETHER = 40  # answers of the rarer class that the models of a file must have given together
ENOUGH = 20  # a model with more answers of the rarer class counts no more
SEED = 42

MIN_ANSWERED = 0.5
"""Share of a file's prompts that a model or run must have answered to count for the ceiling."""


@cache
def _matches(what: str, file: str) -> list[str]:
    """Return the families or kinds in `families.txt` with a prefix of a file's name."""
    lines = (Path(__file__).parent / "families.txt").read_text(encoding="utf-8").splitlines()
    entries = (line.removeprefix(f"{what} ").split(": ") for line in lines if line.startswith(f"{what} "))
    return [name for name, prefixes in entries if file.startswith(tuple(prefixes.split()))]


def family(name: str) -> str:
    """Return the family of a file."""
    return next(iter(_matches("family", name)), name)


def kinds(name: str) -> list[str]:
    """Return the kinds of traffic in a file; none for an unknown one."""
    return _matches("kind", name)


@dataclass(frozen=True, slots=True)
class Corpus:
    """All files as one material. `trainable` holds the rows that may train, `families` one name per file."""

    datasets: list[Dataset]
    labels: Labels
    material: Material
    trainable: Rows
    families: list[str]

    @classmethod
    def of(cls, datasets: list[Dataset], trainable: Collection[str] | None = None) -> "Corpus":
        """Read all prompts once; only the files named in `trainable` may train, all if it is not given."""
        labels = label(datasets)
        may = np.array([trainable is None or data.name in trainable for data in datasets])
        families = [family(data.name) for data in datasets]
        prompts = [prompt for data in datasets for prompt in data.prompts]
        numbers = np.unique(families, return_inverse=True)[1][labels.files]
        material = prepare(prompts, labels.files, numbers)
        return cls(datasets, labels, material, np.flatnonzero(may[labels.files]), families)

    def files(self, held: Collection[str]) -> list[Dataset]:
        """Return the files of some families."""
        return [data for data, name in zip(self.datasets, self.families, strict=True) if name in held]

    def rows_of(self, data: Dataset) -> Rows:
        """Return the rows of one file."""
        return np.flatnonzero(self.labels.files == self.datasets.index(data))

    def training_rows(self, held: Collection[str]) -> Rows:
        """Return the rows that share no family and no prompt with those held out; ModelError if too few."""
        files = [index for index, name in enumerate(self.families) if name in held]
        outside = ~np.isin(self.labels.files, files)
        shared = np.isin(self.material.groups, self.material.groups[~outside])
        known = self.trainable[(outside & ~shared)[self.trainable]]
        if len(known) < MIN_TRAINED:
            raise ModelError(
                f"without {', '.join(held)}, {len(known)} prompts are left to train on, not {MIN_TRAINED}: "
                "give files of more distributions"
            )
        return known

    def calibrated(
        self, known: Rows, folds: int, progress: Progress = lambda line: None
    ) -> tuple[Numbers, Calibration]:
        """Return scores of rows by models that had not seen their family, and the calibration to them."""
        material, apart = self.material.rows(known), self.material.families[known]
        groups = apart if apart.min() < apart.max() else None
        targets, weights = self.labels.targets[known], self.labels.weights[known]
        scores = out_of_fold(material, targets, weights, SEED, progress, groups, folds)
        tokens = single_answers(self.datasets, SEED)[known]
        return scores, calibrate_evenly(scores, tokens, apart, SEED)

    def fit(self, known: Rows) -> Fitted:
        """Fit the default recipe to some rows."""
        return fit(self.material.rows(known), self.labels.targets[known], self.labels.weights[known], SEED)

    def scores(self, held: Collection[str]) -> dict[str, Numbers]:
        """Return the scores of the files of some families by a model that saw none of them."""
        fitted = self.fit(self.training_rows(held))
        return {data.name: fitted.scores(self.material.rows(self.rows_of(data))) for data in self.files(held)}


def file_accuracy(scores: Numbers, data: Dataset) -> float:
    """Return the mean ranking accuracy of scores (prompts,) over a file's models; NaN of too few answers."""
    accuracies, weights = [], []
    for tokens in data.tokens.T:
        answered = np.isfinite(tokens)
        ranking = ranking_accuracy(scores[answered], tokens[answered])
        rarer = min(ranking.n_short, ranking.n_long)
        if rarer >= MIN_OF_EACH:
            accuracies.append(ranking.accuracy)
            weights.append(rarer)
    if sum(weights) < MIN_TOGETHER:
        return float("nan")
    return float(np.average(accuracies, weights=np.minimum(weights, ENOUGH)))


def deal(datasets: list[Dataset]) -> list[list[str]]:
    """Deal the families that can be judged into `PARTS`, the largest first, each to the smallest part."""
    sizes: dict[str, int] = {}
    for data in datasets:
        if np.isfinite(file_accuracy(np.zeros(len(data.prompts)), data)):
            sizes[family(data.name)] = sizes.get(family(data.name), 0) + len(data.prompts)
    if len(sizes) < 2:
        raise ModelError(
            f"unseen traffic needs two families of files, each with {MIN_TOGETHER} Short and Long answers: "
            "give files of more distributions"
        )
    parts: list[list[str]] = [[] for _ in range(min(PARTS, len(sizes)))]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(parts, key=lambda part: sum(sizes[each] for each in part)).append(name)
    return parts


def unseen(corpus: Corpus, progress: Progress) -> StudyTable:
    """Rank each file by length and by models that saw none of its family: ours, its trees, the paper's."""
    rows: list[list[Cell]] = []
    for part in deal(corpus.datasets):
        progress(f"holding out {', '.join(part)}")
        known = corpus.training_rows(part)
        fitted, papers = corpus.fit(known), _fit_paper(corpus, known)
        for data in corpus.files(part):
            trees, words = fitted.parts(corpus.material.rows(corpus.rows_of(data)))
            papers_scores = paper.probability_long(papers, paper.features_of(data.prompts))
            lengths = np.array([len(prompt) for prompt in data.prompts], float)
            ranked = trees + words, trees, papers_scores, lengths
            accuracies = [file_accuracy(each, data) for each in ranked]
            if np.isfinite(accuracies[0]):
                rows.append([data.name, ", ".join(kinds(data.name)), len(data.prompts), *accuracies])
    columns = ["file", "kinds", "prompts", "ours", "trees", "paper", "length"]
    return StudyTable("Families of files never seen, ranking accuracy", columns, [*rows, *summarised(rows)])


def summarised(rows: list[list[Cell]]) -> list[list[Cell]]:
    """Return the means over files, families and kinds of traffic, and the least of each accuracy."""
    figures = {str(row[0]): np.array(row[3:], float) for row in rows}
    of_family, of_kind = defaultdict(list), defaultdict(list)
    for name, accuracies in figures.items():
        of_family[family(name)].append(accuracies)
        for kind in kinds(name):
            of_kind[f"kind: {kind}"].append(accuracies)
    groups = {
        "mean over files": [*figures.values()],
        "mean over families": [np.mean(each, axis=0) for each in of_family.values()],
        **{kind: of_kind[kind] for kind in sorted(of_kind)},
    }
    summary: list[list[Cell]] = [
        [name, "", len(each), *np.mean(each, axis=0).tolist()] for name, each in groups.items()
    ]
    return [*summary, ["least", "", None, *np.min([*figures.values()], axis=0).tolist()]]


def _fit_paper(corpus: Corpus, known: Rows) -> "xgboost.XGBClassifier":
    prompts = [prompt for data in corpus.datasets for prompt in data.prompts]
    tokens = np.concatenate([data.typical_tokens() for data in corpus.datasets])[known]
    classes = paper.classes_of(tokens)
    rows = paper.balanced(classes)
    if not len(rows):
        raise ModelError("the paper's model needs Short, Medium and Long answers in the other files")
    return paper.fit(paper.features_of([prompts[row] for row in known[rows]]), classes[rows])


def ceiling(datasets: list[Dataset]) -> StudyTable:
    """Rank a model's answers by its other answers to the same prompts: no predictor can do better.

    Each column of a file is a run of the same model, or another model: a prompt alone could at best tell what
    the answers of others say. tau_b and the pairs that the filter of PARS keeps are ranked by the mean of the
    others. A column that lacks half of the answers is left out.
    """
    rows: list[list[Cell]] = []
    for data in datasets:
        runs = np.isfinite(data.tokens).mean(axis=0) >= MIN_ANSWERED
        if runs.sum() < 2:
            raise ModelError(f"{data.name} holds one answer a prompt: the ceiling needs repeated runs")
        rows.append([data.name, int(runs.sum()), *_agreement(data.tokens[:, runs])])
    columns = ["file", "runs", "one other run", "mean of the others", "its tau_b", "its pairs"]
    return StudyTable("Noise ceiling", columns, rows)


def _agreement(answers: Numbers) -> list[float]:
    complete = answers[np.isfinite(answers).all(axis=1)]
    figures = []
    for run, tokens in enumerate(complete.T):
        others = np.log(np.delete(complete, run, axis=1) + 1)
        mean = others.mean(axis=1)
        ranked = [
            ranking_accuracy(each, tokens).accuracy for each in (others[:, run % others.shape[1]], mean)
        ]
        figures.append([*ranked, kendall_tau_b(mean, tokens), pair_ranking(mean, tokens).accuracy])
    columns = [[value for value in column if not np.isnan(value)] for column in zip(*figures, strict=True)]
    return [float(np.mean(column)) if column else float("nan") for column in columns]
