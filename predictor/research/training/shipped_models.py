"""Train the shipped models.

Usage: `python -m predictor.research.training.shipped_models --data DIR [--out DIR] [--page FILE]`.

DIR holds MANIFEST.json and the files it names. Only files that it allows train a shipped model; a prompt
that stands in several of them counts once a file, since each file has answers of its own. All files test: the
cards say how each recipe ranks distributions that it was not trained on, and a page says it of each file.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from predictor.card import Calibration, Card
from predictor.loading import MODELS
from predictor.prediction import predicted_by
from predictor.research.studies.evaluation import figures, judge
from predictor.research.studies.families import family
from predictor.research.studies.nested import Nested, Recipe, family_weights, nested
from predictor.research.studies.page import page
from predictor.research.studies.traffic import Corpus
from predictor.research.training import paper as paper_training
from predictor.research.training.dataset import CHARACTERS_A_TOKEN, Dataset, read_dataset
from predictor.research.training.fitting import (
    Material,
    calibrate_evenly,
    draw_evenly,
    fit,
    out_of_fold,
    prepare,
    save,
)
from predictor.research.training.labels import label, single_answers

CHARACTERS_A_TOKEN_IN = {"zh": 1.5, "ja": 1.5, "ko": 1.7, "ru": 2.5}
"""Where answers are counted in characters; everywhere else a token is taken for `CHARACTERS_A_TOKEN`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the manifest. `allowed` says whether a shipped model may be trained on it."""

    data: Dataset
    source: str
    licence: str
    allowed: bool


def read_manifest(directory: Path) -> list[Entry]:
    """Read every file of prompts that MANIFEST.json names."""
    manifest = json.loads((directory / "MANIFEST.json").read_text(encoding="utf-8"))
    return [
        Entry(
            _counted(read_dataset(directory / Path(entry["file"]).name), entry.get("language", "")),
            entry["source"],
            entry["licence"],
            entry["may_train_shipped_model"],
        )
        for entry in manifest
    ]


def _counted(data: Dataset, language: str) -> Dataset:
    """Return a file's answers in tokens as its language has them; only characters were counted of these."""
    factor = CHARACTERS_A_TOKEN / CHARACTERS_A_TOKEN_IN.get(language, CHARACTERS_A_TOKEN)
    return data if factor == 1 else replace(data, tokens=data.tokens * factor)


@dataclass(frozen=True, slots=True)
class Unseen:
    """What the honest judge says, and the `metrics` of it, of our recipe ("ours") and of the paper's."""

    metrics: dict[str, dict[str, float]]
    judged: Nested


def rank_unseen(entries: list[Entry], progress: Callable[[str], None]) -> Unseen:
    """Return what the cards say of families never seen, and the recipe to train by."""
    corpus = Corpus.of(
        [entry.data for entry in entries], {entry.data.name for entry in entries if entry.allowed}
    )
    judged = nested(corpus, progress)
    rows = {str(row[0]): dict(zip(judged.table.columns, row, strict=True)) for row in judged.table.rows}
    files = sum(name in {data.name for data in corpus.datasets} for name in rows)
    metrics = {
        recipe: {
            "nested_files": files,
            "nested_ranking_accuracy": float(rows["mean over families"][recipe] or 0),
            "nested_ranking_accuracy_files": float(rows["mean over files"][recipe] or 0),
            "nested_ranking_accuracy_least": float(rows["least"][recipe] or 0),
        }
        for recipe in ("ours", "paper")
    }
    return Unseen(metrics, judged)


def train_lexical(
    allowed: list[Entry],
    ranked: dict[str, float],
    recipe: Recipe,
    out: Path,
    seed: int,
    progress: Callable[[str], None],
) -> Card:
    """Train, calibrate and write the default model; its card tells the figures of `rank_unseen` too.

    It is calibrated on families held out: within a family its scores are surer than they are anywhere else.
    """
    datasets = [entry.data for entry in allowed]
    progress(f"{sum(len(data.prompts) for data in datasets)} prompts of {len(datasets)} files")
    labels = label(datasets, recipe.absolute_share)
    families = [family(data.name) for data in datasets]
    apart = np.unique(families, return_inverse=True)[1][labels.files]
    prompts = [prompt for data in datasets for prompt in data.prompts]
    material: Material = prepare(prompts, labels.files, apart)
    weights = labels.weights
    if recipe.even:
        weights = family_weights(weights, [families[file] for file in labels.files])
    scores = out_of_fold(material, labels.targets, weights, seed, progress, apart)
    tokens = single_answers(datasets, seed)
    calibration = calibrate_evenly(scores, tokens, apart, seed)
    drawn = draw_evenly(tokens, apart, seed)
    scores, tokens = scores[drawn], tokens[drawn]
    held_out = judge(
        "families held out (5-fold)",
        [predicted_by(calibration, score) for score in scores],
        Dataset("all", [""] * len(tokens), [""], tokens[:, None]),
    )
    progress("all rows")
    fitted = fit(material, labels.targets, weights, seed)
    card = Card(
        name="default",
        kind="lexical",
        features_version=0,
        calibration=calibration,
        data=[data.name for data in datasets],
        licence="MIT; trained on data under " + ", ".join(sorted({entry.licence for entry in allowed})),
        metrics={**figures(held_out), **ranked},
        seed=seed,
        sources=sources(allowed),
    )
    return save(fitted, card, out)


def train_paper(
    allowed: list[Entry],
    ranked: dict[str, float],
    out: Path,
    seed: int,
    progress: Callable[[str], None],
) -> None:
    """Train and write the paper's model on the same files, balanced by class."""
    datasets = [entry.data for entry in allowed]
    classes = paper_training.classes_of(np.concatenate([data.typical_tokens() for data in datasets]))
    features = paper_training.features_of([prompt for data in datasets for prompt in data.prompts])
    rows = paper_training.balanced(classes, seed)
    model = paper_training.fit(features[rows], classes[rows], seed)
    card = Card(
        name="paper",
        kind="paper",
        features_version=1,
        calibration=Calibration(0.0, 1.0, 1.0),
        data=[data.name for data in datasets],
        licence="MIT; trained on data under " + ", ".join(sorted({entry.licence for entry in allowed})),
        metrics={"prompts": float(len(rows)), **ranked},
        seed=seed,
        sources=sources(allowed),
    )
    difference = paper_training.save(model, card, out, features)
    progress(f"paper: ONNX and XGBoost differ by {difference:.1e} at most")


def sources(entries: list[Entry]) -> dict[str, str]:
    """Return where each dataset is from and under which licence, for a card."""
    return {entry.data.name: f"{entry.source}; {entry.licence}" for entry in entries}


def main() -> None:
    """Train the shipped models from a data directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with MANIFEST.json")
    parser.add_argument("--out", type=Path, default=MODELS, help="where the model directories go")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--page", type=Path, help="where a page about each file goes")
    options = parser.parse_args()
    entries = read_manifest(options.data)
    allowed = [entry for entry in entries if entry.allowed]
    ranked = rank_unseen(entries, narrate)
    if options.page is not None:
        options.page.write_text(page(ranked.judged, [entry.data for entry in entries]), encoding="utf-8")
    train_lexical(
        allowed, ranked.metrics["ours"], ranked.judged.chosen, options.out / "default", options.seed, narrate
    )
    train_paper(allowed, ranked.metrics["paper"], options.out / "paper", options.seed, narrate)


def narrate(line: str) -> None:
    """Say how far a training script has come."""
    print(line, file=sys.stderr)  # noqa: T201 - a training script speaks to whoever runs it


if __name__ == "__main__":
    main()
