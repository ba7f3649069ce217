"""Train an urgency model; needs the `train` extra.

Two multinomial logistic regressions, of words and of the shipped encoder's embedding, are fitted on the same
cases and judged on sources that they had not seen.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter
from zlib import crc32

import numpy as np
import numpy.typing as npt
import scipy.sparse as sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from clairvoyant_lab.studies.urgency import Verdict, judge
from clairvoyant_lab.training.card_writing import file_hashes, write_card
from clairvoyant_lab.training.dataset import Case
from predictor.card import Calibration, Card, read_card
from predictor.errors import ModelError
from predictor.loading import MODELS, SEMANTIC, load_encoder
from predictor.semantic.opinion import EMBEDDED
from predictor.urgency.model import (
    EMBEDDING_SCALE,
    FEATURES_VERSION,
    LEVELS,
    SHARE,
    SHARE_OF_PATIENT,
    TABLE_BITS,
    WEIGHTS,
    WORDS_SCALE,
    buckets_of,
    least_cost,
    softmax,
    telling_words,
    words_read,
)
from predictor.urgency.vitals import cues, read_signs

FREEDOM = 0.5
"""The inverse of each regression's penalty. It, the shares, and the cost of too low a level were chosen on
written cases alone: with complaints held out, on half of `triage.txt` by a model of the rest, on `apart.txt`,
and on `day.txt`, whose wordings no training case has."""

MAX_SPREAD = 0.2
"""A word that comes with patients of a larger share of the sources belongs to the form of a record, as do
those of `record_words.txt`, and does not count. Words that came with no patient do not count either."""

MAX_STEPS = 80  # of the search for the weights: stopping early regularises them, too
FOLDS = 4
MIN_A_LEVEL = 20

Numbers = npt.NDArray[np.float64]


class Readings(NamedTuple):
    """Cases as the model reads them: words and embeddings, each with the cues behind, (n, features)."""

    words: sparse.csr_matrix
    embedding: Numbers
    of_patient: npt.NDArray[np.bool_]
    levels: npt.NDArray[np.intp]
    weights: Numbers
    folds: npt.NDArray[np.intp]

    def rows(self, rows: npt.NDArray[np.bool_]) -> "Readings":
        """Return the readings of some cases."""
        parts: list[Any] = [each[rows] for each in self]
        return Readings(*parts)


class Fitted(NamedTuple):
    """The weights of each feature for each level by the two regressions, the constant last."""

    words: Numbers
    embedding: Numbers

    def scores(self, readings: Readings) -> tuple[Numbers, Numbers]:
        """Return the scores by words alone and by both regressions together, each (n, LEVELS)."""
        by_words: Numbers = readings.words @ self.words[:-1] + self.words[-1]
        by_embedding = readings.embedding @ self.embedding[:-1] + self.embedding[-1]
        shares = np.where(readings.of_patient, SHARE_OF_PATIENT, SHARE)[:, None]
        return by_words, (1.0 - shares) * by_words + shares * by_embedding


def find_telling(cases: list[Case]) -> frozenset[int]:
    """Return the hashes of the words that distinguish patients."""
    sources: dict[bytes, set[str]] = defaultdict(set)
    patients = [case for case in cases if read_signs(case.text).of_patient]
    for case in patients:
        for word in words_read(case.text):
            sources[word].add(case.source)
    text = (Path(__file__).parent / "record_words.txt").read_text(encoding="utf-8")
    put = {word for line in text.splitlines() if not line.startswith("#") for word in words_read(line)}
    most = MAX_SPREAD * len({case.source for case in patients})
    return frozenset(crc32(word) for word, them in sources.items() if len(them) <= most and word not in put)


def read_all(cases: list[Case], telling: Set[int]) -> Readings:
    """Read cases, each some 5 ms for the encoder."""
    encoder = load_encoder()
    signs = [read_signs(case.text) for case in cases]
    grams = [
        buckets_of(telling_words(case.text, its, telling)) for case, its in zip(cases, signs, strict=True)
    ]
    counts = np.array([len(each) for each in grams])
    words = sparse.csr_matrix(
        (
            np.repeat(1.0 / np.sqrt(counts), counts),
            np.concatenate(grams).astype(np.int64),
            np.concatenate([[0], np.cumsum(counts)]),
        ),
        shape=(len(cases), 1 << TABLE_BITS),
    )
    seen = np.array([cues(case.text, its) for case, its in zip(cases, signs, strict=True)], np.float64)
    embedding = np.array([encoder.encode(case.text).embedding for case in cases], np.float64)
    return Readings(
        sparse.hstack([WORDS_SCALE * words, seen]).tocsr(),
        np.hstack([EMBEDDING_SCALE * embedding, seen]),
        np.array([its.of_patient for its in signs]),
        np.array([case.level for case in cases]),
        np.array([case.weight for case in cases]),
        np.array([crc32(case.source.encode()) % FOLDS for case in cases]),
    )


def fit(readings: Readings) -> Fitted:
    """Fit both regressions."""
    return Fitted(_regression(readings.words, readings), _regression(readings.embedding, readings))


def _regression(features: object, readings: Readings) -> Numbers:
    found = LogisticRegression(C=FREEDOM, max_iter=MAX_STEPS)
    with catch_warnings():
        simplefilter("ignore", ConvergenceWarning)  # it stops early on purpose
        found.fit(features, readings.levels, sample_weight=readings.weights)
    weights: Numbers = np.vstack([found.coef_.T, found.intercept_[None]])
    return weights


def held_out(readings: Readings) -> list[Verdict]:
    """Return how both together, and the words alone, do on phrases that they were not fitted on."""
    n = len(readings.levels)
    by_words, both = np.zeros((n, LEVELS)), np.zeros((n, LEVELS))
    for fold in range(FOLDS):
        unseen = readings.folds == fold
        if unseen.any():
            by_words[unseen], both[unseen] = fit(readings.rows(~unseen)).scores(readings.rows(unseen))
    return [
        judge(name, readings.levels, least_cost(softmax(scores.astype(np.float32))))
        for name, scores in (("words and encoder", both), ("words alone", by_words))
    ]


def train_urgency(
    cases: list[Case],
    out: Path,
    licence: str,
    data: str,
    progress: Callable[[str], None],
    apart: Mapping[str, Sequence[Case]] | None = None,
) -> list[Verdict]:
    """Write a model directory; return how the model does on other sources, and on the cases `apart`.

    ModelError if a level has too few cases.
    """
    counts = np.bincount([case.level for case in cases], minlength=LEVELS)
    if counts.min() < MIN_A_LEVEL:
        least = int(counts.argmin())
        raise ModelError(
            f"only {counts[least]} cases are of level {least}; a model needs {MIN_A_LEVEL} of each"
        )
    progress(f"{len(cases)} cases; the encoder reads them")
    telling = find_telling(cases)
    readings = read_all(cases, telling)
    progress("held out")
    verdicts = held_out(readings)
    figures = verdicts[0].figures("urgency")
    progress("all cases")
    fitted = fit(readings)
    for name, others in (apart or {}).items():
        other = read_all(list(others), telling)
        said = least_cost(softmax(fitted.scores(other)[1].astype(np.float32)))
        verdicts.append(judge(name, other.levels, said))
        figures |= verdicts[-1].figures(name)
    out.mkdir(parents=True, exist_ok=True)
    _save_weights(fitted, telling, out / WEIGHTS)
    card = Card(
        out.name,
        "urgency",
        FEATURES_VERSION,
        Calibration(0.0, 1.0, 1.0),
        [data],
        licence,
        {"prompts": float(len(cases)), **figures},
        file_hashes(out, [WEIGHTS]),
        sources={"encoder": read_card(MODELS / SEMANTIC).sha256["encoder.onnx"]},
    )
    write_card(card, out)
    return verdicts


def _save_weights(fitted: Fitted, telling: Set[int], path: Path) -> None:
    size = 1 << TABLE_BITS
    words = fitted.words[:size].astype(np.float16)
    used = np.flatnonzero(np.abs(words).max(axis=1) > 0.004)
    np.savez_compressed(
        path,
        buckets=used.astype(np.uint16),
        words=words[used],
        telling=np.array(sorted(telling), np.uint32),
        words_rest=fitted.words[size:].astype(np.float32),
        embedding=fitted.embedding[:EMBEDDED].astype(np.float32),
        embedding_rest=fitted.embedding[EMBEDDED:].astype(np.float32),
    )
