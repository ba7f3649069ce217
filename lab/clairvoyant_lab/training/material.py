"""Prompts as features, and files of several models' answers as labels; needs the `train` extra."""

from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse

from clairvoyant_lab.training.dataset import Dataset
from predictor.lexical.cues import read
from predictor.lexical.words import Hashes, gram_hashes
from predictor.lognormal import SHIFT_TOKENS

Numbers = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


class Material(NamedTuple):
    """Prompts turned into features: `grams` (prompts, distinct hashes), `cues` (prompts, len(NAMES)).

    Equal prompts share a number in `groups`; `files` and `families` number the files and their families.
    """

    hashes: Hashes
    grams: sparse.csr_matrix
    cues: Numbers
    groups: Rows
    files: Rows
    families: Rows

    def rows(self, rows: Rows) -> "Material":
        """Return the material of some of the prompts."""
        parts: list[Any] = [each[rows] for each in self[1:]]
        return Material(self.hashes, *parts)


def prepare(prompts: list[str], files: Rows | None = None, families: Rows | None = None) -> Material:
    """Read prompts once, for any number of fits; all are of one file where no files are given."""
    cues, hashed, groups = [], [], []
    for prompt in prompts:
        words, dense = read(prompt)
        groups.append(crc32(b" ".join(words)))
        cues.append(dense)
        hashed.append(gram_hashes(words))
    ends = np.cumsum([len(hashes) for hashes in hashed])
    hashes, columns = np.unique(np.concatenate(hashed), return_inverse=True)
    grams = sparse.csr_matrix(
        (np.ones(len(columns), np.float32), columns, np.concatenate(([0], ends))),
        shape=(len(prompts), len(hashes)),
    )
    scale = sparse.diags(1 / np.sqrt(np.maximum(np.diff(grams.indptr), 1)))
    one = np.zeros(len(prompts), np.intp)
    return Material(
        hashes,
        (scale @ grams).tocsr(),
        np.array(cues),
        np.array(groups, np.intp),
        one if files is None else files,
        one if families is None else families,
    )


# -- labels ------------------------------------------------------------------------------------------------

ABSOLUTE_SHARE = 0.25
"""How much of a file's own level stays in the targets. The models that answered differ from file to file, so
the level says as much about them as about the prompts; 0.25 ranked unseen distributions best of 0 to 1."""

TYPICAL_LEVEL = 5.3
"""Log tokens: what the rest of a file's level is replaced with, so that targets are near log tokens."""

MAX_ANSWERS = 30  # more answers to one prompt than this make its mean no better
TYPICAL_FILE = 1000


@dataclass(frozen=True, slots=True)
class Labels:
    """One row a prompt: targets near log tokens, weights, and the index of its dataset."""

    targets: Numbers
    weights: Numbers
    files: Rows


def label(datasets: list[Dataset], absolute_share: float = ABSOLUTE_SHARE) -> Labels:
    """Average each prompt's log lengths over the models, each model centred within its file first."""
    targets, weights, files = [], [], []
    for index, data in enumerate(datasets):
        logs = np.log(np.maximum(data.tokens, 1) + SHIFT_TOKENS)
        centred = np.nanmean(logs - np.nanmean(logs, axis=0, keepdims=True), axis=1)
        level = np.nanmean(logs, axis=1)
        answers = np.isfinite(logs).sum(axis=1)
        targets.append((1 - absolute_share) * (centred + TYPICAL_LEVEL) + absolute_share * level)
        # A small file speaks for as large a world as a big one, but with less certainty.
        weights.append(np.sqrt(np.minimum(answers, MAX_ANSWERS)) * (TYPICAL_FILE / len(answers)) ** 0.25)
        files.append(np.full(len(answers), index))
    return Labels(*(np.concatenate(part) for part in (targets, weights, files)))


def single_answers(datasets: list[Dataset], seed: int) -> Numbers:
    """Return one answer a prompt, drawn among its models, in tokens: a server runs one model."""
    generator = np.random.default_rng(seed)
    rows = [answers[np.isfinite(answers)] for data in datasets for answers in data.tokens]
    return np.array([max(generator.choice(answers), 1.0) for answers in rows])
