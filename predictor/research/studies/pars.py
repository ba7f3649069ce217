"""PARS's tables of Kendall's tau_b (sections IV-A to IV-C), and ours: by a file's own model, and by another.

PARS trains on 40,000 prompts of a data set, with the answers of the model that is judged; here each file's
prompts are predicted by a model trained on the other four fifths of the same file. Its cross-model variant
trains on another model's answers to the same prompts.
"""

import numpy as np

from predictor.errors import ModelError
from predictor.lognormal import SHIFT_TOKENS
from predictor.ranking import kendall_tau_b
from predictor.research.studies.paper import Cell, Table
from predictor.research.studies.traffic import MIN_TRAINED
from predictor.research.training.dataset import Dataset
from predictor.research.training.fitting import out_of_fold, prepare

PUBLISHED: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("Alpaca", "GPT-4"): (0.69, 0.70, 0.93, 0.96),
    ("Alpaca", "Llama 3.1"): (0.67, 0.64, 0.71, 0.75),
    ("Alpaca", "DeepSeek-R1"): (0.50, 0.30, 0.57, 0.61),
    ("LMSYS-Chat-1M", "GPT-4"): (0.63, 0.33, 0.68, 0.72),
    ("LMSYS-Chat-1M", "Llama 3.1"): (0.54, 0.37, 0.62, 0.65),
    ("LMSYS-Chat-1M", "DeepSeek-R1"): (0.35, 0.09, 0.46, 0.50),
}
"""Listwise, pointwise, PARS without its filter of pairs, and with it (Tables II and IV)."""


def pars(datasets: list[Dataset]) -> Table:
    """Predict each file's answers by models trained on the same file: of the same model, and of another's.

    "other's" is the tau_b of the other model's real answers: what knowing its lengths for certain would earn.
    """
    rows: list[list[Cell]] = [
        [file, model, None, *theirs, None, None, None, None] for (file, model), theirs in PUBLISHED.items()
    ]
    for data in datasets:
        rows.extend(_judged(data))
    if len(rows) == len(PUBLISHED):
        raise ModelError(f"no file holds {MIN_TRAINED} prompts that one model answered: give larger files")
    columns = ["file", "model", "answers", "listwise", "pointwise", "PARS unfiltered", "PARS"]
    return Table(
        "Kendall's tau_b, PARS's tables and ours",
        [*columns, "ours", "cross-model", "other's", "length"],
        rows,
    )


def _judged(data: Dataset) -> list[list[Cell]]:
    chosen = _chosen(data)
    answered = np.flatnonzero(np.isfinite(data.tokens[:, chosen]).all(axis=1))
    if len(answered) < MIN_TRAINED:
        return []
    prompts = [data.prompts[row] for row in answered]
    material, weights = prepare(prompts), np.ones(len(prompts))
    length = np.array([float(len(prompt)) for prompt in prompts])
    tokens = [data.tokens[answered, model] for model in chosen]
    scores = [out_of_fold(material, np.log(each + SHIFT_TOKENS), weights) for each in tokens]
    rows: list[list[Cell]] = []
    for place, model in enumerate(chosen):
        rankings = [scores[place], scores[1 - place], tokens[1 - place], length]
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
