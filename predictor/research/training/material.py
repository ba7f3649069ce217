"""Prompts as the features that models are trained on; needs the `train` extra."""

from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from predictor.errors import from_the_train_extra
from predictor.lexical.cues import read
from predictor.lexical.words import Hashes, gram_hashes

with from_the_train_extra():
    import scipy.sparse as sparse

Numbers = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]


class Material(NamedTuple):
    """Prompts turned into features: `grams` (prompts, distinct hashes), `cues` (prompts, len(NAMES)).

    `groups` names equal prompts alike, so that no fold is tested on a prompt it was trained on; `files` and
    `families` number the files that the prompts are of, and those files that draw on the same prompts.
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
