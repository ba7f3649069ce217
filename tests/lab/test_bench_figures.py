"""What is made of a bench's cells: figures, comparisons, tables and charts."""

from dataclasses import replace

import numpy as np
import pytest
from clairvoyant_lab.bench.asker import Call
from clairvoyant_lab.bench.prompts import Question
from clairvoyant_lab.bench.report import (
    Findings,
    conclusions,
)
from clairvoyant_lab.bench.summary import Cell, figures_of, ranking_accuracy, summarise
from clairvoyant_lab.confidence import half_width, jain
from hypothesis import given
from hypothesis import strategies as st

from predictor.record import LengthClass


def answer(kind: str, sojourn_s: float, tokens: int = 10, predicted: float | None = None) -> Call:
    question = Question("", tokens, known_class=LengthClass(kind))
    return Call(question, 0.0, sojourn_s, tokens, first_token_s=sojourn_s / 2, predicted_tokens=predicted)


def cell(arm: str, run: int = 0, load: str = "burst", scale: float = 1.0) -> Cell:
    shorts = [answer("short", scale * s, 10, 20.0) for s in (1.0, 2.0, 3.0)]
    longs = [answer("long", scale * s, 100, 900.0) for s in (10.0, 20.0)]
    return Cell(load, run, arm, (*shorts, *longs), {"tau firings": 2})


def test_figures_are_by_class_and_of_all() -> None:
    figures = figures_of(cell("fcfs"))
    assert figures["short", "sojourn p50"] == 2.0
    assert figures["short", "ttft p50"] == 1.0
    assert figures["long", "per token mean"] == pytest.approx(0.15)
    assert figures["all", "answered"] == 5
    assert figures["all", "tau firings"] == 2
    assert figures["all", "ranking"] == 1.0


def test_failed_requests_are_counted_and_in_no_other_figure() -> None:
    failed = Call(Question("", 10), 0.0, error="HTTP 502")
    with_failure = replace(cell("fcfs"), calls=(*cell("fcfs").calls, failed))
    figures, clean = figures_of(with_failure), figures_of(cell("fcfs"))
    assert figures["all", "failed"] == 1
    assert {key: value for key, value in figures.items() if key != ("all", "failed")} == {
        key: value for key, value in clean.items() if key != ("all", "failed")
    }


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30))
def test_jain_is_between_one_in_n_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain(np.array(values)) <= 1 + 1e-9
    assert jain(np.full(len(values), 3.0)) == pytest.approx(1.0)


def test_ranking_counts_ties_half() -> None:
    pairs = [answer("short", 1, predicted=5), answer("long", 1, predicted=5), answer("long", 1, predicted=9)]
    assert ranking_accuracy(pairs) == 0.75
    assert ranking_accuracy([answer("short", 1)]) is None


def test_changes_are_paired_by_run() -> None:
    cells = [cell("fcfs"), cell("fcfs", 1, scale=2.0), cell("half", scale=0.5), cell("half", 1, scale=1.0)]
    summaries = {summary.arm: summary for summary in summarise(cells, "fcfs")}
    change = summaries["half"].changes["short", "sojourn p50"]
    assert (change.mean, change.half_width, change.n) == (-0.5, 0.0, 2)
    p50 = summaries["fcfs"].figures["short", "sojourn p50"]
    assert p50.mean == 3.0
    assert p50.half_width == pytest.approx(half_width(float(np.std([2.0, 4.0], ddof=1)), 2))


def findings(loads: tuple[str, ...] = ("burst",)) -> Findings:
    cells = [cell(arm, run, load) for load in loads for run in (0, 1) for arm in ("fcfs", "sjf", "oracle")]
    summaries = summarise(cells, "fcfs")
    return Findings("Bench <1>", "clairvoyant bench", {"cpu": "a|b"}, {}, ("A note.",), summaries, cells)


def test_a_report_begins_with_the_change_of_the_median() -> None:
    scales = {"fcfs": (1.0, 1.0), "bounded": (0.4, 0.41), "sjf": (1.29, 1.31), "fair": (0.5, 1.6)}
    cells = [cell(arm, run, scale=scale) for arm, both in scales.items() for run, scale in enumerate(both)]

    def verdict(*arms: str) -> str:
        found = summarise([each for each in cells if each.arm in ("fcfs", *arms)], "fcfs")
        [said] = conclusions(replace(findings(), summaries=found))
        return said

    assert verdict("sjf", "bounded").startswith(
        "burst, bounded against fcfs, at the median: short answers 60%"
    )
    assert "short answers 30% later, long answers 30% later." in verdict("sjf")
    assert "not significantly changed" in verdict("fair")
    assert list(conclusions(replace(findings(), summaries=summarise(cells[:2], "fcfs")))) == []
