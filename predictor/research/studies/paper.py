"""The Clairvoyant paper's studies of its predictor (sections 4 and 5), on files of prompts and answers.

Models are trained on balanced classes and judged on the stratified 20 % they have not seen (section 4.3).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from predictor.errors import ModelError
from predictor.lognormal import log_tokens
from predictor.paper.features import CODE_WORDS, FORMAT_WORDS, NAMES, NUMERIC
from predictor.ranking import kendall_tau_b, pair_ranking, ranking_accuracy
from predictor.research.studies.study_table import Cell, StudyTable
from predictor.research.training import paper
from predictor.research.training.dataset import Dataset
from predictor.research.training.fitting import out_of_fold
from predictor.research.training.material import prepare
from predictor.research.training.paper import Floats, Numbers, Rows

if TYPE_CHECKING:
    import xgboost

MIN_OF_A_CLASS = 30  # a model of fewer balanced examples per class says nothing; the paper asks for 200


@dataclass(frozen=True, slots=True)
class Trained:
    """The paper's model of one file, with the features and answers it was and was not trained on."""

    name: str
    model: "xgboost.XGBClassifier"
    prompts: list[str]
    features: Floats
    tokens: Numbers
    known: Rows
    held: Rows

    def held_out_accuracy(self, scores: Numbers) -> float:
        """Return the ranking accuracy of scores for the held-out rows."""
        return ranking_accuracy(scores, self.tokens[self.held]).accuracy


def starvation(datasets: list[Dataset]) -> StudyTable:
    """Count the classes of each file (Table 2)."""
    rows: list[list[Cell]] = []
    for data in datasets:
        classes = np.bincount(paper.classes_of(data.typical_tokens()), minlength=3)
        rows.append([data.name, *map(int, classes), float(classes[2] / classes.sum())])
    columns = ["dataset", "short", "medium", "long", "long share"]
    return StudyTable("Long-class starvation (Table 2)", columns, rows)


def train_each(datasets: list[Dataset]) -> list[Trained]:
    """Train the paper's model on each file with enough answers of every class; ModelError if none."""
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


def in_distribution(datasets: list[Dataset]) -> StudyTable:
    """Compare ranking with classification accuracy on held-out rows (Table 5), and the default recipe."""
    rows: list[list[Cell]] = []
    for one in train_each(datasets):
        features, tokens = one.features[one.held], one.tokens[one.held]
        scores = paper.probability_long(one.model, features)
        ranking = ranking_accuracy(scores, tokens)
        classified = float((one.model.predict(features) == paper.classes_of(tokens)).mean())
        targets = np.array([log_tokens(count) for count in one.tokens])
        ours = out_of_fold(prepare(one.prompts), targets, np.ones(len(targets)))
        figures = [kendall_tau_b(scores, tokens), pair_ranking(scores, tokens).accuracy, classified]
        ranked = [ranking.accuracy, ranking.tied_share, *figures, one.held_out_accuracy(ours[one.held])]
        rows.append([one.name, len(tokens), *ranked])
    columns = ["dataset", "n", "ranking", "tied", "tau_b", "pairs", "class", "our ranking"]
    return StudyTable("In-distribution, held-out 20 % (Table 5)", columns, rows)


def cross_distribution(datasets: list[Dataset]) -> StudyTable:
    """Judge each model on each file (Table 6); the diagonal includes training data, as in the paper."""
    models = train_each(datasets)
    rows: list[list[Cell]] = []
    for one in models:
        scores = [paper.probability_long(one.model, other.features) for other in models]
        figures = [ranking_accuracy(each, other.tokens) for each, other in zip(scores, models, strict=True)]
        rows.append([one.name, *(figure.accuracy for figure in figures)])
    return StudyTable(
        "Cross-distribution ranking (Table 6)", ["trained on", *(one.name for one in models)], rows
    )


def baselines(datasets: list[Dataset]) -> StudyTable:
    """Compare with chance, prompt length and keywords on the same held-out rows (Table 7)."""
    words = CODE_WORDS | FORMAT_WORDS
    rows: list[list[Cell]] = []
    for one in train_each(datasets):
        prompts = [one.prompts[row] for row in one.held]
        scores = [
            np.zeros(len(prompts)),
            np.array([len(prompt) for prompt in prompts], float),
            np.array([len(words.intersection(prompt.lower().split())) for prompt in prompts], float),
            paper.probability_long(one.model, one.features[one.held]),
        ]
        rows.append([one.name, *map(one.held_out_accuracy, scores)])
    return StudyTable(
        "Baselines (Table 7)", ["dataset", "chance", "prompt length", "keywords", "features"], rows
    )


def ablation(datasets: list[Dataset]) -> StudyTable:
    """Retrain without each feature group (Table 4); the change of ranking accuracy."""
    models = train_each(datasets)
    groups = {name: [index] for index, name in enumerate(NUMERIC)}
    groups["instruction_verb"] = list(range(len(NUMERIC), len(NAMES)))
    rows: list[list[Cell]] = []
    for group, columns in groups.items():
        changes = [_without(one, columns) - _without(one, []) for one in models]
        rows.append([group, float(np.mean(changes)), *changes])
    return StudyTable("Drop-one ablation (Table 4)", ["without", "mean", *(one.name for one in models)], rows)


def _without(one: Trained, columns: list[int]) -> float:
    features = one.features.copy()
    features[:, columns] = 0.0
    model = paper.fit(features[one.known], paper.classes_of(one.tokens[one.known]))
    return one.held_out_accuracy(paper.probability_long(model, features[one.held]))
