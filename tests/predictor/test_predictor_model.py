"""The shipped models: sane records for any request, and errors a user can act on."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import predictor
from predictor.errors import ModelError
from predictor.loading import MODELS, SEMANTIC
from predictor.record import Prediction, PromptView, Step, Task, Turn

LEXICAL = predictor.load()

TEXT = st.text(st.characters(), max_size=300) | st.text("aé中 \n\t\x00'?`{}0123456789-*", max_size=2000)
VIEWS = st.builds(
    PromptView,
    prompt=TEXT,
    system=TEXT,
    history=st.lists(st.builds(Turn, st.sampled_from(["user", "assistant", "x"]), TEXT), max_size=3).map(
        tuple
    ),
    task=st.sampled_from(Task),
    max_tokens=st.none() | st.integers(-1, 10**9),
    json_mode=st.booleans(),
    tools=st.integers(0, 100),
    images=st.integers(0, 9),
    thinking=st.none() | st.sampled_from(("off", "on", "high")),
    model=TEXT,
    client=TEXT,
)


def check_sane(prediction: Prediction) -> None:
    chances = (prediction.p_short, prediction.p_medium, prediction.p_long)
    assert all(0 <= chance <= 1 for chance in chances)
    assert sum(chances) == pytest.approx(1)
    assert all(
        math.isfinite(value) and value >= 0 for value in (prediction.expected_tokens, prediction.q90_tokens)
    )
    assert math.isfinite(prediction.score)


@given(VIEWS)
@settings(max_examples=100, deadline=None)
def test_any_request_gets_a_sane_record(view: PromptView) -> None:
    check_sane(LEXICAL.predict(view))


@given(TEXT)
@example("\xa0")
@settings(max_examples=50, deadline=None)
def test_any_prompt_can_be_explained(prompt: str) -> None:
    assert all(math.isfinite(effect) for _, effect in LEXICAL.explain(PromptView(prompt)))


@pytest.mark.parametrize(
    "prompt",
    [
        "\ud800 lone surrogate",
        "a" * 1_000_000,
        "\x00" * 5000,
        "?" * 100_000,
        "\u0130" * 100_000,
        "1" * 440 + "k words",
    ],
)
def test_hostile_prompts_are_prompts(prompt: str) -> None:
    check_sane(LEXICAL.predict(PromptView(prompt, system=prompt, model=prompt)))


def without_middle(text: str) -> PromptView:
    kept = f"{text[:1000]} … {text[-1000:]}"
    return PromptView(kept, cut=len(text) - len(kept))


@pytest.mark.parametrize("opening", ["Summarize this: ", "Translate to French: ", "用一句话解释 ", ""])
def test_a_prompt_without_its_middle_is_predicted_as_the_whole(opening: str) -> None:
    text = opening + "The harbour wall was built by hand. " * 3000 + "Answer in 20 words."
    assert LEXICAL.predict(without_middle(text)) == LEXICAL.predict(PromptView(text))
    lines = text.replace("hand. ", "hand.\n\n")
    whole = LEXICAL.predict(PromptView(lines))
    assert LEXICAL.predict(without_middle(lines)).expected_tokens == pytest.approx(
        whole.expected_tokens, 0.05
    )
    assert LEXICAL.explain(without_middle(text)) == LEXICAL.explain(PromptView(text))


def test_nothing_but_a_length_is_a_prompt() -> None:
    check_sane(LEXICAL.predict(PromptView("", cut=10**9)))
    assert LEXICAL.explain(PromptView("", cut=10**9))


def test_answers_before_count_with_what_was_left_out_of_them() -> None:
    def expected(*turns: Turn) -> float:
        return LEXICAL.predict(PromptView("Tell me more", history=turns)).expected_tokens

    assert expected(Turn("assistant", "word ", 9995)) == expected(Turn("assistant", "word " * 2000))
    assert expected(Turn("", "", 9995), Turn("assistant", "Yes.")) == expected(Turn("assistant", "Yes."))


def test_common_sense() -> None:
    def score(prompt: str) -> float:
        return LEXICAL.predict(PromptView(prompt)).score

    essay = score("Write a detailed essay on the causes of the French Revolution")
    assert essay > score("What is the capital of France?")
    assert score("Explain how photosynthesis works") > score("What is the capital of France?")
    assert essay > score("Translate to French: good morning")
    assert essay > score("Summarize the causes of the French Revolution in one sentence")


def test_a_cap_bounds_everything() -> None:
    view = PromptView("Write a long novel with many chapters", max_tokens=50)
    prediction = LEXICAL.predict(view)
    assert prediction.p_short == 1.0
    assert prediction.expected_tokens <= 50
    assert prediction.q90_tokens <= 50
    assert prediction.score < LEXICAL.predict(PromptView(view.prompt)).score


def test_what_a_proxy_sees_moves_the_expectation() -> None:
    prompt = "Tell me about volcanoes"
    plain = LEXICAL.predict(PromptView(prompt)).expected_tokens
    chatty = tuple(Turn("assistant", "word " * 2000) for _ in range(4))
    curt = tuple(Turn("assistant", "Yes.") for _ in range(4))
    for shorter in (
        PromptView(prompt, system="Be concise."),
        PromptView(prompt, json_mode=True),
        PromptView(prompt, tools=2),
        PromptView(prompt, history=curt),
        PromptView(prompt, task=Task.INFILL),
    ):
        assert LEXICAL.predict(shorter).expected_tokens < plain
    for longer in (PromptView(prompt, thinking="on"), PromptView(prompt, history=chatty)):
        assert LEXICAL.predict(longer).expected_tokens > plain


def test_an_embedding_takes_no_tokens() -> None:
    assert LEXICAL.predict(PromptView("x", task=Task.EMBEDDING)).expected_tokens == 0


def test_an_unknown_model_is_refused_with_the_name_of_the_shipped_one() -> None:
    with pytest.raises(ModelError, match="or 'default'"):
        predictor.load("no-such-model")


def test_other_features_are_refused_with_the_reason(tmp_path: Path) -> None:
    directory = _copy("default", tmp_path)
    card = json.loads((directory / "card.json").read_text())
    (directory / "card.json").write_text(json.dumps({**card, "features_version": 99}))
    with pytest.raises(ModelError, match="features version 99"):
        predictor.load(directory)


@pytest.mark.parametrize(
    ("file", "content"),
    [("card.json", "{"), ("trees.onnx", "no"), ("words.npz", "no"), ("card.json", "[]")],
)
def test_a_damaged_model_is_one_line(tmp_path: Path, file: str, content: str) -> None:
    directory = _copy("default", tmp_path)
    (directory / file).write_text(content)
    with pytest.raises(ModelError) as caught:
        predictor.load(directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["trees.onnx", "words.npz"])
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[: len(data) // 2], lambda data: data[:1000] + bytes(1000) + data[2000:]],
    ids=["half", "hole"],
)
def test_a_file_with_a_part_of_it_gone_is_one_line(
    tmp_path: Path, file: str, damage: Callable[[bytes], bytes]
) -> None:
    path = _copy("default", tmp_path) / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError) as caught:
        predictor.load(path.parent)
    assert "\n" not in str(caught.value)


def test_a_network_that_takes_other_inputs_is_refused(tmp_path: Path) -> None:
    directory = _copy("default", tmp_path)
    shutil.copy(MODELS / SEMANTIC / "encoder.onnx", directory / "trees.onnx")
    with pytest.raises(ModelError, match="features"):
        predictor.load(directory)


def test_models_are_small() -> None:
    for directory in MODELS.iterdir():
        limit = 25_000_000 if directory.name == SEMANTIC else 5_000_000
        assert sum(file.stat().st_size for file in directory.iterdir()) < limit


def _copy(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / name, tmp_path / name))


def test_a_frozen_predictor_explains_and_counts_but_does_not_learn() -> None:
    frozen = predictor.load()
    frozen.frozen = True
    view = PromptView("Write an essay about whales", model="m", client="eve")
    before, state = frozen.predict(view), frozen.export_state()
    for _ in range(50):
        frozen.learn(frozen.predict(view), 5)
    assert frozen.predict(view) == before
    assert frozen.export_state() == state
    assert frozen.explain(view)
    assert (frozen.quality().judged, frozen.quality().q90_coverage) == (50, 1.0)


def test_a_tools_result_is_not_read_as_a_question() -> None:
    loaded = predictor.load()
    results = (
        "Write a long essay about whales, with ten chapters.",
        "ls: a.py and ten other files, in order.",
    )
    views = [
        PromptView(text, tools=1, step=Step(len(text) + place, is_result=True, answers=(400,), tools=("sh",)))
        for place, text in enumerate(reversed(results))
    ]
    words, essay = (loaded.predict(view).expected_tokens for view in views)
    assert essay == pytest.approx(words, rel=0.05)
    step = Step(len(results[1]), is_result=True, answers=(4000,), tools=("sh",))
    longer = loaded.predict(replace(views[0], step=step))
    assert longer.expected_tokens > 1.5 * words
