"""What is trained is what is loaded, and every distribution has its say."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xgboost")

from clairvoyant_lab.training.fitting import draw_evenly, fit, save
from clairvoyant_lab.training.material import prepare
from clairvoyant_lab.training.paper_features import NAMES, paper_features

from predictor.card import Calibration, Card
from predictor.lexical.model import LexicalModel
from predictor.lexical.words import gram_hash

TELLING = ["Write a 900 word essay on rain", "What is 3*4?", "List 50 towns", "用一句话解释雨"]
SILENT = ["Write an essay on rain", "Who is the king?", "", "Où est la gare ?"]


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    openings = ("Who is", "Summarize the life of", "Write a detailed essay about")
    return [
        f"{opening} the {name} of {number}" for number in range(40) for opening in openings for name in "xy"
    ]


@pytest.fixture(scope="module")
def targets(prompts: list[str]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array(
        [{"W": 7.0, "S": 6.0}.get(prompt[0], 4.0) - prompt.startswith("Who") for prompt in prompts]
    )


@pytest.mark.parametrize("prompt", TELLING + SILENT)
def test_the_loaded_model_scores_as_the_trained_one(
    prompt: str, prompts: list[str], targets: "np.ndarray[tuple[int], np.dtype[np.float64]]", tmp_path: Path
) -> None:
    fitted = fit(prepare(prompts), targets, np.ones(len(prompts)))
    save(fitted, Card("own", "lexical", 0, Calibration(0.0, 1.0, 1.0), [], "", {}), tmp_path)
    loaded = LexicalModel(tmp_path).read(prompt).score
    assert loaded == pytest.approx(
        fitted.scores(prepare([prompt]))[0], abs=0.01
    )  # weights are stored in 16 bits


def test_words_of_a_few_families_have_no_weight() -> None:
    families = np.repeat(np.arange(5), 12)
    rows = np.arange(60)
    prompts = [
        f"name {'plant' if row % 2 else ('blue' if of == 4 else 'red')} {row}"
        for row, of in zip(rows, families, strict=True)
    ]
    targets = np.where(rows % 2, 7.0, 4.0)
    words = fit(prepare(prompts, families, families), targets, np.ones(60)).words
    weights = {word: words.of(np.array([gram_hash([word.encode()])])) for word in ("plant", "red", "blue")}
    assert weights["plant"] > 0 > weights["red"]
    assert weights["blue"] == 0


def test_a_small_family_is_drawn_as_often_as_a_large_one() -> None:
    families = np.repeat([0, 1, 2], [900, 100, 50])
    tokens = np.where(families == 2, 5.0, 1000.0)  # the last holds no Long answer, and says nothing of length
    counts = np.bincount(families[draw_evenly(tokens, families, seed=1)], minlength=3)
    assert counts.sum() == 1000
    assert counts[0] == pytest.approx(500, abs=60)
    assert counts[2] == 0


def test_the_papers_features_are_those_of_its_text() -> None:
    features = dict(zip(NAMES, paper_features("Write a function that returns a table?"), strict=True))
    assert features == {
        **dict.fromkeys(NAMES, 0.0),
        "prompt_token_len": 9.0,
        "has_code_keyword": 1.0,
        "ends_with_question": 1.0,
        "has_format_keyword": 1.0,
        "clause_count": 1.0,
        "verb_write": 1.0,
    }
