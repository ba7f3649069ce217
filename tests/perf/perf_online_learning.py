"""Serves streams of requests: each is predicted, then learned from, as a server meets them.

    python -m tests.perf.perf_online_learning FILE...              as for `clairvoyant study`
    python -m tests.perf.perf_online_learning --shipped FILE...    files that trained no shipped model

With `--shipped` the shipped models predict, without and with the encoder.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from clairvoyant_lab.commands.study import table_text
from clairvoyant_lab.ranking import pair_ranking, ranking_accuracy
from clairvoyant_lab.studies.evaluation import calibration_error
from clairvoyant_lab.studies.study_table import Cell, Progress, StudyTable
from clairvoyant_lab.studies.unseen import SEED, Corpus
from clairvoyant_lab.training.dataset import Dataset, read_dataset
from clairvoyant_lab.training.fitting import save
from clairvoyant_lab.training.material import Numbers

from predictor.card import Card
from predictor.errors import ModelError
from predictor.loading import load_encoder, load_model
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, Predictor, PromptView
from predictor.semantic.model import Encoder
from tests.perf.harness import options

STREAMS_A_FILE, STREAMS_SHIPPED = 1, 3
STREAM, SETTLED = 1000, 500
FIRST, SOON = slice(100), slice(100, 200)  # of a stream: most of what can be learned should have been by then
MIN_STREAMED = 400
MIN_PAIRED = 20  # Short and Long answers a model must have given before it is served


class Served(NamedTuple):
    """A stream as it was predicted: static and learned scores, `chances` of the three classes, and whether
    the 90 % quantile covered each answer.
    """

    tokens: Numbers
    static: Numbers
    learnt: Numbers
    chances: Numbers
    covered: npt.NDArray[np.bool_]

    @property
    def late(self) -> slice:
        return slice(min(SETTLED, len(self.tokens) // 2), None)

    def accuracies(self, some: slice, ranking: Callable[..., Any] = ranking_accuracy) -> list[float]:
        """Return the ranking accuracy of the static scores and of the learned ones."""
        return [ranking(each[some], self.tokens[some]).accuracy for each in (self.static, self.learnt)]

    def error(self, some: slice) -> float:
        """Return the expected calibration error of the class probabilities."""
        real = np.searchsorted((SHORT_BELOW_TOKENS, LONG_FROM_TOKENS), self.tokens[some], "right")
        return calibration_error(self.chances[some], real)


def serve(
    predictor: Predictor, views: Iterable[PromptView], tokens: Numbers, encoder: Encoder | None = None
) -> Served:
    """Predict each request of a stream, with the encoder's opinion if there is one, then learn its answer."""
    rows = []
    for view, count in zip(views, tokens, strict=True):
        opinion = None if encoder is None else encoder.encode(view.prompt, view.cut)
        prediction = predictor.predict(view, opinion)
        chances = prediction.p_short, prediction.p_medium, prediction.p_long
        static = prediction.memo.static  # type: ignore[attr-defined]
        rows.append((static, prediction.score, chances, count <= prediction.q90_tokens))
        predictor.learn(prediction, int(count))
    return Served(tokens, *(np.array(column) for column in zip(*rows, strict=True)))


def online(corpus: Corpus, progress: Progress) -> StudyTable:
    """Serve streams of one unseen file and one model: predict, then learn, then the next.

    The static columns are the same model without learning; the ones named soon count requests 100 to 200, the
    late ones from request 500, or from the middle of a shorter stream. The errors are those of the class
    probabilities: of the first hundred, and of the late ones. Where Long answers are rare, the accuracy hangs
    on a few of them; that over the pairs of PARS does not.
    """
    rows: list[list[Cell]] = []
    generator = np.random.default_rng(SEED)
    for held in dict.fromkeys(corpus.families):
        streams = [each for data in corpus.files([held]) for each in _streams(data, generator)]
        if not streams:
            continue
        progress(f"holding out {held}")
        with TemporaryDirectory() as folder:
            known = corpus.training_rows([held])
            _, calibration = corpus.calibrated(known, folds=2)
            save(corpus.fit(known), Card("unseen", "lexical", 0, calibration, [], "", {}), Path(folder))
            for data, model in streams:
                views, tokens = _drawn(data, model, generator)
                rows.append(_row(data, model, serve(load_model(folder), views, tokens)))
    return _table("Learning while serving", rows)


