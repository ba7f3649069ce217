"""What a corpus of several models' answers teaches: one target, one level and one weight a prompt."""

from dataclasses import dataclass

import numpy as np

from predictor.lognormal import SHIFT_TOKENS
from predictor.research.training.dataset import Dataset
from predictor.research.training.material import Numbers, Rows

ABSOLUTE_SHARE = 0.25
"""How much of a file's own level stays in the targets. The models that answered differ from file to file, so
the level says as much about them as about the prompts; 0.25 ranked unseen distributions best of 0 to 1."""

TYPICAL_LEVEL = 5.3
"""Log tokens: what the rest of a file's level is replaced with, so that targets are near log tokens."""

MAX_ANSWERS = 30
"""More answers to one prompt than this make its mean no better."""

TYPICAL_FILE = 1000


@dataclass(frozen=True, slots=True)
class Labels:
    """One row a prompt. `targets` train, `levels` are mean log tokens; `files` indexes the datasets."""

    targets: Numbers
    levels: Numbers
    weights: Numbers
    files: Rows


def label(datasets: list[Dataset], absolute_share: float = ABSOLUTE_SHARE) -> Labels:
    """Average each prompt's log lengths over the models, each model centred within its file first."""
    targets, levels, weights, files = [], [], [], []
    for index, data in enumerate(datasets):
        logs = np.log(np.maximum(data.tokens, 1) + SHIFT_TOKENS)
        centred = np.nanmean(logs - np.nanmean(logs, axis=0, keepdims=True), axis=1)
        level = np.nanmean(logs, axis=1)
        answers = np.isfinite(logs).sum(axis=1)
        targets.append((1 - absolute_share) * (centred + TYPICAL_LEVEL) + absolute_share * level)
        levels.append(level)
        # A small file speaks for as large a world as a big one, but with less certainty.
        weights.append(np.sqrt(np.minimum(answers, MAX_ANSWERS)) * (TYPICAL_FILE / len(answers)) ** 0.25)
        files.append(np.full(len(answers), index))
    return Labels(*(np.concatenate(part) for part in (targets, levels, weights, files)))


def single_answers(datasets: list[Dataset], seed: int) -> Numbers:
    """Return one answer a prompt, drawn among its models, in tokens: a server runs one model."""
    generator = np.random.default_rng(seed)
    rows = [answers[np.isfinite(answers)] for data in datasets for answers in data.tokens]
    return np.array([max(generator.choice(answers), 1.0) for answers in rows])
