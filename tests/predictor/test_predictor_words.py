"""Reading a prompt: windows, grams, requested lengths."""

import math

import pytest

from predictor.lexical.cues import NAMES, read
from predictor.lexical.stated_length import STATED_CUES, _asked, asked_tokens
from predictor.lexical.words import (
    gram_hash,
    gram_hashes,
    in_english,
    split,
    split_with_numbers,
    window,
)


def test_digits_are_blurred_but_words_stay_at_their_places() -> None:
    seen = window("Write 500 words, it's 12 o'clock in C++ and C#.")
    assert split(seen) == b"write 000 words its 00 oclock in c++ and c#".split()
    assert split_with_numbers(seen) == b"write 500 words its 12 oclock in c++ and c#".split()


def test_grams_hold_words_and_pairs_once_each() -> None:
    hashes = set(gram_hashes([b"a", b"b", b"a", b"b"]).tolist())
    for gram in ([b"a"], [b"b"], [b"a", b"b"], [b"b", b"a"], [b"^", b"a"], [b"b", b"$"]):
        assert int(gram_hash(gram)) in hashes
    assert len(hashes) == 4 + 2 + 2  # a, b and both ends; ab, ba; ^a, b$


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("write 500 words", (675.0, 0.0)),
        ("write a 2,000 word essay", (2700.0, 0.0)),
        ("a 2k word essay", (2700.0, 0.0)),
        ("write two thousand words", (2700.0, 0.0)),
        ("a five-paragraph essay", (700.0, 0.0)),
        ("answer in one sentence", (26.0, 0.0)),
        ("write 300 lines of Python", (3000.0, 0.0)),
        ("give me 10 short tips", (0.0, 400.0)),
        ("give me 40 creative dishes", (0.0, 1400.0)),
        ("a 10 minute speech", (1800.0, 0.0)),
        ("twelve pages", (6000.0, 0.0)),
        ("three chapters of 1000 words each", (4050.0, 0.0)),
        ("10 tips, each in 50 words", (675.0, 400.0)),
        ("schreibe 500 Wörter", (675.0, 0.0)),
        ("напиши 500 слов", (675.0, 0.0)),
        ("写一篇1000字的文章", (900.0, 0.0)),
        ("用一句话解释", (26.0, 0.0)),
        ("a million pages", (0.0, 0.0)),
        ("99999 pages", (8000.0, 0.0)),
        ("99999999999999999999 words", (0.0, 0.0)),
        ("what are words", (0.0, 0.0)),
        ("put this in a sentence", (0.0, 0.0)),
        ("translate the 1000-word text", (0.0, 0.0)),
        ("cook it for 20 minutes", (0.0, 0.0)),
        ("a story of 3 characters", (0.0, 0.0)),
        ("25 word problems", (0.0, 1750.0)),
        ("status 409 means what? One sentence.", (26.0, 0.0)),
    ],
)
def test_a_requested_length_is_found(prompt: str, expected: tuple[float, float]) -> None:
    assert asked_tokens(in_english(split_with_numbers(window(prompt)))) == pytest.approx(expected)
    # The cues look where the blurred numbers are, and must find the same there.
    asked = [math.expm1(_told(prompt)[name]) for name in ("asked_length", "asked_items")]
    assert asked == pytest.approx(expected)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("Write a 500 word essay", 675),
        ("What is 2+2?", 12),
        ("Translate to French:\n" + "The harbour wall was built by hand. " * 50, 1821 / 4.2),
        ("Give me 20 tips", 800),
        ("Give me 3 tips", 0),
        ("List three keywords", 30),
        ("Summarize and translate: " + "The harbour wall was built by hand. " * 50, 0),
        ("Tell me about volcanoes", 0),
    ],
)
def test_what_a_prompt_tells_of_its_answer(prompt: str, tokens: float) -> None:
    told = _told(prompt)
    assert bool(told["told_share"]) == bool(tokens)
    assert math.exp(told["told"]) == pytest.approx(tokens + 10 if tokens else 1)
    assert told["told_share"] < 1


@pytest.mark.parametrize(
    ("prompt", "curt", "bare"),
    [
        ("Is it? Answer yes or no.", 1, 0),
        ("Answer with one word: what is it", 1, 0),
        ("Fix it. No explanations!", 0, 1),
        ("Return only JSON", 0, 1),
        ("Tell me a true story", 0, 0),
    ],
)
def test_curtness_is_noticed(prompt: str, curt: float, bare: float) -> None:
    told = _told(prompt)
    assert (told["curt"], told["bare"]) == (curt, bare)


def _told(prompt: str) -> dict[str, float]:
    return dict(zip(STATED_CUES, read(prompt)[1][-len(STATED_CUES) :], strict=True))


@pytest.mark.parametrize(
    ("prompt", "english"),
    [
        ("Schreibe einen ausführlichen Aufsatz", b"write one detailed essay"),
        ("Écris une histoire", b"write one story"),
        ("¿Cuántos días?", b"many days"),
        ("Кто написал?", "who написал".encode()),
        ("请用一句话解释什么是通货膨胀。", "please 用 one sentence explain what is 通货 膨胀".encode()),
        ("한국의 수도는 어디인가요?", "한국의 capital 는 where 인가요".encode()),
        ("Write a résumé", "write a résumé".encode()),
    ],
)
def test_other_languages_read_like_english(prompt: str, english: bytes) -> None:
    assert b" ".join(read(prompt)[0]) == english


def test_of_many_numbers_the_first_count_in_any_order_of_a_set() -> None:
    text = b"write two pages on one three four five six seven eight nine ten eleven"
    words = text.split()
    numbers = dict.fromkeys(each for each in words if each not in b"write pages on".split())
    forwards, backwards = (
        _asked(text, words, dict.fromkeys(each).keys()) for each in (numbers, [*numbers][::-1])
    )
    assert forwards == backwards
    assert forwards[0] > 0.0


def test_foreign_marks_end_a_prompt_like_english_ones() -> None:
    place = NAMES.index("ends_with_question")
    assert [read(prompt)[1][place] for prompt in ("什么？", "ماذا؟", "What?", "何。")] == [1, 1, 1, 0]
