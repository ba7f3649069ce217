"""Our own studies: traffic never seen, traffic learnt while served, the noise ceiling."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.card import Card
from predictor.errors import ModelError
from predictor.loading import load_model
from predictor.ranking import kendall_tau_b, pair_ranking, ranking_accuracy
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS, LoadedPredictor, PromptView
from predictor.research.studies.evaluation import calibration_error
from predictor.research.studies.families import family
from predictor.research.studies.paper import Cell, Table
from predictor.research.training import paper
from predictor.research.training.dataset import Dataset
from predictor.research.training.fitting import (
    Material,
    Numbers,
    Rows,
    calibrate_evenly,
    fit,
    out_of_fold,
    prepare,
    save,
)
from predictor.research.training.labels import Labels, label, single_answers
from predictor.semantic.opinion import Opinion

if TYPE_CHECKING:
    import xgboost

MIN_PAIRED = 20
"""Short and Long answers a model must have given before its file is judged by them."""

MIN_TRAINED = 100

MIN_ANSWERED = 0.5
"""Of a file's prompts, by a model or run that its ceiling is to be measured by."""

STREAM = 1000
SETTLED = 500
SOON = slice(100, 200)
"""Of a stream's requests: when most of what can be learnt should have been."""

MIN_STREAMED = 400
SEED = 42

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Corpus:
    """All files as one material. `trainable` marks rows that may train, `families` names their source."""

    datasets: list[Dataset]
    labels: Labels
    material: Material
    trainable: Rows
    families: list[str]

    @classmethod
    def of(cls, datasets: list[Dataset], trainable: set[str]) -> "Corpus":
        """Read all prompts of the datasets once."""
        labels = label(datasets)
        may = np.array([data.name in trainable for data in datasets])
        families = [family(data.name) for data in datasets]
        prompts = [prompt for data in datasets for prompt in data.prompts]
        return cls(
            datasets,
            labels,
            prepare(prompts, labels.files, np.unique(families, return_inverse=True)[1][labels.files]),
            np.flatnonzero(may[labels.files]),
            families,
        )

    def rows_of(self, data: Dataset) -> Rows:
        """Return the rows of one dataset."""
        return np.flatnonzero(self.labels.files == self.datasets.index(data))

    def training_rows(self, held: Collection[str]) -> Rows:
        """Return the rows to train on when families are held out: no file of them, no prompt they share.

        Raises ModelError if they are too few to train on.
        """
        files = [index for index, name in enumerate(self.families) if name in held]
        outside = ~np.isin(self.labels.files, files)
        shared = np.isin(self.material.groups, self.material.groups[~outside])
        known = self.trainable[(outside & ~shared)[self.trainable]]
        if len(known) < MIN_TRAINED:
            raise ModelError(
                f"without {', '.join(held)}, {len(known)} prompts are left to train on, not {MIN_TRAINED}: "
                "give files of more distributions"
            )
        return known


def judged_models(data: Dataset) -> list[int]:
    """Return the columns of the models with enough Short and enough Long answers."""
    shorts = (data.tokens < SHORT_BELOW_TOKENS).sum(axis=0)
    longs = (data.tokens >= LONG_FROM_TOKENS).sum(axis=0)
    return [int(column) for column in np.flatnonzero(np.minimum(shorts, longs) >= MIN_PAIRED)]


def unseen(corpus: Corpus, progress: Progress, only: Collection[str] = ()) -> Table:
    """Rank each distribution by models that never saw it: ours, the paper's features, prompt length.

    Where files are named in `only`, the others train and are not judged.
    The accuracy of a file is the mean over its models; every model answered for itself, as on a server.
    """
    rows: list[list[Cell]] = []
    for held in dict.fromkeys(corpus.families):
        files = [d for d, name in zip(corpus.datasets, corpus.families, strict=True) if name == held]
        files = [data for data in files if judged_models(data) and (not only or data.name in only)]
        if not files:
            continue
        progress(f"holding out {held}")
        known = corpus.training_rows([held])
        fitted = fit(
            corpus.material.rows(known), corpus.labels.targets[known], corpus.labels.weights[known], SEED
        )
        papers = fit_paper(corpus, known)
        for data in files:
            ours = fitted.scores(corpus.material.rows(corpus.rows_of(data)))
            theirs = paper.probability_long(papers, paper.features_of(data.prompts))
            length = np.array([float(len(prompt)) for prompt in data.prompts])
            models = judged_models(data)
            rows.append(
                [
                    data.name,
                    len(models),
                    *(_mean_ranking(scores, data, models) for scores in (ours, theirs, length)),
                    *_mean_orders(ours, data, models),
                ]
            )
    if not rows:
        raise ModelError(f"no file holds a model with {MIN_PAIRED} Short and {MIN_PAIRED} Long answers")
    columns = [np.mean([float(row[index] or 0) for row in rows]) for index in range(2, 7)]
    rows.append(["mean", sum(int(row[1] or 0) for row in rows), *map(float, columns)])
    return Table(
        "Distributions never seen",
        ["file", "models", "ours", "paper", "length", "our tau_b", "our pairs"],
        rows,
    )


