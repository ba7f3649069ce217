"""The demo's questions, and what is summed up of their answers."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.demo.questions import TITLED, Call, Question, load_questions
from clairvoyant_cli.demo.race import MOST_QUESTIONS, Sojourn, by_class, change_of, draw
from predictor.record import LengthClass
from profiles.percentiles import percentile


def test_demo_questions_are_distinct_and_titles_fit_their_column() -> None:
    pools = load_questions(TITLED)
    questions = [*pools[LengthClass.SHORT], *pools[LengthClass.LONG]]
    assert len(pools[LengthClass.SHORT]) == len(pools[LengthClass.LONG]) == MOST_QUESTIONS // 2
    assert len({q.prompt for q in questions}) == len({q.title for q in questions}) == len(questions)
    assert max(len(q.title) for q in questions) <= 22


@given(count=st.integers(2, MOST_QUESTIONS), seed=st.integers())
def test_a_burst_is_mixed_and_repeatable(count: int, seed: int) -> None:
    burst = draw(count, seed)
    assert burst == draw(count, seed)
    assert len(set(burst)) == count
    classes = Counter(q.length_class for q in burst)
    assert classes[LengthClass.SHORT] - classes[LengthClass.LONG] in (0, 1)


@given(
    values=st.lists(st.floats(0, 1e6), min_size=1).map(sorted),
    fraction=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_percentiles_are_those_of_numpy(values: list[float], fraction: float) -> None:
    assert percentile(values, fraction) == pytest.approx(float(np.quantile(values, fraction)), rel=1e-9)


def test_failed_calls_are_not_counted() -> None:
    short, long = Question("a", 10), Question("b", 1000)
    calls = [
        Call(short, sent_s=0.0, ended_s=1.0),
        Call(short, sent_s=0.0, ended_s=3.0),
        Call(short, sent_s=0.0, ended_s=0.1, error="HTTP 503"),
        Call(long, sent_s=0.0),
    ]
    summed = by_class(calls)
    assert list(summed) == ["short", "all"]
    assert summed["short"] == summed["all"] == Sojourn(2, 2.0, 2.0, 2.9)


def test_change_is_relative() -> None:
    assert change_of(2.0, 1.0) == -0.5
    assert change_of(0.0, 1.0) is None
