"""The questions: enough, none twice, mixed evenly, and what counts as overlap of their answers."""

from clairvoyant_cli.backends.client import TimedAnswer
from clairvoyant_cli.calibrate.questions import LONG_CAP, long_questions, mixed, reading, short_questions
from clairvoyant_cli.calibrate.server_speeds import at_once
from predictor.record import LONG_FROM_TOKENS, SHORT_BELOW_TOKENS


def test_there_are_a_hundred_of_each_and_none_twice() -> None:
    for questions in (short_questions(0), long_questions(0)):
        assert len({question.prompt for question in questions}) == 100
        assert len({question.name for question in questions}) == 100


def test_caps_keep_short_ones_short_and_let_long_ones_be_long() -> None:
    assert all(question.cap < SHORT_BELOW_TOKENS for question in short_questions(0))
    assert LONG_CAP >= LONG_FROM_TOKENS


def test_a_seed_orders_the_questions() -> None:
    assert short_questions(1) == short_questions(1)
    assert short_questions(1) != short_questions(2)
    assert set(short_questions(1)) == set(short_questions(2))


def test_the_mix_has_one_long_question_in_each_block() -> None:
    questions = mixed(short_questions(0), long_questions(0), count=50, shorts_per_long=4, seed=3)
    for start in range(0, 50, 5):
        block = questions[start : start + 5]
        assert sum(question.cap == LONG_CAP for question in block) == 1
    assert len({question.prompt for question in questions}) == 50


def test_readings_are_as_long_as_asked_and_begin_differently() -> None:
    one, other = reading(1000, 1), reading(1000, 2)
    assert 700 <= len(one.prompt.split()) <= 850
    assert one.prompt[:2] != other.prompt[:2]


def answer(first_s: float, last_s: float) -> TimedAnswer:
    return TimedAnswer(0.0, first_s, last_s, last_s, events=10)


def test_answers_that_follow_each_other_are_one_at_a_time() -> None:
    assert at_once([answer(i, i + 1.01) for i in range(6)]) == 1


def test_answers_that_overlap_are_counted_by_their_most() -> None:
    pairs = [answer(i + shift, i + 1.0 + shift) for i in range(3) for shift in (0.0, 0.1)]
    assert at_once(pairs) == 2
    assert at_once([answer(1.0, 2.0)] * 4) == 4
    assert at_once([]) == 1
