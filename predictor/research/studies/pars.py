"""Kendall's tau_b beside the tables of PARS (sections IV-A to IV-C), and the noise ceiling of a file.

PARS trains on 40,000 prompts of a data set, with the answers of the model that is judged; here a model of
four fifths of a file predicts the rest. Its cross-model variant trains on another model's answers to the
same prompts.
"""

import numpy as np

from predictor.errors import ModelError
from predictor.lognormal import SHIFT_TOKENS
from predictor.ranking import kendall_tau_b, pair_ranking, ranking_accuracy
from predictor.research.studies.study_table import Cell, StudyTable
from predictor.research.studies.unseen import MIN_TRAINED, prompt_lengths
from predictor.research.training.dataset import Dataset
from predictor.research.training.fitting import out_of_fold
from predictor.research.training.material import Numbers, prepare

PUBLISHED: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("Alpaca", "GPT-4"): (0.69, 0.70, 0.93, 0.96),
    ("Alpaca", "Llama 3.1"): (0.67, 0.64, 0.71, 0.75),
    ("Alpaca", "DeepSeek-R1"): (0.50, 0.30, 0.57, 0.61),
    ("LMSYS-Chat-1M", "GPT-4"): (0.63, 0.33, 0.68, 0.72),
    ("LMSYS-Chat-1M", "Llama 3.1"): (0.54, 0.37, 0.62, 0.65),
    ("LMSYS-Chat-1M", "DeepSeek-R1"): (0.35, 0.09, 0.46, 0.50),
}
"""Listwise, pointwise, PARS without its filter of pairs, and with it (Tables II and IV)."""

MIN_ANSWERED = 0.5
"""Share of a file's prompts that a model or run must have answered to count for the ceiling."""


def pars(datasets: list[Dataset]) -> StudyTable:
    """Predict each file's answers by models trained on the same file: of the same model, and of another's.

    "other's" is the tau_b of the other model's real answers: what knowing its lengths for certain would earn.
    """
    rows: list[list[Cell]] = [
        [file, model, None, *figures, None, None, None, None] for (file, model), figures in PUBLISHED.items()
    ]
    for data in datasets:
        rows.extend(_judged(data))
    if len(rows) == len(PUBLISHED):
        raise ModelError(f"no file holds {MIN_TRAINED} prompts that one model answered: give larger files")
    columns = ["file", "model", "answers", "listwise", "pointwise", "PARS unfiltered", "PARS"]
    columns += ["ours", "cross-model", "other's", "length"]
    return StudyTable("Kendall's tau_b, PARS's tables and ours", columns, rows)


def _judged(data: Dataset) -> list[list[Cell]]:
    chosen = _chosen(data)
    answered = np.flatnonzero(np.isfinite(data.tokens[:, chosen]).all(axis=1))
    if len(answered) < MIN_TRAINED:
        return []
    prompts = [data.prompts[row] for row in answered]
    material, weights = prepare(prompts), np.ones(len(prompts))
    tokens = [data.tokens[answered, model] for model in chosen]
    scores = [out_of_fold(material, np.log(each + SHIFT_TOKENS), weights) for each in tokens]
    rows: list[list[Cell]] = []
    for place, model in enumerate(chosen):
        rankings = [scores[place], scores[1 - place], tokens[1 - place], prompt_lengths(prompts)]
        taus: list[Cell] = [kendall_tau_b(ranking, tokens[place]) for ranking in rankings]
        if len(chosen) == 1:
            taus[1] = taus[2] = None
        rows.append([data.name, data.models[model], len(prompts), *[None] * 4, *taus])
    return rows


def _chosen(data: Dataset) -> list[int]:
    """Return the columns of the model with most answers, and of the one with most to the same prompts."""
    answered = np.isfinite(data.tokens)
    first = int(answered.sum(axis=0).argmax())
    shared = answered[answered[:, first]].sum(axis=0)
    shared[first] = 0
    second = int(shared.argmax())
    return [first, second] if shared[second] >= MIN_TRAINED else [first]


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
