"""Recorded requests: which files are read, and what is said of those that cannot be."""

import gzip
import json
from pathlib import Path

import pytest
from clairvoyant_lab.simulator.traces import read_history
from clairvoyant_lab.simulator.workload import LONG, MEDIUM, SHORT


def test_an_azure_trace(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,1000\n"
    )
    workload = read_history(path, decode_rate=100.0).workload
    assert workload.arrival_s.tolist() == pytest.approx([0.0, 4.314579], abs=1e-5)
    assert workload.service_s.tolist() == pytest.approx([0.374 + 0.44, 0.396 + 10.0])
    assert workload.kind.tolist() == [SHORT, LONG]


def test_a_mooncake_trace_in_milliseconds_and_gzipped(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl.gz"
    rows = [
        {"timestamp": 3000, "input_length": 10, "output_length": 300},
        {"timestamp": 0, "input_length": 5, "output_length": 9},
    ]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(json.dumps(row) for row in rows))
    workload = read_history(path).workload
    assert workload.arrival_s.tolist() == [0.0, 3.0]
    assert workload.kind.tolist() == [SHORT, MEDIUM]


def test_a_history_with_predictions_and_prompts(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    rows = [
        {
            "arrival_s": 5,
            "service_s": 2.0,
            "tokens": 80,
            "predicted_tokens": 100,
            "client": "a",
        },
        {
            "arrival_s": 1,
            "service_s": 4.0,
            "tokens": 160,
            "predicted_tokens": 50,
            "client": "b",
        },
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    history = read_history(path)
    assert history.predictions is not None
    assert history.predictions.tokens.tolist() == [50.0, 100.0]
    assert history.predictions.cost_s.tolist() == pytest.approx([1.25, 2.5])
    assert len(read_history(path, limit=1).workload) == 1