def fit_paper(corpus: Corpus, known: Rows) -> "xgboost.XGBClassifier":
    """Fit the paper's model to rows of a corpus; ModelError if they lack one of its classes."""
    prompts = [prompt for data in corpus.datasets for prompt in data.prompts]
    tokens = np.concatenate([data.typical_tokens() for data in corpus.datasets])[known]
    classes = paper.classes_of(tokens)
    rows = paper.balanced(classes)
    if not len(rows):
        raise ModelError("the paper's model needs Short, Medium and Long answers in the other files")
    return paper.fit(paper.features_of([prompts[row] for row in known[rows]]), classes[rows])


def _mean_ranking(scores: Numbers, data: Dataset, models: list[int]) -> float:
    return float(np.mean([ranking_accuracy(scores, data.tokens[:, model]).accuracy for model in models]))


def _mean_orders(scores: Numbers, data: Dataset, models: list[int]) -> tuple[float, float]:
    """Return tau_b over all pairs, and the accuracy over those PARS's filter keeps, averaged over models."""
    taus, accuracies = [], []
    for model in models:
        answered = np.isfinite(data.tokens[:, model])
        ranked = scores[answered], data.tokens[answered, model]
        taus.append(kendall_tau_b(*ranked))
        accuracies.append(pair_ranking(*ranked).accuracy)
    return float(np.mean(taus)), float(np.mean(accuracies))


def online(corpus: Corpus, streams_a_file: int, progress: Progress, only: Collection[str] = ()) -> Table:
    """Serve streams of one unseen distribution and one model: predict, then learn, then the next.

    The static columns are the same model without learning; the ones named soon count requests 100 to 200, the
    late ones from request 500, or from the middle of a shorter stream. The errors are those of the class
    probabilities: of the first hundred, and of the late ones. Where Long answers are rare the accuracy hangs
    on a few of them; that over the pairs PARS's filter keeps does not. Where files are named in `only`, the
    others train and are not served.
    """
    rows: list[list[Cell]] = []
    generator = np.random.default_rng(SEED)
    for held in dict.fromkeys(corpus.families):
        files = [d for d, name in zip(corpus.datasets, corpus.families, strict=True) if name == held]
        files = [data for data in files if not only or data.name in only]
        streams = [(data, model) for data in files for model in streamed(data, streams_a_file, generator)]
        if not streams:
            continue
        progress(f"holding out {held}")
        with TemporaryDirectory() as folder:
            _train_without(corpus, held, Path(folder))
            for data, model in streams:
                rows.append(_served(load_model(folder), data, model, generator))
    if not rows:
        raise ModelError(
            f"no file holds a model with {MIN_STREAMED} answers, {MIN_PAIRED} of them Short and "
            f"{MIN_PAIRED} Long"
        )
    figures = np.array([row[2:] for row in rows], float)
    # A hundred answers may hold no Long one: there is nothing to rank then.
    for name, summary in (("mean", np.nanmean), ("least", np.nanmin), ("most", np.nanmax)):
        rows.append([name, "", *summary(figures, axis=0).tolist()])
    ranks = ["static", "learnt", "soon static", "soon learnt", "late static", "late learnt", "late gain"]
    pairs, covers = ["static pairs", "learnt pairs"], ["q90 covers", "late covers"]
    columns = ["file", "model", *ranks, *pairs, *covers, "first error", "late error"]
    return Table("Learning while serving", columns, rows)


def streamed(data: Dataset, count: int, generator: np.random.Generator) -> list[int]:
    """Return the columns of at most `count` models whose answers make a stream, drawn at random."""
    models = [
        model for model in judged_models(data) if np.isfinite(data.tokens[:, model]).sum() >= MIN_STREAMED
    ]
    return [int(model) for model in generator.permutation(models)[:count]]


def _train_without(corpus: Corpus, held: str, out: Path) -> None:
    """Train as the default model is trained; on two parts of the families, not five, for its calibration."""
    known = corpus.training_rows([held])
    material, labels = corpus.material.rows(known), corpus.labels
    files = labels.files[known]
    apart = np.unique(corpus.families, return_inverse=True)[1][files]
    groups = apart if apart.min() < apart.max() else None
    scores = out_of_fold(material, labels.targets[known], labels.weights[known], SEED, apart=groups, count=2)
    tokens = single_answers(corpus.datasets, SEED)[known]
    calibration = calibrate_evenly(scores, tokens, apart, SEED)
    fitted = fit(material, labels.targets[known], labels.weights[known], SEED)
    save(fitted, Card("unseen", "lexical", 0, calibration, [], "", {}), out)