def shipped(datasets: Iterable[Dataset], progress: Progress) -> list[StudyTable]:
    """Serve streams of files that trained no shipped model, by words alone and with the encoder."""
    generator, encoder = np.random.default_rng(SEED), load_encoder()
    tables: dict[str, list[list[Cell]]] = {"Words": [], "Words and encoder": []}
    for data in datasets:
        progress(data.name)
        for _, model in _streams(data, generator, STREAMS_SHIPPED):
            views, tokens = _drawn(data, model, generator)
            for rows, opinions in zip(tables.values(), (None, encoder), strict=True):
                rows.append(_row(data, model, serve(load_model(), views, tokens, opinions)))
    return [_table(title, rows) for title, rows in tables.items()]


def _table(title: str, rows: list[list[Cell]]) -> StudyTable:
    ranks = ["static", "learnt", "soon static", "soon learnt", "late static", "late learnt", "late gain"]
    pairs, covers = ["static pairs", "learnt pairs"], ["q90 covers", "late covers"]
    columns = ["file", "model", *ranks, *pairs, *covers, "first error", "late error"]
    if not rows:
        raise ModelError(
            f"no file holds a model with {MIN_STREAMED} answers, {MIN_PAIRED} of them Short and "
            f"{MIN_PAIRED} Long"
        )
    figures = np.array([row[2:] for row in rows], float)
    # A hundred answers may hold no Long one: there is nothing to rank then.
    for name, summary in (("mean", np.nanmean), ("least", np.nanmin), ("most", np.nanmax)):
        rows.append([name, "", *summary(figures, axis=0).tolist()])
    return StudyTable(title, columns, rows)


def _row(data: Dataset, model: int, served: Served) -> list[Cell]:
    whole, late = slice(None), served.late
    static, learnt = served.accuracies(late)
    ranks = [*served.accuracies(whole), *served.accuracies(SOON), static, learnt, learnt - static]
    covers = [float(np.mean(served.covered[some])) for some in (whole, late)]
    pairs = served.accuracies(late, pair_ranking)
    figures = [*ranks, *pairs, *covers, served.error(FIRST), served.error(late)]
    return [data.name, data.models[model], *figures]


def _streams(
    data: Dataset, generator: np.random.Generator, count: int = STREAMS_A_FILE
) -> list[tuple[Dataset, int]]:
    """Return a file with the columns of models whose answers make a stream, drawn at random."""
    shorts, longs = data.tokens < SHORT_BELOW_TOKENS, data.tokens >= LONG_FROM_TOKENS
    enough = np.minimum(shorts.sum(axis=0), longs.sum(axis=0)) >= MIN_PAIRED
    enough &= np.isfinite(data.tokens).sum(axis=0) >= MIN_STREAMED
    return [(data, int(model)) for model in generator.permutation(np.flatnonzero(enough))[:count]]


def _drawn(data: Dataset, model: int, generator: np.random.Generator) -> tuple[list[PromptView], Numbers]:
    """Return at most `STREAM` prompts that a model answered, in random order, and the answers' lengths."""
    order = generator.permutation(np.flatnonzero(np.isfinite(data.tokens[:, model])))[:STREAM]
    return [replace(data.views[row], model="served") for row in order], data.tokens[order, model]


def main() -> None:
    given = options(__doc__, "files+", shipped=False)

    def narrate(line: str) -> None:
        print(line, file=sys.stderr)

    paths = [Path(path) for path in given.files]
    if given.shipped:
        print(*map(table_text, shipped(map(read_dataset, paths), narrate)), sep="\n")
    else:
        print(table_text(online(Corpus.of([read_dataset(path) for path in paths]), narrate)))


if __name__ == "__main__":
    main()
