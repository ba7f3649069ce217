"""Train the shipped model of answer lengths.

Usage: `python -m clairvoyant_lab.training.shipped_models --data DIR [--out DIR]`.

DIR holds MANIFEST.json and the files it names. Only files that it allows train a model; all of them test: the
card gives the ranking accuracy on families of files that a model was not trained on. The rows of the study
"unseen" go to standard error; characters are tokens as the manifest's languages have them.
"""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from clairvoyant_lab.studies.evaluation import figures, judge, predict_by
from clairvoyant_lab.studies.unseen import SEED, Corpus, unseen
from clairvoyant_lab.training.dataset import CHARACTERS_A_TOKEN, Dataset, read_dataset
from clairvoyant_lab.training.fitting import FOLDS, draw_evenly, save
from clairvoyant_lab.training.material import single_answers
from predictor.card import Calibration, Card
from predictor.loading import MODELS
from predictor.record import PromptView

CHARACTERS_A_TOKEN_IN = {"zh": 1.5, "ja": 1.5, "ko": 1.7, "ru": 2.5}
"""Where answers are counted in characters; in other languages a token has `CHARACTERS_A_TOKEN`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the manifest. `allowed` says whether a shipped model may be trained on it."""

    data: Dataset
    source: str
    licence: str
    allowed: bool


def read_manifest(directory: Path) -> list[Entry]:
    """Read every file of prompts that MANIFEST.json names."""
    entries = []
    for fields in json.loads((directory / "MANIFEST.json").read_text(encoding="utf-8")):
        data = read_dataset(directory / Path(fields["file"]).name)
        language = fields.get("language", "")
        factor = CHARACTERS_A_TOKEN / CHARACTERS_A_TOKEN_IN.get(language, CHARACTERS_A_TOKEN)
        data = replace(data, tokens=data.tokens * factor)
        entries.append(Entry(data, fields["source"], fields["licence"], fields["may_train_shipped_model"]))
    return entries


def card_of(
    name: str, kind: str, allowed: list[Entry], calibration: Calibration, metrics: dict[str, float]
) -> Card:
    """Return the card of a model that was trained on some files of the manifest."""
    licences = ", ".join(sorted({entry.licence for entry in allowed}))
    return Card(
        name=name,
        kind=kind,
        features_version=1,
        calibration=calibration,
        data=[entry.data.name for entry in allowed],
        licence=f"MIT; trained on data under {licences}",
        metrics=metrics,
        seed=SEED,
        sources={entry.data.name: f"{entry.source}; {entry.licence}" for entry in allowed},
    )


def rank_unseen(entries: list[Entry]) -> dict[str, float]:
    """Return what the card says of unseen families."""
    corpus = Corpus.of(
        [entry.data for entry in entries], {entry.data.name for entry in entries if entry.allowed}
    )
    table = unseen(corpus, narrate)
    for row in table.rows:
        narrate(json.dumps(row))
    rows = {str(row[0]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    return {
        "unseen_files": float(rows["mean over files"]["prompts"] or 0),
        "unseen_ranking_accuracy": float(rows["mean over files"]["ours"] or 0),
        "unseen_ranking_accuracy_least": float(rows["least"]["ours"] or 0),
    }


def train_lexical(allowed: list[Entry], ranked: dict[str, float], out: Path) -> None:
    """Train and write the default model, calibrated on families held out of training."""
    corpus = Corpus.of([entry.data for entry in allowed])
    apart = corpus.material.families
    narrate(f"{len(apart)} prompts of {len(allowed)} files")
    rows = np.arange(len(apart))
    scores, calibration = corpus.calibrated(rows, FOLDS, narrate)
    tokens = single_answers(corpus.datasets, SEED)
    drawn = draw_evenly(tokens, apart, SEED)
    views = [PromptView("")] * len(drawn)
    held_out = judge(
        "families held out (5-fold)",
        predict_by(calibration, scores[drawn], views),
        Dataset("all", views, [""], tokens[drawn, None]),
    )
    narrate("all rows")
    fitted = corpus.fit(rows)
    metrics = {**figures(held_out), **ranked}
    save(fitted, card_of("default", "lexical", allowed, calibration, metrics), out)


def narrate(line: str) -> None:
    """Print how far a training script has come."""
    print(line, file=sys.stderr)  # noqa: T201 - a script


def main() -> None:
    """Train the shipped model from a data directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with MANIFEST.json")
    parser.add_argument("--out", type=Path, default=MODELS, help="where its directory goes")
    options = parser.parse_args()
    entries = read_manifest(options.data)
    allowed = [entry for entry in entries if entry.allowed]
    train_lexical(allowed, rank_unseen(entries), options.out / "default")


if __name__ == "__main__":
    main()
