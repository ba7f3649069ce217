"""The studies on small made-up distributions, where what they must find is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clairvoyant_lab.commands import study
from click.testing import CliRunner

pytest.importorskip("xgboost")

LENGTHS = {"Who is": 60, "Summarize the life of": 400, "Write a detailed essay about": 1500}
NAMES = "river castle engine planet garden bridge island forest mirror candle".split()


def _distribution(path: Path, seed: int, models: int = 1, each: int = 60) -> Path:
    """Write prompts whose opening words set the length, with a spread of a fifth."""
    generator = np.random.default_rng(seed)
    with path.open("w") as file:
        for number in range(each):
            for opening, length in LENGTHS.items():
                prompt = f"{opening} the {NAMES[number % len(NAMES)]} of {path.stem} {number}"
                tokens = {
                    f"model{model}": round(length * float(generator.uniform(0.8, 1.2)))
                    for model in range(models)
                }
                file.write(json.dumps({"prompt": prompt, "tokens": tokens}) + "\n")
    return path


def _table(name: str, *arguments: object) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(study.command, [name, *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.exception
    table = json.loads(result.stdout)
    return {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}


def test_families_never_seen_are_ranked(tmp_path: Path) -> None:
    names = ("alpha", "mt_bench_a", "mt_bench_b", "gamma", "cot_delta")
    rows = _table("unseen", *(_distribution(tmp_path / f"{name}.jsonl", 3 + len(name)) for name in names))
    assert rows["mean over families"]["ours"] > 0.9
    assert rows["least"]["ours"] == min(rows[name]["ours"] for name in names)
    assert rows["kind: reasoning"]["ours"] == rows["cot_delta"]["ours"]
    assert rows["cot_delta"]["kinds"] == "reasoning"
    assert rows["mean over files"]["trees"] > 0.9


def test_repeated_runs_give_the_ceiling(tmp_path: Path) -> None:
    row = _table("ceiling", _distribution(tmp_path / "runs.jsonl", 7, models=3))["runs"]
    assert row["runs"] == 3
    assert row["one other run"] == row["mean of the others"] == 1.0
    assert (1 + row["its tau_b"]) / 2 < row["its pairs"] <= 1.0


def test_a_family_is_never_judged_by_what_saw_a_part_of_it(tmp_path: Path) -> None:
    from clairvoyant_lab.studies.unseen import Corpus, deal
    from clairvoyant_lab.training.dataset import read_dataset

    names = ("alpha", "mt_bench_a", "mt_bench_b", "gamma")
    datasets = [read_dataset(_distribution(tmp_path / f"{name}.jsonl", 3 + len(name))) for name in names]
    corpus = Corpus.of(datasets)
    assert sorted(name for part in deal(datasets) for name in part) == ["alpha", "gamma", "mt_bench"]
    known = corpus.training_rows(["mt_bench"])
    assert {names[file] for file in corpus.labels.files[known]} == {"alpha", "gamma"}
