"""Lessons wait their turn, are not lost at the end, and never fail a request."""

import asyncio
import logging

import pytest

from clairvoyant_cli.proxy.learning import learn_queue as lessons_module
from clairvoyant_cli.proxy.learning.learn_queue import MAX_WAITING, LearnQueue
from predictor.record import Prediction, Predictor, PromptView
from tests.fakes.ended import ended

PREDICTED = Prediction(1, 0, 0, 0.0, 10, 20, "pupil", memo=b"")


class Pupil(Predictor):
    """A predictor that remembers its lessons, and balks at one."""

    name = "pupil"

    def __init__(self, balks_at: int = -1) -> None:
        self.learned: list[int] = []
        self.done = asyncio.Event()
        self.balks_at = balks_at

    def predict(self, view: PromptView, opinion: object = None) -> Prediction:
        return PREDICTED

    def learn(self, prediction: Prediction, tokens: int) -> None:
        if tokens == self.balks_at:
            raise ValueError("too hard")
        self.learned.append(tokens)
        if len(self.learned) == 3:
            self.done.set()


async def test_an_answer_is_learned_later_and_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons_module, "REST_S", 0.0)
    pupil = Pupil()
    learn_queue = LearnQueue(pupil)
    for tokens in (1, 2, 3):
        learn_queue.add(PREDICTED, tokens)
    assert pupil.learned == []
    await pupil.done.wait()
    assert pupil.learned == [1, 2, 3]


async def test_queued_answers_are_learned_at_shutdown() -> None:
    pupil = Pupil()
    learn_queue = LearnQueue(pupil)
    for tokens in range(5):
        learn_queue.add(PREDICTED, tokens)
    learn_queue.flush()
    assert pupil.learned == [0, 1, 2, 3, 4]


async def test_a_flood_is_sampled() -> None:
    pupil = Pupil()
    learn_queue = LearnQueue(pupil)
    for tokens in range(2 * MAX_WAITING):
        learn_queue.add(PREDICTED, tokens)
    learn_queue.flush()
    assert len(pupil.learned) == MAX_WAITING


async def test_a_lesson_that_fails_does_not_end_the_school(caplog: pytest.LogCaptureFixture) -> None:
    pupil = Pupil(balks_at=2)
    learn_queue = LearnQueue(pupil)
    with caplog.at_level(logging.ERROR, "clairvoyant"):
        for tokens in (1, 2, 3):
            learn_queue.add(PREDICTED, tokens)
        learn_queue.flush()
    assert pupil.learned == [1, 3]
    assert "could not learn" in caplog.text


@pytest.mark.parametrize(("choices", "learned"), [(1, [100]), (2, [])])
async def test_the_sum_of_several_answers_is_not_learned(choices: int, learned: list[int]) -> None:
    pupil = Pupil()
    learn_queue = LearnQueue(pupil)
    learn_queue.ended(ended(choices=choices))
    learn_queue.flush()
    assert pupil.learned == learned
