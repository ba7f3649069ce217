"""Make the shipped models again: `python -m predictor.training.shipped --data DIR [--out DIR]`.

DIR holds MANIFEST.json and the files it names. Only files that it allows train a shipped model; a prompt
that stands in several of them counts once a file, since each file has answers of its own. All files test: the
cards say how each recipe ranks distributions that it was not trained on.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from predictor.card import Calibration, Card
from predictor.lexical.predictor import predicted_by
from predictor.loading import MODELS
from predictor.lognormal import SHIFT_TOKENS
from predictor.paper import training as paper_training
from predictor.studies.evaluation import figures, judge
from predictor.studies.ours import Corpus, family, unseen
from predictor.training.dataset import Dataset, read_dataset
from predictor.training.fitting import Material, Rows, calibrate, fit, out_of_fold, prepare, save
from predictor.training.labels import label, single_answers


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
            read_dataset(directory / Path(entry["file"]).name),
            entry["source"],
            entry["licence"],
            entry["may_train_shipped_model"],
        )
        for entry in manifest
    ]


def rank_unseen(entries: list[Entry], progress: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Return what the cards of our recipe ("ours") and the paper's ("paper") say of files never seen."""
    corpus = Corpus.of(
        [entry.data for entry in entries], {entry.data.name for entry in entries if entry.allowed}
    )
    table = unseen(corpus, progress)
    *files, mean = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return {
        recipe: {
            "unseen_files": len(files),
            "unseen_ranking_accuracy": float(mean[recipe] or 0),
            "unseen_ranking_accuracy_least": min(float(row[recipe] or 0) for row in files),
        }
        for recipe in ("ours", "paper")
    }


def train_lexical(
    allowed: list[Entry],
    ranked: dict[str, float],
    out: Path,
    seed: int,
    progress: Callable[[str], None],
) -> Card:
    """Train, calibrate and write the default model; its card tells the figures of `rank_unseen` too."""
    datasets = [entry.data for entry in allowed]
    progress(f"{sum(len(data.prompts) for data in datasets)} prompts of {len(datasets)} files")
    labels = label(datasets)
    material: Material = prepare([prompt for data in datasets for prompt in data.prompts])
    scores = out_of_fold(material, labels.targets, labels.weights, seed, progress)
    drawn = draw_evenly([family(data.name) for data in datasets], labels.files, seed)
    scores, tokens = scores[drawn], single_answers(datasets, seed)[drawn]
    calibration = calibrate(scores, np.log(tokens + SHIFT_TOKENS), np.ones(len(tokens)))
    held_out = judge(
        "held out (5-fold)",
        [predicted_by(calibration, score) for score in scores],
        Dataset("all", [""] * len(tokens), [""], tokens[:, None]),
    )
    progress("all rows")
    fitted = fit(material, labels.targets, labels.weights, seed)
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


def draw_evenly(families: list[str], files: Rows, seed: int) -> Rows:
    """Draw as many rows as there are, with replacement, each family of files as often as any other.

    The level of an answer's length is that of the models and the traffic. A thousand prompts more of one
    kind tell nothing of the next: calibrated evenly, the q90 of a distribution never seen covers 0.88 of its
    answers instead of 0.77, and the class is right for 0.54 of them instead of 0.46.
    """
    known = np.array(families)[files]
    _, places, sizes = np.unique(known, return_inverse=True, return_counts=True)
    chances = 1 / sizes[places]
    return np.random.default_rng(seed).choice(len(files), len(files), p=chances / chances.sum())


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
    options = parser.parse_args()
    entries = read_manifest(options.data)
    allowed = [entry for entry in entries if entry.allowed]
    ranked = rank_unseen(entries, _narrate)
    train_lexical(allowed, ranked["ours"], options.out / "default", options.seed, _narrate)
    train_paper(allowed, ranked["paper"], options.out / "paper", options.seed, _narrate)


def _narrate(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201 - a training script speaks to whoever runs it


if __name__ == "__main__":
    main()
