"""Reading a prompt: windows, grams, requested lengths, the paper's features."""

import pytest

from predictor.cues import NAMES, read
from predictor.length_ask import UNITS, asked_tokens
from predictor.paper_features import NAMES as PAPER_NAMES
from predictor.paper_features import paper_features
from predictor.words import WINDOW_CHARACTERS, gram_hash, gram_hashes, split, split_with_numbers, window


def test_digits_are_blurred_but_words_stay_at_their_places() -> None:
    seen = window("Write 500 words, it's 12 o'clock in C++ and C#.")
    assert split(seen) == b"write 000 words its 00 oclock in c++ and c#".split()
    assert split_with_numbers(seen) == b"write 500 words its 12 oclock in c++ and c#".split()


def test_a_long_prompt_is_read_at_both_ends_only() -> None:
    words = split(window("first " + "x" * 100_000 + " last"))
    assert words[0] == b"first"
    assert words[-1] == b"last"
    assert len(window("é" * 100_000)) <= 2 * (WINDOW_CHARACTERS + 1)


def test_grams_hold_words_and_pairs_once_each() -> None:
    hashes = set(gram_hashes([b"a", b"b", b"a", b"b"]).tolist())
    for gram in ([b"a"], [b"b"], [b"a", b"b"], [b"b", b"a"], [b"^", b"a"], [b"b", b"$"]):
        assert int(gram_hash(gram)) in hashes
    assert len(hashes) == 4 + 2 + 2  # a, b and both ends; ab, ba; ^a, b$


def test_no_words_still_have_ends() -> None:
    assert len(gram_hashes([])) == 3


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("write 500 words", (675.0, 0.0)),
        ("write a 2,000 word essay", (2700.0, 0.0)),
        ("a five-paragraph essay", (550.0, 0.0)),
        ("answer in one sentence", (26.0, 0.0)),
        ("give me 10 short tips", (0.0, 400.0)),
        ("twelve pages", (7200.0, 0.0)),
        ("what are words", (0.0, 0.0)),
        ("99999999999999999999 words", (0.0, 0.0)),
    ],
)
def test_a_requested_length_is_found(prompt: str, expected: tuple[float, float]) -> None:
    words = split_with_numbers(window(prompt))
    assert asked_tokens(words, UNITS & set(words)) == expected


def test_cues_have_their_names_and_follow_the_text() -> None:
    cues = dict(zip(NAMES, read("Write a detailed essay?\n")[1], strict=True))
    assert cues["ends_with_question"] == 1.0
    assert cues["opens_write"] == 1.0
    assert cues["uses_essay"] > 0
    assert cues["uses_harm"] == 0


def test_the_papers_features_are_those_of_its_text() -> None:
    features = dict(zip(PAPER_NAMES, paper_features("Write a function that returns a table?"), strict=True))
    assert features == {
        **dict.fromkeys(PAPER_NAMES, 0.0),
        "prompt_token_len": 9.0,
        "has_code_keyword": 1.0,
        "ends_with_question": 1.0,
        "has_format_keyword": 1.0,
        "clause_count": 1.0,
        "verb_write": 1.0,
    }


@pytest.mark.parametrize("prompt", ["", " ", "\u2028", "Ünïcödé straße", "please write"])
def test_the_papers_verb_comes_from_the_first_token_alone(prompt: str) -> None:
    assert paper_features(prompt)[PAPER_NAMES.index("verb_other")] == 1.0
    assert sum(paper_features(prompt)[6:]) == 1.0
