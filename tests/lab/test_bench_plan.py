"""Plans of a bench: arrivals, traces, arms and prompts."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest
from clairvoyant_lab.bench.arms import Arm, Knowledge, OraclePredictor, parse_arm
from clairvoyant_lab.bench.plan import (
    PaperAnswers,
    as_written,
    burst,
    poisson,
    without_repeats,
)
from clairvoyant_lab.bench.prompts import load_prompts
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.errors import ClairvoyantError
from predictor.record import LengthClass, Prediction, Predictor, PromptView

POOLS = load_prompts()
SHORT, LONG = LengthClass.SHORT, LengthClass.LONG


def test_the_shipped_prompts_are_enough_for_a_burst_without_repeats() -> None:
    assert min(len(POOLS[SHORT]), len(POOLS[LONG])) >= 50
    prompts = [question.prompt for pool in POOLS.values() for question in pool]
    assert len(set(prompts)) == len(prompts)


def test_a_prompt_may_come_with_its_class_and_the_limit_of_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = ('"max_tokens": 40', '"max_tokens": 300, "class": "long"', '"tokens": 9, "max_tokens": 50')
    file.write_text("".join(f'{{"prompt": "{n}", {line}}}\n' for n, line in enumerate(lines)))
    pools = load_prompts(file)
    read = {q.prompt: (kind, q.tokens, q.max_tokens) for kind, pool in pools.items() for q in pool}
    assert read == {"0": (SHORT, 40, 40), "1": (LONG, 300, 300), "2": (SHORT, 9, 50)}


@given(count=st.integers(2, 120), seed=st.integers())
def test_a_burst_is_half_short_and_repeats_nothing_early(count: int, seed: int) -> None:
    plan = burst(count, 0.001, without_repeats(as_written(POOLS), POOLS), Random(seed))
    again = burst(count, 0.001, without_repeats(as_written(POOLS), POOLS), Random(seed))
    assert plan == again
    kinds = Counter(arrival.question.length_class for arrival in plan)
    assert kinds[SHORT] - kinds[LONG] in (0, 1)
    if count // 2 <= 60:
        assert len({arrival.question.prompt for arrival in plan}) == count


def test_the_papers_service_times_are_drawn_by_class() -> None:
    paper = PaperAnswers(POOLS)
    rng = Random(1)
    for kind, mean_s, sd_s in ((SHORT, 3.5, 0.8), (LONG, 8.9, 2.0)):
        times = [paper(kind, rng).tokens / paper.tokens_per_s for _ in range(4000)]
        assert fmean(times) == pytest.approx(mean_s, rel=0.03)
        assert pstdev(times) == pytest.approx(sd_s, rel=0.05)
    assert paper(LONG, rng).length_class is LONG
    assert paper.service.mean_s == pytest.approx(6.2)


def test_poisson_arrivals_have_the_given_rate() -> None:
    plan = poisson(4000, 0.12, as_written(POOLS), Random(2))
    assert plan[-1].at_s / 4000 == pytest.approx(1 / 0.12, rel=0.05)
    assert all(a.at_s < b.at_s for a, b in pairwise(plan))


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        ("direct", Arm("direct", None)),
        ("fcfs", Arm("fcfs", "fcfs")),
        ("oracle", Arm("oracle", "oracle", Knowledge.LENGTHS)),
        ("sjf@classes:10.5", Arm("sjf@classes:10.5", "sjf", Knowledge.CLASSES, 10.5)),
        ("bounded:0", Arm("bounded:0", "bounded", tau_s=0.0)),
        ("srpt@85%:35", Arm("srpt@85%:35", "srpt", Knowledge.CLASSES, 35.0, 0.85)),
    ],
)
def test_arms_are_parsed(text: str, arm: Arm) -> None:
    assert parse_arm(text) == arm


@pytest.mark.parametrize(
    "text", ["", "sfj", "sjf@all", "sjf:soon", "sjf:-1", "sjf:nan", "direct:3", "sjf@40%", "oracles"]
)
def test_invalid_arms_are_refused(text: str) -> None:
    with pytest.raises(ClairvoyantError, match="arm"):
        parse_arm(text)


class Wary(Predictor):
    """A predictor that writes down what it is shown."""

    name = "wary"

    def __init__(self) -> None:
        self.shown: list[PromptView] = []

    def predict(self, view: PromptView, opinion: object = None) -> Prediction:
        self.shown.append(view)
        return Prediction(1.0, 0.0, 0.0, 0.0, 50.0, 90.0, self.name, memo=object())

    def learn(self, prediction: Prediction, tokens: int) -> None:
        raise AssertionError("a bench teaches nothing")


@pytest.fixture
def oracle() -> Callable[[Knowledge], OraclePredictor]:
    def make(knowledge: Knowledge) -> OraclePredictor:
        return OraclePredictor(Wary(), {"essay": LONG}, {LONG: 1100.0}, {"essay": 987}, knowledge)

    return make


def test_predictions_do_not_see_the_length_that_the_bench_sets(
    oracle: Callable[[Knowledge], OraclePredictor],
) -> None:
    knows = oracle(Knowledge.PREDICTED)
    said = knows.predict(PromptView("essay", max_tokens=1234))
    assert isinstance(knows.shipped, Wary)
    assert [view.max_tokens for view in knows.shipped.shown] == [None]
    assert (said.source, said.memo) == ("wary", None)
    knows.learn(said, 1234)


def test_the_oracle_predicts_classes_or_lengths(oracle: Callable[[Knowledge], OraclePredictor]) -> None:
    said = oracle(Knowledge.CLASSES).predict(PromptView("essay", max_tokens=1234))
    assert (said.length_class, said.expected_tokens, said.p_long) == (LONG, 1100.0, 1.0)
    assert oracle(Knowledge.LENGTHS).predict(PromptView("essay", max_tokens=1234)).expected_tokens == 987
    assert oracle(Knowledge.LENGTHS).predict(PromptView("other", max_tokens=1234)).expected_tokens == 1234
    assert oracle(Knowledge.LENGTHS).predict(PromptView("essay")).expected_tokens == 987
    for knowledge in Knowledge:
        assert oracle(knowledge).predict(PromptView("never seen")).source == "wary"


def test_classes_are_right_with_the_accuracy_of_the_arm() -> None:
    classes = {f"{kind} {i}": kind for kind in (SHORT, LONG) for i in range(1000)}
    knows = OraclePredictor(Wary(), classes, {SHORT: 100.0, LONG: 1100.0}, {}, Knowledge.CLASSES, 0.85)
    said = {prompt: knows.predict(PromptView(prompt)) for prompt in classes}
    right = sum((said[prompt].p_long > 0.5) is (kind is LONG) for prompt, kind in classes.items())
    assert 0.82 < right / len(classes) < 0.88
    assert {round(each.expected_tokens) for each in said.values()} == {250, 950}
    assert said == {prompt: knows.predict(PromptView(prompt)) for prompt in classes}