class Served(NamedTuple):
    """A stream as it was predicted and learnt: static and learnt scores, `chances` of the three classes, and
    whether the 90 % quantile covered each answer.
    """

    tokens: Numbers
    static: Numbers
    learnt: Numbers
    chances: Numbers
    covered: npt.NDArray[np.bool_]

    @property
    def late(self) -> slice:
        """Return the requests of a stream that has settled."""
        return slice(min(SETTLED, len(self.tokens) // 2), None)

    def accuracies(self, some: slice) -> list[float]:
        """Return the ranking accuracy of the static scores and of the learnt ones."""
        return [ranking_accuracy(each[some], self.tokens[some]).accuracy for each in self.scores]

    def pairs(self, some: slice) -> list[float]:
        """Return the same over the pairs that PARS's filter keeps."""
        return [pair_ranking(each[some], self.tokens[some]).accuracy for each in self.scores]

    def error(self, some: slice) -> float:
        """Return how far off the class probabilities were."""
        real = np.searchsorted((SHORT_BELOW_TOKENS, LONG_FROM_TOKENS), self.tokens[some], "right")
        return calibration_error(self.chances[some], real)

    @property
    def scores(self) -> tuple[Numbers, Numbers]:
        """Return the static scores and the learnt ones."""
        return self.static, self.learnt


def draw_stream(data: Dataset, model: int, generator: np.random.Generator) -> Rows:
    """Return the rows of at most `STREAM` prompts that a model answered, in random order."""
    return generator.permutation(np.flatnonzero(np.isfinite(data.tokens[:, model])))[:STREAM]


def serve(
    loaded: LoadedPredictor,
    prompts: list[str],
    tokens: Numbers,
    opinions: Sequence[Opinion] | None = None,
    cap: int | None = None,
) -> Served:
    """Predict each request of a stream, of at most `cap` tokens, then learn its answer."""
    rows = []
    for place, (prompt, count) in enumerate(zip(prompts, tokens, strict=True)):
        opinion = None if opinions is None else opinions[place]
        prediction = loaded.predict(PromptView(prompt, model="served", max_tokens=cap), opinion)
        chances = prediction.p_short, prediction.p_medium, prediction.p_long
        static = prediction.memo.static  # type: ignore[attr-defined]
        rows.append((static, prediction.score, chances, count <= prediction.q90_tokens))
        loaded.learn(prediction, int(count))
    return Served(tokens, *(np.array(column) for column in zip(*rows, strict=True)))


def _served(loaded: LoadedPredictor, data: Dataset, model: int, generator: np.random.Generator) -> list[Cell]:
    order = draw_stream(data, model, generator)
    stream = serve(loaded, [data.prompts[row] for row in order], data.tokens[order, model])
    whole, late = slice(None), stream.late
    static, learnt = stream.accuracies(late)
    return [
        data.name,
        data.models[model],
        *stream.accuracies(whole),
        *stream.accuracies(SOON),
        *(static, learnt, learnt - static),
        *stream.pairs(late),
        *(float(np.mean(stream.covered[some])) for some in (whole, late)),
        *(stream.error(some) for some in (slice(SOON.start), late)),
    ]


def ceiling(datasets: list[Dataset]) -> Table:
    """Rank a model's answers by its other answers to the same prompts: what no predictor can beat.

    Each column of a dataset is a run of the same model, or another model: what others' answers say of one
    model's is what a prompt alone could tell at best. tau_b and the pairs that PARS's filter keeps are ranked
    by the mean of the others. A column that lacks half of the answers is left out.
    """
    rows: list[list[Cell]] = []
    for data in datasets:
        columns = np.isfinite(data.tokens).mean(axis=0) >= MIN_ANSWERED
        if columns.sum() < 2:
            raise ModelError(f"{data.name} holds one answer a prompt: the ceiling needs repeated runs")
        rows.append([data.name, int(columns.sum()), *_mean_agreement(data.tokens[:, columns])])
    columns = ["file", "runs", "one other run", "mean of the others", "its tau_b", "its pairs"]
    return Table("Noise ceiling", columns, rows)


def _mean_agreement(answers: Numbers) -> list[float]:
    complete = answers[np.isfinite(answers).all(axis=1)]
    figures = []
    for run, tokens in enumerate(complete.T):
        others = np.log(np.delete(complete, run, axis=1) + 1)
        mean = others.mean(axis=1)
        figures.append(
            [
                ranking_accuracy(others[:, run % others.shape[1]], tokens).accuracy,
                ranking_accuracy(mean, tokens).accuracy,
                kendall_tau_b(mean, tokens),
                pair_ranking(mean, tokens).accuracy,
            ]
        )
    columns = [[value for value in column if not np.isnan(value)] for column in zip(*figures, strict=True)]
    return [float(np.mean(column)) if column else float("nan") for column in columns]
