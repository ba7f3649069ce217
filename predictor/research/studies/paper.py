"""The Clairvoyant paper's studies of its predictor (sections 4 and 5), on files of prompts and answers.

Where a file holds several models' answers, each prompt counts with their median. Models are trained on
classes balanced by resampling and judged on the stratified 20 % they have not seen, as in section 4.3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from predictor.errors import ModelError
from predictor.lognormal import log_tokens
from predictor.paper.features import CODE_WORDS, FORMAT_WORDS, NAMES, NUMERIC
from predictor.ranking import kendall_tau_b, pair_ranking, ranking_accuracy
from predictor.research.training import paper
from predictor.research.training.dataset import Dataset
from predictor.research.training.fitting import out_of_fold, prepare

if TYPE_CHECKING:
    import xgboost

MIN_OF_A_CLASS = 30
"""A model of fewer balanced examples a class says nothing; the paper asks for 200."""

Numbers = paper.Numbers
Floats = paper.Floats
Rows = paper.Rows
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """A study's result: accuracies are shares of 1, None or NaN where there is nothing to count."""

    title: str
    columns: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True, slots=True)
class Trained:
    """The paper's model of one dataset, with the features and answers it was and was not trained on."""

    name: str
    model: "xgboost.XGBClassifier"
    prompts: list[str]
    features: Floats
    tokens: Numbers
    known: Rows
    held: Rows


def starvation(datasets: list[Dataset]) -> Table:
    """Count the classes of each dataset (Table 2)."""
    rows: list[list[Cell]] = []
    for data in datasets:
        classes = np.bincount(paper.classes_of(data.typical_tokens()), minlength=3)
        rows.append([data.name, *map(int, classes), float(classes[2] / classes.sum())])
    return Table(
        "Long-class starvation (Table 2)", ["dataset", "short", "medium", "long", "long share"], rows
    )


def train_each(datasets: list[Dataset]) -> list[Trained]:
    """Train the paper's model on each dataset with at least `MIN_OF_A_CLASS` of every class.

    Raises ModelError if there is none.
    """
    trained = []
    for data in datasets:
        classes = paper.classes_of(data.typical_tokens())
        if np.bincount(classes, minlength=3).min() < MIN_OF_A_CLASS:
            continue
        rows = paper.balanced(classes)
        prompts = [data.prompts[row] for row in rows]
        features, tokens = paper.features_of(prompts), data.typical_tokens()[rows]
        known, held = paper.split(classes[rows])
        model = paper.fit(features[known], classes[rows][known])
        trained.append(Trained(data.name, model, prompts, features, tokens, known, held))
    if not trained:
        raise ModelError(f"no file holds {MIN_OF_A_CLASS} Short, Medium and Long answers each")
    return trained


def in_distribution(models: list[Trained]) -> Table:
    """Compare ranking with classification accuracy on held-out rows (Table 5).

    Our recipe ranks the same rows, five-fold on the same prompts: it too has seen four fifths of them.
    """
    rows: list[list[Cell]] = []
    for one in models:
        features, tokens = one.features[one.held], one.tokens[one.held]
        scores = paper.probability_long(one.model, features)
        ranking = ranking_accuracy(scores, tokens)
        right = float((one.model.predict(features) == paper.classes_of(tokens)).mean())
        rows.append(
            [
                one.name,
                len(tokens),
                ranking.accuracy,
                ranking.tied_share,
                kendall_tau_b(scores, tokens),
                pair_ranking(scores, tokens).accuracy,
                right,
                ranking_accuracy(_ours(one)[one.held], tokens).accuracy,
            ]
        )
    return Table(
        "In-distribution, held-out 20 % (Table 5)",
        ["dataset", "n", "ranking", "tied", "tau_b", "pairs", "class", "our ranking"],
        rows,
    )


def _ours(one: Trained) -> Numbers:
    targets = np.array([log_tokens(count) for count in one.tokens])
    return out_of_fold(prepare(one.prompts), targets, np.ones(len(targets)))


def cross_distribution(models: list[Trained]) -> Table:
    """Judge each model on each dataset (Table 6); the diagonal includes training data, as in the paper."""
    rows: list[list[Cell]] = [
        [
            one.name,
            *(
                ranking_accuracy(paper.probability_long(one.model, other.features), other.tokens).accuracy
                for other in models
            ),
        ]
        for one in models
    ]
    return Table("Cross-distribution ranking (Table 6)", ["trained on", *(one.name for one in models)], rows)


def baselines(models: list[Trained]) -> Table:
    """Compare with chance, prompt length and keywords on the same held-out rows (Table 7)."""
    rows: list[list[Cell]] = []
    for one in models:
        rules: list[Callable[[int], float]] = [lambda row: 0.0, _length_of(one), _keywords_of(one)]
        tokens = one.tokens[one.held]
        figures = [ranking_accuracy(np.array([rule(row) for row in one.held]), tokens) for rule in rules]
        features = ranking_accuracy(paper.probability_long(one.model, one.features[one.held]), tokens)
        rows.append([one.name, *(figure.accuracy for figure in (*figures, features))])
    return Table("Baselines (Table 7)", ["dataset", "chance", "prompt length", "keywords", "features"], rows)


def _length_of(one: Trained) -> Callable[[int], float]:
    return lambda row: float(len(one.prompts[row]))


def _keywords_of(one: Trained) -> Callable[[int], float]:
    words = CODE_WORDS | FORMAT_WORDS
    return lambda row: float(len(words.intersection(one.prompts[row].lower().split())))


def ablation(models: list[Trained]) -> Table:
    """Retrain without each feature group (Table 4); the change of ranking accuracy."""
    groups = {name: [index] for index, name in enumerate(NUMERIC)}
    groups["instruction_verb"] = list(range(len(NUMERIC), len(NAMES)))
    rows: list[list[Cell]] = []
    for group, columns in groups.items():
        changes = [_without(one, columns) - _without(one, []) for one in models]
        rows.append([group, float(np.mean(changes)), *changes])
    return Table("Drop-one ablation (Table 4)", ["without", "mean", *(one.name for one in models)], rows)


def _without(one: Trained, columns: list[int]) -> float:
    features = one.features.copy()
    features[:, columns] = 0.0
    model = paper.fit(features[one.known], paper.classes_of(one.tokens[one.known]))
    scores = paper.probability_long(model, features[one.held])
    return ranking_accuracy(scores, one.tokens[one.held]).accuracy
