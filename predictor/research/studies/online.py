"""Serves streams of requests: each is predicted, then learned from, as a server meets them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.card import Card
from predictor.errors import ModelError
from predictor.loading import load_model
from predictor.ranking import ranking_accuracy
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, Predictor, PromptView
from predictor.research.studies.evaluation import calibration_error
from predictor.research.studies.runner import Cell, Progress, StudyTable
from predictor.research.studies.unseen import SEED, Corpus
from predictor.research.training.dataset import Dataset
from predictor.research.training.fitting import save
from predictor.research.training.material import Numbers

STREAMS_A_FILE = 1
STREAM = 1000
SETTLED = 500
SOON = slice(100, 200)  # of a stream's requests: when most of what can be learned should have been
MIN_STREAMED = 400
MIN_PAIRED = 20  # Short and Long answers a model must have given before it is served


class Served(NamedTuple):
    """A stream as it was predicted. `covered` says whether q90 covered each answer."""

    tokens: Numbers
    static: Numbers
    learnt: Numbers
    chances: Numbers
    covered: npt.NDArray[np.bool_]

    def accuracies(self, some: slice) -> list[float]:
        """Return the ranking accuracy of the static scores and of the learned ones."""
        return [
            ranking_accuracy(each[some], self.tokens[some]).accuracy for each in (self.static, self.learnt)
        ]


def serve(predictor: Predictor, prompts: list[str], tokens: Numbers) -> Served:
    """Predict each request of a stream, then learn its answer."""
    rows = []
    for prompt, count in zip(prompts, tokens, strict=True):
        prediction = predictor.predict(PromptView(prompt, model="served"))
        chances = prediction.p_short, prediction.p_medium, prediction.p_long
        static = prediction.memo.static  # type: ignore[attr-defined]
        rows.append((static, prediction.score, chances, count <= prediction.q90_tokens))
        predictor.learn(prediction, int(count))
    return Served(tokens, *(np.array(column) for column in zip(*rows, strict=True)))


def online(corpus: Corpus, progress: Progress) -> StudyTable:
    """Serve streams of one unseen file and one model: predict, then learn, then the next.

    "soon" counts requests 100 to 200, "late" those from request 500 or from the middle of a shorter stream.
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
                order = _draw(data, model, generator)
                prompts = [data.prompts[row] for row in order]
                served = serve(load_model(folder), prompts, data.tokens[order, model])
                rows.append([data.name, data.models[model], *_figures(served)])
    ranks = ["static", "learnt", "soon static", "soon learnt", "late static", "late learnt", "late gain"]
    columns = ["file", "model", *ranks, "late covers", "late error"]
    if not rows:
        raise ModelError(
            f"no file holds a model with {MIN_STREAMED} answers, {MIN_PAIRED} of them Short and "
            f"{MIN_PAIRED} Long"
        )
    figures = np.array([row[2:] for row in rows], float)
    # A hundred answers may hold no Long one: there is nothing to rank then.
    for name, summary in (("mean", np.nanmean), ("least", np.nanmin)):
        rows.append([name, "", *summary(figures, axis=0).tolist()])
    return StudyTable("Learning while serving", columns, rows)


def _figures(served: Served) -> list[float]:
    late = slice(min(SETTLED, len(served.tokens) // 2), None)
    static, learnt = served.accuracies(late)
    ranks = [*served.accuracies(slice(None)), *served.accuracies(SOON), static, learnt, learnt - static]
    real = np.searchsorted((SHORT_BELOW_TOKENS, LONG_FROM_TOKENS), served.tokens[late], "right")
    return [*ranks, float(np.mean(served.covered[late])), calibration_error(served.chances[late], real)]


def _streams(data: Dataset, generator: np.random.Generator) -> list[tuple[Dataset, int]]:
    """Return a file with the columns of models whose answers make a stream, drawn at random."""
    shorts, longs = data.tokens < SHORT_BELOW_TOKENS, data.tokens >= LONG_FROM_TOKENS
    enough = np.minimum(shorts.sum(axis=0), longs.sum(axis=0)) >= MIN_PAIRED
    enough &= np.isfinite(data.tokens).sum(axis=0) >= MIN_STREAMED
    return [(data, int(model)) for model in generator.permutation(np.flatnonzero(enough))[:STREAMS_A_FILE]]


def _draw(data: Dataset, model: int, generator: np.random.Generator) -> npt.NDArray[np.intp]:
    """Return the rows of at most `STREAM` prompts that a model answered, in random order."""
    return generator.permutation(np.flatnonzero(np.isfinite(data.tokens[:, model])))[:STREAM]
