"""A chore's length is predicted from its own history."""

from dataclasses import replace

import numpy as np
import pytest

import predictor
from predictor.record import Chore, PromptView

FOLLOW_UPS = Chore("follow_up_generation", 80.0)
PROMPT = "### Task:\nPredict 3-5 useful messages this user might naturally send next. Write 2000 words."


def view(client: str = "webui/ann", model: str = "m", cap: int | None = None) -> PromptView:
    return PromptView(PROMPT, model=model, client=client, chore=FOLLOW_UPS, max_tokens=cap)


def test_it_starts_from_a_guess_and_follows_the_answers_of_all_users_of_a_front_end() -> None:
    loaded, lengths = predictor.load(), np.random.default_rng(5)
    first = loaded.predict(view())
    assert first.expected_tokens == pytest.approx(80, rel=0.2)
    assert first.source == "follow_up_generation"
    for tokens in lengths.lognormal(np.log(222), 0.2, 12).astype(int).tolist():
        loaded.learn(loaded.predict(view()), tokens)
    learnt = loaded.predict(view("webui/ben"))
    assert learnt.expected_tokens == pytest.approx(222, rel=0.15)
    assert learnt.expected_tokens < learnt.q90_tokens < 400
    for other in (view("desk"), view(model="other")):
        assert loaded.predict(other).expected_tokens == first.expected_tokens
    fresh = predictor.load()
    fresh.import_state(loaded.export_state())
    assert fresh.predict(view()) == loaded.predict(view())
    assert b"webui" not in loaded.export_state()


def test_a_made_up_chore_buys_nothing() -> None:
    loaded = predictor.load()
    question = PromptView("Write a story of 2000 words.", model="m", client="ann")
    claimed = loaded.predict(replace(question, chore=Chore("one word")))
    assert claimed.expected_tokens == pytest.approx(loaded.predict(question).expected_tokens, rel=0.2)


def test_what_a_client_cuts_off_teaches_no_shorter_length() -> None:
    loaded = predictor.load()
    before = loaded.predict(view()).expected_tokens
    for _ in range(20):
        loaded.learn(loaded.predict(view(cap=5)), 5)
    assert loaded.predict(view()).expected_tokens == before
    assert loaded.predict(view(cap=5)).expected_tokens <= 5
    assert loaded.quality().judged == 0


def test_a_question_is_predicted_as_if_there_were_no_chores() -> None:
    loaded, untaught = predictor.load(), predictor.load()
    for _ in range(50):
        loaded.learn(loaded.predict(view()), 10)
    question = PromptView("Tell me about whales", model="m", client="webui/ann")
    assert loaded.predict(question) == untaught.predict(question)
