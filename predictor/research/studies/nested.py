"""The honest judge: recipes are chosen on some families of files and reported on others.

Families are dealt into parts. A recipe's inner figure for a part is what models ranked that had seen neither
the part judged nor the outer one; the recipe with the best inner mean then ranks the outer part. So no figure
comes from files on which anything was chosen (Cawley and Talbot, JMLR 2010).
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from predictor.errors import ModelError
from predictor.ranking import ranking_accuracy
from predictor.research.studies.families import family, kinds
from predictor.research.studies.paper import Cell, Table
from predictor.research.studies.traffic import Corpus, Progress, fit_paper
from predictor.research.training import paper
from predictor.research.training.dataset import Dataset
from predictor.research.training.fitting import Numbers, fit
from predictor.research.training.labels import ABSOLUTE_SHARE, label

PARTS = 5

MIN_OF_EACH = 5
"""Short and Long answers that a model must have given before it counts."""

MIN_TOGETHER = 40
"""What those of a file's models must come to; the smaller of the two classes counts."""

ENOUGH = 20
"""More than this of the smaller class do not make a model count more."""

SEED = 42


@dataclass(frozen=True, slots=True)
class Recipe:
    """What may be chosen: how much of a file's own level stays in the targets, and whether every family of
    files has the same weight whatever its size."""

    name: str
    absolute_share: float = ABSOLUTE_SHARE
    even: bool = False


RECIPES = (Recipe("quarter"), Recipe("half, even", absolute_share=0.5, even=True))

Scores = dict[str, Numbers]
"""Of each judged file's prompts, by the file's name."""


def file_accuracy(scores: Numbers, data: Dataset) -> float:
    """Return the share of (Short, Long) pairs ranked right, each model for itself; NaN where too few.

    `scores` is of shape (prompts,). The mean over the models, each by its answers of the rarer class.
    """
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
    parts: list[list[str]] = [[] for _ in range(min(PARTS, len(sizes)))]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        min(parts, key=lambda part: sum(sizes[each] for each in part)).append(name)
    if len(parts) < 3:
        raise ModelError(
            "a nested study needs three families of files, each with "
            f"{MIN_TOGETHER} Short and Long answers: give files of more distributions"
        )
    return parts


@dataclass(frozen=True, slots=True)
class Nested:
    """What the judge says: its table, and the recipe that is best on all families together."""

    table: Table
    chosen: Recipe


def nested(corpus: Corpus, progress: Progress) -> Nested:
    """Rank every judged file by a model that neither saw its family nor was chosen on it."""
    parts = deal(corpus.datasets)
    inner: dict[tuple[int, int], dict[str, Scores]] = {}
    for pair in combinations(range(len(parts)), 2):
        progress(f"inner: without parts {pair[0] + 1} and {pair[1] + 1}")
        inner[pair] = {
            recipe.name: _scores(corpus, [*parts[pair[0]], *parts[pair[1]]], recipe) for recipe in RECIPES
        }
    means = np.array(
        [
            [_inner_mean(corpus, parts, inner, outer, recipe) for recipe in RECIPES]
            for outer in range(len(parts))
        ]
    )
    rows: list[list[Cell]] = []
    for outer, part in enumerate(parts):
        recipe = RECIPES[int(means[outer].argmax())]
        progress(f"outer: part {outer + 1} ({', '.join(part)}) by {recipe.name!r}")
        rows.extend(_judged(corpus, part, recipe))
    columns = ["file", "recipe", "ours", "paper", "length"]
    table = Table("Nested: chosen within, judged without", columns, summarised(rows))
    return Nested(table, RECIPES[int(means.mean(axis=0).argmax())])


def _judged(corpus: Corpus, part: list[str], recipe: Recipe) -> list[list[Cell]]:
    ours, papers = _scores(corpus, part, recipe), fit_paper(corpus, corpus.training_rows(part))
    rows: list[list[Cell]] = []
    for data in _files(corpus, part):
        theirs = paper.probability_long(papers, paper.features_of(data.prompts))
        length = np.array([float(len(prompt)) for prompt in data.prompts])
        accuracies = [file_accuracy(scores, data) for scores in (ours[data.name], theirs, length)]
        if np.isfinite(accuracies[0]):
            rows.append([data.name, recipe.name, *accuracies])
    return rows


def summarised(rows: list[list[Cell]]) -> list[list[Cell]]:
    """Add the means to rows of (file, recipe, accuracies): over files, families and kinds, and the least."""
    figures = np.array([row[2:] for row in rows], float)
    names = [str(row[0]) for row in rows]

    def mean_over(groups: list[list[int]]) -> list[Cell]:
        return [float(value) for value in np.mean([figures[group].mean(axis=0) for group in groups], axis=0)]

    families = {family(name) for name in names}
    groups = [[i for i, name in enumerate(names) if family(name) == each] for each in sorted(families)]
    summary: list[list[Cell]] = [
        ["mean over files", "", *mean_over([[i] for i in range(len(names))])],
        ["mean over families", "", *mean_over(groups)],
        ["least", "", *(float(value) for value in figures.min(axis=0))],
    ]
    for kind in sorted({kind for name in names for kind in kinds(name)}):
        of_kind = [[i] for i, name in enumerate(names) if kind in kinds(name)]
        summary.append([f"kind: {kind}", f"{len(of_kind)} files", *mean_over(of_kind)])
    return [*rows, *summary]


def family_weights(weights: Numbers, families: list[str]) -> Numbers:
    """Return weights of rows scaled so that each family's come to the same; their sum stays."""
    places = np.unique(families, return_inverse=True)[1]
    totals = np.bincount(places, weights)
    scaled: Numbers = weights / totals[places]
    scaled *= weights.sum() / scaled.sum()
    return scaled


def _scores(corpus: Corpus, held: list[str], recipe: Recipe) -> Scores:
    known = corpus.training_rows(held)
    labels = label(corpus.datasets, recipe.absolute_share)
    weights = labels.weights[known]
    if recipe.even:
        weights = family_weights(weights, [corpus.families[file] for file in labels.files[known]])
    fitted = fit(corpus.material.rows(known), labels.targets[known], weights, SEED)
    return {
        data.name: fitted.scores(corpus.material.rows(corpus.rows_of(data))) for data in _files(corpus, held)
    }


def _files(corpus: Corpus, held: list[str]) -> list[Dataset]:
    return [data for data, name in zip(corpus.datasets, corpus.families, strict=True) if name in held]


def _inner_mean(
    corpus: Corpus,
    parts: list[list[str]],
    inner: dict[tuple[int, int], dict[str, Scores]],
    outer: int,
    recipe: Recipe,
) -> float:
    """Return a recipe's mean over the families of the other parts, ranked without the outer one."""
    means: dict[str, list[float]] = {}
    for part, families in enumerate(parts):
        if part == outer:
            continue
        scores = inner[min(part, outer), max(part, outer)][recipe.name]
        for data in _files(corpus, families):
            accuracy = file_accuracy(scores[data.name], data)
            if np.isfinite(accuracy):
                means.setdefault(family(data.name), []).append(accuracy)
    return float(np.mean([np.mean(each) for each in means.values()]))
